"""OCI specifications: what is refused and where, what is kept, what is filled in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import (
    BlockSource,
    DeviceGrant,
    DeviceNode,
    MountedStorage,
    NodeType,
    StorageMount,
    StorageRequest,
)
from agent.handlers.runtime.spec import (
    Surroundings,
    complete,
    parse_process,
    parse_spec,
    storage_mount,
)
from agent.handlers.runtime.spec_devices import GrantedNode, granted_nodes
from agent.handlers.runtime.spec_process import exec_defaults

pytestmark = [pytest.mark.unit, pytest.mark.containers]

DISK = DeviceNode(path="/dev/vdb", type=NodeType.BLOCK, major=254, minor=16)
PART = DeviceNode(path="/dev/vdb1", type=NodeType.BLOCK, major=254, minor=17)


def spec(**members: Any) -> bytes:
    return json.dumps({"process": {"args": ["/bin/sh"]}, **members}).encode()


def process(**members: Any) -> bytes:
    return spec(process={"args": ["/bin/sh"], **members})


def completed(data: bytes, *, devices: tuple[GrantedNode, ...] = ()) -> dict[str, Any]:
    around = Surroundings(root="/root", cgroup="/pods/s/c", mounts=(), devices=devices)
    return complete(parse_spec(data), around)


BAD = [
    (b"{", ""),
    (b"[]", ""),
    (b"\xff\xfe", ""),
    (b'{"process": {"args": ["a"]}, "process": {}}', ""),
    (b'{"process": {"args": ["a"], "oomScoreAdj": NaN}}', ""),
    (b'{"x": ' + b"[" * 100_000, ""),
    (b"{}", "process"),
    (spec(process=[]), "process"),
    (spec(process={"args": []}), "process.args"),
    (spec(process={"args": [""]}), "process.args"),
    (spec(process={"args": "sh"}), "process.args"),
    (spec(process={"args": ["sh", 1]}), "process.args[1]"),
    (process(env=["A=1", "B"]), "process.env[1]"),
    (process(env=["=x"]), "process.env[0]"),
    (process(env=["A=1", "B=\0"]), "process.env[1]"),
    (process(args=["a", "b\0c"]), "process.args[1]"),
    (b'{"process": {"args": ["\\ud800"]}}', "process.args[0]"),
    (process(cwd="tmp"), "process.cwd"),
    (process(terminal=1), "process.terminal"),
    (process(user={"uid": -1}), "process.user.uid"),
    (process(user={"uid": 2**32 - 1}), "process.user.uid"),
    (process(user={"gid": True}), "process.user.gid"),
    (process(user={"additionalGids": [1, "x"]}), "process.user.additionalGids[1]"),
    (process(capabilities={"bounding": "CAP_KILL"}), "process.capabilities.bounding"),
    (process(args=["a", "x" * 131072]), "process.args[1]"),
    (process(env=[f"A{n}=" + "x" * 100_000 for n in range(25)]), "process"),
    (spec(ociVersion="2.0.0"), "ociVersion"),
    (spec(hostname=5), "hostname"),
    (spec(root={"readonly": "yes"}), "root.readonly"),
    (spec(windows={}), "windows"),
    (spec(mounts=[{"destination": "/a"}, {}]), "mounts[1].destination"),
    (spec(mounts=[{"destination": "a"}]), "mounts[0].destination"),
    (spec(mounts=[{"destination": "/a", "options": ["ro", None]}]), "mounts[0].options[1]"),
    (spec(linux=[]), "linux"),
    (spec(linux={"namespaces": [{"type": "pid"}]}), "linux.namespaces"),
    (spec(linux={"namespaces": [{"type": "net"}]}), "linux.namespaces[0].type"),
    (
        spec(linux={"namespaces": [{"type": "mount"}, {"type": "mount"}]}),
        "linux.namespaces[1].type",
    ),
    (spec(linux={"netDevices": {"eth0": {}}}), "linux.netDevices"),
    (spec(linux={"maskedPaths": ["x"]}), "linux.maskedPaths[0]"),
    (
        spec(linux={"resources": {"devices": [{"access": "r"}]}}),
        "linux.resources.devices[0].allow",
    ),
    (spec(annotations={"run.oci.hooks.stdout": "/etc/x"}), "annotations.run.oci.hooks.stdout"),
    (spec(annotations={"run.oci.handler": "wasm"}), "annotations.run.oci.handler"),
    (spec(annotations={"a": 1}), "annotations.a"),
]


@pytest.mark.parametrize(
    ("data", "place"), BAD, ids=[place or str(n) for n, (_, place) in enumerate(BAD)]
)
def test_bad_specifications_are_refused_by_their_place(data: bytes, place: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_spec(data)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.reason is Reason.BAD_SPEC
    assert caught.value.fields["path"] == place


@pytest.mark.parametrize("value", ["a\nb", "é", "\x01\x1f", "=x", ""])
def test_environment_values_pass_unchanged(value: str) -> None:
    assert completed(process(env=[f"A={value}"]))["process"]["env"] == [f"A={value}"]


def test_the_longest_argument_passes() -> None:
    """The kernel takes 131,071 bytes and a NUL; one more is E2BIG."""
    assert parse_spec(process(args=["a", "x" * 131071]))


@pytest.mark.parametrize("name", ["run.oci.hooks.stdout", "module.wasm.image/variant"])
def test_annotations_that_change_what_the_runtime_does_are_refused(name: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_spec(spec(annotations={name: "x"}))
    assert caught.value.fields["path"] == f"annotations.{name}"


def test_annotations_that_stay_inside_pass() -> None:
    given = {"run.oci.keep_original_groups": "1", "io.kubernetes.x": "y"}
    assert completed(spec(annotations=given))["annotations"] == given


def test_a_silent_specification_gets_what_containers_usually_have() -> None:
    whole = completed(spec())
    assert whole["ociVersion"] == "1.0.2"
    assert whole["root"] == {"path": "/root"}
    assert whole["process"]["cwd"] == "/"
    assert whole["process"]["user"] == {"uid": 0, "gid": 0}
    assert [entry.split("=")[0] for entry in whole["process"]["env"]] == ["PATH"]
    assert whole["process"]["capabilities"].keys() == {"bounding", "effective", "permitted"}
    assert len(whole["process"]["capabilities"]["bounding"]) == 14
    kinds = [each["type"] for each in whole["linux"]["namespaces"]]
    assert kinds == ["pid", "ipc", "uts", "mount", "cgroup"]
    assert [each["destination"] for each in whole["mounts"]] == [
        "/proc",
        "/dev",
        "/dev/pts",
        "/dev/shm",
        "/dev/mqueue",
        "/sys",
        "/sys/fs/cgroup",
    ]
    assert "ro" in whole["mounts"][-1]["options"]
    assert "/proc/kcore" in whole["linux"]["maskedPaths"]
    assert "/proc/sys" in whole["linux"]["readonlyPaths"]


def test_what_the_host_says_is_kept() -> None:
    given = {
        "mounts": [],
        "hostname": "box",
        "root": {"path": "ignored", "readonly": True},
        "linux": {"maskedPaths": [], "namespaces": [{"type": "mount"}, {"type": "network"}]},
    }
    whole = completed(spec(**given))
    assert whole["mounts"] == []
    assert whole["hostname"] == "box"
    assert whole["root"] == {"path": "/root", "readonly": True}
    assert whole["linux"]["maskedPaths"] == []


def test_a_cgroup_namespace_is_always_there() -> None:
    """Without it a container saw the guest's whole tree of cgroups."""
    given = {"namespaces": [{"type": "mount"}], "cgroupsPath": "/elsewhere"}
    linux = completed(spec(linux=given))["linux"]
    assert {"type": "cgroup"} in linux["namespaces"]
    assert linux["cgroupsPath"] == "/pods/s/c"


def test_null_is_the_same_as_absent() -> None:
    whole = completed(spec(mounts=None, linux=None, annotations=None))
    assert len(whole["mounts"]) == 7
    assert "annotations" not in whole


def rules(whole: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("allow", "type", "major", "minor", "access")
    return [tuple(rule.get(n) for n in names) for rule in whole["linux"]["resources"]["devices"]]


def test_without_rules_all_but_the_default_devices_is_refused() -> None:
    found = rules(completed(spec()))
    assert found[0] == (False, None, None, None, "rwm")
    assert (True, "c", 1, 3, "rwm") in found
    assert (True, "c", 136, None, "rwm") in found


def test_own_rules_do_not_take_the_default_devices_away() -> None:
    """[deny all, allow b 254:0] only, and then /dev/null could not be opened."""
    own = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "b", "major": 254, "minor": 0, "access": "rwm"},
    ]
    found = rules(completed(spec(linux={"resources": {"devices": own}})))
    assert found[:2] == [(False, None, None, None, "rwm"), (True, "b", 254, 0, "rwm")]
    for minor in (3, 5, 7, 8, 9):
        assert (True, "c", 1, minor, "rwm") in found


def test_a_granted_device_has_a_node_and_a_rule() -> None:
    granted = granted_nodes(DeviceGrant(device_id="d", permissions="rw"), [DISK, PART])
    whole = completed(process(user={"uid": 1000, "gid": 50}), devices=granted)
    assert (True, "b", 254, 16, "rw") in rules(whole)
    assert (True, "b", 254, 17, "rw") in rules(whole)
    first = whole["linux"]["devices"][0]
    assert (first["path"], first["major"], first["minor"]) == ("/dev/vdb", 254, 16)
    assert (first["uid"], first["gid"]) == (1000, 50)


def test_a_granted_device_replaces_a_node_of_the_host_at_its_path() -> None:
    own = [{"path": "/dev/vdb", "type": "b", "major": 8, "minor": 0}]
    granted = granted_nodes(DeviceGrant(device_id="d"), [DISK])
    whole = completed(spec(linux={"devices": own}), devices=granted)
    assert [each["major"] for each in whole["linux"]["devices"]] == [254]


def test_a_grant_may_choose_the_path() -> None:
    (node,) = granted_nodes(DeviceGrant(device_id="d", container_path="/dev/data"), [DISK])
    assert (node.path, node.permissions) == ("/dev/data", "rwm")


@pytest.mark.parametrize(
    ("grant", "nodes"),
    [
        (DeviceGrant(device_id="d", permissions="x"), [DISK]),
        (DeviceGrant(device_id="d", permissions="rr"), [DISK]),
        (DeviceGrant(device_id="d", container_path="/dev/x"), [DISK, PART]),
        (DeviceGrant(device_id="d", container_path="dev/x"), [DISK]),
        (DeviceGrant(device_id="d", container_path="/dev/../x"), [DISK]),
        (DeviceGrant(device_id="d", container_path="/"), [DISK]),
    ],
)
def test_bad_grants_are_refused(grant: DeviceGrant, nodes: list[DeviceNode]) -> None:
    with pytest.raises(AgentError) as caught:
        granted_nodes(grant, nodes)
    assert caught.value.reason is Reason.BAD_FIELD


def test_two_grants_at_one_path_are_refused() -> None:
    twice = granted_nodes(DeviceGrant(device_id="d"), [DISK]) * 2
    with pytest.raises(AgentError, match="/dev/vdb"):
        completed(spec(), devices=twice)


def storage(*, read_only: bool = False) -> MountedStorage:
    source = BlockSource(device_id="d", fs_type="ext4")
    request = StorageRequest(id="s1", source=source, read_only=read_only)
    return MountedStorage(request=request, mount_point="/run/x/s1")


def test_a_storage_is_a_private_bind_mount() -> None:
    mount = storage_mount(StorageMount(storage_id="s1", destination="/data"), storage())
    assert mount == {
        "destination": "/data",
        "type": "bind",
        "source": "/run/x/s1",
        "options": ["rbind", "rprivate"],
    }


def test_a_read_only_storage_stays_so() -> None:
    wanted = StorageMount(storage_id="s1", destination="/data", options=("rw", "nosuid"))
    assert storage_mount(wanted, storage(read_only=True))["options"] == [
        "rbind",
        "nosuid",
        "rprivate",
        "ro",
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        StorageMount(storage_id="s1", destination="data"),
        StorageMount(storage_id="s1", destination="/da\0ta"),
        StorageMount(storage_id="s1", destination="/data", options=("size=5",)),
        StorageMount(storage_id="s1", destination="/data", options=("idmap",)),
    ],
)
def test_bad_storage_mounts_are_refused(wanted: StorageMount) -> None:
    with pytest.raises(AgentError) as caught:
        storage_mount(wanted, storage())
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_an_exec_is_as_the_first_process_where_it_is_silent() -> None:
    first = completed(process(env=["A=1"], cwd="/srv", user={"uid": 7, "gid": 7}))["process"]
    whole = exec_defaults(parse_process(b'{"args": ["ls"], "cwd": "/"}'), first)
    assert (whole["cwd"], whole["env"], whole["user"]["uid"]) == ("/", ["A=1"], 7)
    assert "terminal" not in whole


def test_an_exec_on_a_terminal_says_which() -> None:
    first = completed(process(env=["A=1"]))["process"]
    whole = exec_defaults(parse_process(b'{"args": ["sh"], "terminal": true}'), first)
    assert whole["env"] == ["A=1", "TERM=xterm"]


def test_the_place_in_a_process_of_an_exec_has_no_prefix() -> None:
    with pytest.raises(AgentError) as caught:
        parse_process(b'{"args": ["sh"], "env": ["x"]}')
    assert caught.value.fields["path"] == "env[0]"


@pytest.mark.parametrize("name", ["cgroup.procs", "cgroup.kill", "../memory.max", "memory", "x.y"])
def test_unified_resources_are_files_of_controllers(name: str) -> None:
    """crun writes any file that is named: cgroup.procs would move PID 1 into the container."""
    with pytest.raises(AgentError) as caught:
        parse_spec(spec(linux={"resources": {"unified": {name: "1"}}}))
    assert caught.value.reason is Reason.BAD_SPEC
    assert name in str(caught.value)


def test_unified_resources_of_controllers_are_kept() -> None:
    unified = {"memory.high": "10000000", "pids.max": "7", "hugetlb.2MB.max": "0"}
    parsed = parse_spec(spec(linux={"resources": {"unified": unified}}))
    assert parsed["linux"]["resources"]["unified"] == unified


def test_a_document_nested_beyond_reason_is_refused() -> None:
    """What reads it after us does so by recursion."""
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(AgentError) as caught:
        parse_spec(spec(annotations={}, extension=deep))
    assert caught.value.reason is Reason.BAD_SPEC
    assert "nested too deeply" in str(caught.value)


def test_the_place_of_a_nul_is_told_however_deep() -> None:
    with pytest.raises(AgentError) as caught:
        parse_spec(spec(extension=[{"a": ["good", "b\0ad"]}]))
    assert caught.value.fields["path"] == "extension[0].a[1]"

"""OCI specifications: what is refused and where, what is kept, what is filled in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import MountedStorage, StorageMount, StorageRequest
from agent.core.sources import BlockSource
from agent.handlers.runtime.spec import (
    Surroundings,
    complete,
    parse_process,
    parse_resources,
    parse_spec,
    storage_mount,
)
from agent.handlers.runtime.spec_process import exec_defaults

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def spec(**members: Any) -> bytes:
    return json.dumps({"process": {"args": ["/bin/sh"]}, **members}).encode()


def process(**members: Any) -> bytes:
    return spec(process={"args": ["/bin/sh"], **members})


def completed(data: bytes) -> dict[str, Any]:
    around = Surroundings(root="/root", cgroup="/pods/s/c", mounts=())
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
    (spec(mounts=[{"destination": "/"}]), "mounts[0].destination"),
    (spec(mounts=[{"destination": "//."}]), "mounts[0].destination"),
    (spec(mounts=[{"destination": "/a/../b"}]), "mounts[0].destination"),
    (spec(mounts=[{"destination": "/a", "options": ["ro", None]}]), "mounts[0].options[1]"),
    (spec(linux=[]), "linux"),
    (spec(linux={"namespaces": [{"type": "pid"}]}), "linux.namespaces"),
    (spec(linux={"namespaces": [{"type": "net"}]}), "linux.namespaces[0].type"),
    (
        spec(linux={"namespaces": [{"type": "mount"}, {"type": "mount"}]}),
        "linux.namespaces[1].type",
    ),
    (spec(linux={"memoryPolicy": {"mode": "MPOL_BIND"}}), "linux.memoryPolicy"),
    (spec(linux={"netDevices": [{"name": "eth0"}]}), "linux.netDevices"),
    (spec(linux={"netDevices": {"eth0": None}}), "linux.netDevices.eth0"),
    (spec(linux={"netDevices": {"eth0": {"name": 5}}}), "linux.netDevices.eth0.name"),
    (spec(linux={"netDevices": {"e:0": {}}}), "linux.netDevices.e:0"),
    (spec(linux={"netDevices": {"sixteen-bytes-16": {}}}), "linux.netDevices.sixteen-bytes-16"),
    (spec(linux={"netDevices": {"eth0": {"name": "a/b"}}}), "linux.netDevices.eth0.name"),
    (spec(linux={"netDevices": {"eth0": {"name": "e%dx"}}}), "linux.netDevices.eth0.name"),
    (spec(linux={"netDevices": {"eth0": {"name": "%d%d"}}}), "linux.netDevices.eth0.name"),
    (spec(linux={"netDevices": {"eth0": {}, "eth1": {"name": "eth0"}}}), "linux.netDevices"),
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


def entry(**members: Any) -> bytes:
    """A specification with one entry of linux.devices; None leaves a member out."""
    whole = {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, **members}
    return spec(linux={"devices": [{k: v for k, v in whole.items() if v is not None}]})


def rule(**members: Any) -> bytes:
    return spec(linux={"resources": {"devices": [{"allow": True, **members}]}})


BAD_DEVICES = [
    (spec(linux={"devices": {}}), "linux.devices"),
    (spec(linux={"devices": ["/dev/x"]}), "linux.devices[0]"),
    (entry(path=None), "linux.devices[0].path"),
    (entry(path="dev/x"), "linux.devices[0].path"),
    (entry(type=None), "linux.devices[0].type"),
    (entry(type="a"), "linux.devices[0].type"),
    (entry(type=["c"]), "linux.devices[0].type"),
    (entry(major=None), "linux.devices[0].major"),
    (entry(minor=None), "linux.devices[0].minor"),
    (entry(major=-1), "linux.devices[0].major"),
    (entry(major=2**32), "linux.devices[0].major"),
    (entry(minor="3"), "linux.devices[0].minor"),
    (entry(minor=True), "linux.devices[0].minor"),
    (entry(minor=1.5), "linux.devices[0].minor"),
    (entry(fileMode="0666"), "linux.devices[0].fileMode"),
    (entry(fileMode=-1), "linux.devices[0].fileMode"),
    (entry(uid=-1), "linux.devices[0].uid"),
    (entry(gid=2**32), "linux.devices[0].gid"),
    (spec(linux={"resources": {"devices": {}}}), "linux.resources.devices"),
    (rule(allow=1), "linux.resources.devices[0].allow"),
    (rule(type="u"), "linux.resources.devices[0].type"),
    (rule(type=5), "linux.resources.devices[0].type"),
    (rule(type="c", major="*"), "linux.resources.devices[0].major"),
    (rule(type="c", major=-2), "linux.resources.devices[0].major"),
    (rule(type="c", minor=2**40), "linux.resources.devices[0].minor"),
    (rule(access="rx"), "linux.resources.devices[0].access"),
    (rule(access=["r"]), "linux.resources.devices[0].access"),
]


@pytest.mark.parametrize(("data", "place"), BAD_DEVICES)
def test_devices_of_another_shape_are_refused_with_their_place(data: bytes, place: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_spec(data)
    assert (caught.value.reason, caught.value.fields["path"]) == (Reason.BAD_SPEC, place)


@pytest.mark.parametrize(
    "data",
    [
        entry(type="p", major=None, minor=None),
        entry(type="u", fileMode=0o20666, uid=0, gid=5),
        rule(),
        rule(type="a", major=-1, minor=-1, access="rwm"),
        rule(type="c", major=1),
        rule(access=""),
    ],
)
def test_devices_as_the_specification_has_them_are_fine(data: bytes) -> None:
    """A FIFO has no numbers; `u` is another word for `c`; a rule may leave all but `allow` out."""
    parse_spec(data)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"[]", ""),
        (b"{", ""),
        (b'{"memory": {}, "memory": {}}', ""),
        (b'{"devices": []}', "devices"),
        (b'{"devices": [{"allow": true}]}', "devices"),
        (b'{"unified": {"cgroup.procs": "1"}}', "unified.cgroup.procs"),
        (b'{"unified": {"../memory.max": "1"}}', "unified.../memory.max"),
        (b'{"unified": []}', "unified"),
    ],
)
def test_resources_of_an_update_that_are_refused(data: bytes, place: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_resources(data)
    assert (caught.value.reason, caught.value.fields["path"]) == (Reason.BAD_SPEC, place)


def test_resources_of_an_update_are_kept() -> None:
    data = b'{"memory": {"limit": 5}, "devices": null, "x-new": 1}'
    assert parse_resources(data) == {"memory": {"limit": 5}, "x-new": 1}


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


def test_a_container_takes_no_flag_away_from_a_storage() -> None:
    """crun clears those that it is not told of (case 62)."""
    wanted = StorageMount(storage_id="s1", destination="/data", options=("suid", "exec", "rw"))
    flags = ("rw", "nosuid", "nodev", "relatime")
    assert storage_mount(wanted, storage(), flags)["options"] == [
        *("rbind", "exec", "rw", "rprivate"),
        *("nosuid", "nodev"),
    ]
    assert storage_mount(wanted, storage(), ("ro", "noexec"))["options"] == [
        *("rbind", "suid", "rprivate"),
        *("noexec", "ro"),
    ]


def test_a_flag_that_the_runtime_would_take_off_is_not_lost_silently() -> None:
    """crun 1.21 does not know MS_NOSYMFOLLOW, and clears what it does not know."""
    with pytest.raises(AgentError, match="nosymfollow") as caught:
        storage_mount(
            StorageMount(storage_id="s1", destination="/data"), storage(), ("rw", "nosymfollow")
        )
    assert caught.value.reason is Reason.WRONG_STATE


@pytest.mark.parametrize(
    "wanted",
    [
        StorageMount(storage_id="s1", destination="data"),
        StorageMount(storage_id="s1", destination=""),
        StorageMount(storage_id="s1", destination="/"),
        StorageMount(storage_id="s1", destination="/./"),
        StorageMount(storage_id="s1", destination="/a/../b"),
        StorageMount(storage_id="s1", destination="/.."),
        StorageMount(storage_id="s1", destination="/" + "x" * 4096),
        StorageMount(storage_id="s1", destination="/da\0ta"),
        StorageMount(storage_id="s1", destination="/data", options=("size=5",)),
        StorageMount(storage_id="s1", destination="/data", options=("idmap",)),
        StorageMount(storage_id="s1", destination="/data", options=("nosymfollow",)),
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

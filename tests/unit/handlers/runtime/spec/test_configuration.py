"""OCI specifications: what is refused and where, what is kept, what is filled in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.model import MountedStorage, StorageMount, StorageRequest
from agent.core.sources import BlockSource
from agent.handlers.runtime.spec.configuration import (
    Surroundings,
    complete,
    parse_process,
    parse_resources,
    parse_spec,
    storage_mount,
)
from agent.handlers.runtime.spec.process import added, exec_defaults

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
    (spec(ociVersion="1.4.0"), "ociVersion"),
    (spec(ociVersion="1"), "ociVersion"),
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


SCHEDULER = {"policy": "SCHED_BATCH"}
USERS = [{"type": "mount"}, {"type": "user"}]
MAPS = [{"containerID": 0, "hostID": 100000, "size": 65536}]
LISTENER = {"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}


def limit(**members: Any) -> dict[str, Any]:
    return {"type": "RLIMIT_CORE", "soft": 1, "hard": 1, **members}


def seccomp(**members: Any) -> bytes:
    return spec(linux={"seccomp": {"defaultAction": "SCMP_ACT_ALLOW", **members}})


def call(**members: Any) -> bytes:
    return seccomp(syscalls=[{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", **members}])


def resources(**members: Any) -> bytes:
    return spec(linux={"resources": members})


def mount(**members: Any) -> bytes:
    return spec(mounts=[{"destination": "/x", "type": "tmpfs", **members}])


def linux(**members: Any) -> bytes:
    return spec(linux=members)


BAD_MEMBERS = [
    (process(user={"umask": 0o1000}), "process.user.umask"),
    (process(user={"username": 5}), "process.user.username"),
    (process(consoleSize={"height": 5}), "process.consoleSize.width"),
    (process(consoleSize={"height": 5, "width": 65536}), "process.consoleSize.width"),
    (process(oomScoreAdj=1001), "process.oomScoreAdj"),
    (process(oomScoreAdj="0"), "process.oomScoreAdj"),
    (process(noNewPrivileges=1), "process.noNewPrivileges"),
    (process(apparmorProfile=1), "process.apparmorProfile"),
    (process(selinuxLabel=[]), "process.selinuxLabel"),
    (process(rlimits={}), "process.rlimits"),
    (process(rlimits=[limit(type="RLIMIT_NONSENSE")]), "process.rlimits[0].type"),
    (process(rlimits=[limit(soft=2)]), "process.rlimits[0]"),
    (process(rlimits=[limit(hard=2**64)]), "process.rlimits[0].hard"),
    (process(rlimits=[limit(hard=None)]), "process.rlimits[0].hard"),
    (process(rlimits=[limit(), limit()]), "process.rlimits[1].type"),
    (process(scheduler={}), "process.scheduler.policy"),
    (process(scheduler={"policy": "BATCH"}), "process.scheduler.policy"),
    (process(scheduler={**SCHEDULER, "nice": 20}), "process.scheduler.nice"),
    (process(scheduler={**SCHEDULER, "flags": ["X"]}), "process.scheduler.flags[0]"),
    (process(scheduler={**SCHEDULER, "period": -1}), "process.scheduler.period"),
    (process(ioPriority={"class": "BE"}), "process.ioPriority.class"),
    (
        process(ioPriority={"class": "IOPRIO_CLASS_BE", "priority": 8}),
        "process.ioPriority.priority",
    ),
    (process(execCPUAffinity={"initial": "a"}), "process.execCPUAffinity.initial"),
    (process(execCPUAffinity={"final": "0-"}), "process.execCPUAffinity.final"),
    (process(capabilities={"bounding": ["CAP_FOO"]}), "process.capabilities.bounding[0]"),
    (process(capabilities={"bounding": ["CHOWN"]}), "process.capabilities.bounding[0]"),
    (process(capabilities={"effective": ["CAP_KILL"]}), "process.capabilities.effective[0]"),
    (
        process(capabilities={"permitted": ["CAP_KILL"], "ambient": ["CAP_KILL"]}),
        "process.capabilities.ambient[0]",
    ),
    (spec(root={"path": 1}), "root.path"),
    (spec(domainname="a b"), "domainname"),
    (mount(options="ro"), "mounts[0].options"),
    (mount(uidMappings=MAPS), "mounts[0]"),
    (mount(uidMappings=[{}], gidMappings=MAPS), "mounts[0].uidMappings[0].containerID"),
    (linux(uidMappings=MAPS), "linux.uidMappings"),
    (linux(namespaces=USERS, uidMappings=MAPS), "linux.gidMappings"),
    (linux(namespaces=USERS, uidMappings=[{**MAPS[0], "size": 0}]), "linux.uidMappings[0].size"),
    (linux(namespaces=USERS, uidMappings=[{"size": 1}]), "linux.uidMappings[0].containerID"),
    (linux(timeOffsets={"boottime": {"secs": 1}}), "linux.timeOffsets"),
    (
        linux(namespaces=[*USERS[:1], {"type": "time"}], timeOffsets={"realtime": {}}),
        "linux.timeOffsets.realtime",
    ),
    (
        linux(
            namespaces=[*USERS[:1], {"type": "time"}],
            timeOffsets={"boottime": {"nanosecs": 10**9}},
        ),
        "linux.timeOffsets.boottime.nanosecs",
    ),
    (linux(rootfsPropagation="rprivat"), "linux.rootfsPropagation"),
    (linux(personality={}), "linux.personality.domain"),
    (linux(personality={"domain": "LINUX64"}), "linux.personality.domain"),
    (linux(mountLabel=5), "linux.mountLabel"),
    (linux(cgroupsPath=5), "linux.cgroupsPath"),
    (linux(intelRdt={"enableCMT": 1}), "linux.intelRdt.enableCMT"),
    (linux(seccomp={}), "linux.seccomp.defaultAction"),
    (seccomp(defaultAction="ALLOW"), "linux.seccomp.defaultAction"),
    (seccomp(defaultErrnoRet=-1), "linux.seccomp.defaultErrnoRet"),
    (seccomp(architectures=["X86"]), "linux.seccomp.architectures[0]"),
    (seccomp(flags=["TSYNC"]), "linux.seccomp.flags[0]"),
    (seccomp(syscalls=[LISTENER]), "linux.seccomp.syscalls[0].action"),
    (call(names=[]), "linux.seccomp.syscalls[0].names"),
    (call(errnoRet="EPERM"), "linux.seccomp.syscalls[0].errnoRet"),
    (
        call(args=[{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]),
        "linux.seccomp.syscalls[0].args[0].index",
    ),
    (call(args=[{"index": 1, "value": 1, "op": "=="}]), "linux.seccomp.syscalls[0].args[0].op"),
    (resources(memory={"limit": "1g"}), "linux.resources.memory.limit"),
    (resources(memory={"limit": 2**63}), "linux.resources.memory.limit"),
    (resources(memory={"limit": 2, "swap": 1}), "linux.resources.memory.swap"),
    (resources(memory={"disableOOMKiller": 1}), "linux.resources.memory.disableOOMKiller"),
    (resources(cpu={"shares": -1}), "linux.resources.cpu.shares"),
    (resources(cpu={"cpus": "0,x"}), "linux.resources.cpu.cpus"),
    (resources(pids={"limit": 1.5}), "linux.resources.pids.limit"),
    (resources(blockIO={"weight": 2**16}), "linux.resources.blockIO.weight"),
    (
        resources(blockIO={"throttleReadBpsDevice": [{"major": 8, "minor": 0}]}),
        "linux.resources.blockIO.throttleReadBpsDevice[0].rate",
    ),
    (
        resources(hugepageLimits=[{"pageSize": "../x", "limit": 1}]),
        "linux.resources.hugepageLimits[0].pageSize",
    ),
    (resources(unified={"memory.max": 5}), "linux.resources.unified.memory.max"),
    (linux(sysctl={"kernel.msgmax": 5}), "linux.sysctl.kernel.msgmax"),
]


@pytest.mark.parametrize(("data", "place"), BAD_MEMBERS)
def test_members_of_another_shape_are_refused_by_their_place(data: bytes, place: str) -> None:
    """Ranges are the specification's: 64 bits where it says so, and the kernel's where not."""
    with pytest.raises(AgentError) as caught:
        parse_spec(data)
    assert (caught.value.reason, caught.value.fields["path"]) == (Reason.BAD_SPEC, place)


NOT_DONE = [
    (linux(memoryPolicy={"mode": "MPOL_BIND"}), "linux.memoryPolicy"),
    (
        linux(personality={"domain": "LINUX", "flags": ["ADDR_NO_RANDOMIZE"]}),
        "linux.personality.flags",
    ),
    (
        linux(
            namespaces=[*USERS, {"type": "time"}],
            uidMappings=MAPS,
            gidMappings=MAPS,
            timeOffsets={"boottime": {"secs": 1}},
        ),
        "linux.timeOffsets",
    ),
    (resources(rdma={"mlx5_1": {"hcaHandles": 3}}), "linux.resources.rdma"),
    (resources(network={"classID": 1}), "linux.resources.network"),
    (resources(memory={"kernel": 1}), "linux.resources.memory.kernel"),
    (resources(memory={"swappiness": 0}), "linux.resources.memory.swappiness"),
    (resources(memory={"disableOOMKiller": True}), "linux.resources.memory.disableOOMKiller"),
    (resources(cpu={"realtimeRuntime": 950000}), "linux.resources.cpu.realtimeRuntime"),
    (resources(blockIO={"leafWeight": 10}), "linux.resources.blockIO.leafWeight"),
]


@pytest.mark.parametrize(("data", "place"), NOT_DONE)
def test_what_the_runtime_would_leave_out_is_refused(data: bytes, place: str) -> None:
    """crun 1.21 says nothing of the first, EACCES of the clocks, and of limits that cgroup v2
    has none."""
    with pytest.raises(AgentError) as caught:
        parse_spec(data)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert (caught.value.reason, caught.value.fields["path"]) == (Reason.NOT_SUPPORTED, place)


@pytest.mark.parametrize(
    "data",
    [
        resources(memory={"limit": -1, "swap": -1, "reservation": 2**63 - 1}),
        resources(memory={"kernel": -1, "useHierarchy": False, "kernelTCP": 0}),
        resources(cpu={"quota": -1, "cpus": "", "mems": "0-3,8", "idle": 1}, pids={"limit": -1}),
        resources(rdma={}, network={}, hugepageLimits=[{"pageSize": "2MB", "limit": 2**64 - 1}]),
        process(rlimits=[limit(hard=2**64 - 1)], oomScoreAdj=-1000, user={"umask": 0o777}),
        process(execCPUAffinity={"initial": "0-3,5", "final": ""}, scheduler=SCHEDULER),
        seccomp(syscalls=[LISTENER], listenerPath="/run/seccomp.sock"),
        linux(namespaces=USERS, uidMappings=MAPS, gidMappings=MAPS),
        linux(namespaces=[*USERS[:1], {"type": "user", "path": "/run/ns/user"}]),
        linux(rootfsPropagation="", mountLabel="", timeOffsets={}, uidMappings=[]),
        spec(ociVersion="1.0.0-rc5"),
        spec(ociVersion="1.3.0"),
        spec(windows=None, process={"args": ["sh"], "commandLine": "x"}, unknown={"a": [1]}),
    ],
)
def test_what_the_specification_allows_is_fine(data: bytes) -> None:
    completed(data)


def test_limits_of_cgroup_v1_that_are_none_are_not_passed_on() -> None:
    """The specification's own example has kernel -1; crun 1.21 refuses it on cgroup v2."""
    given = {
        "memory": {"limit": 5, "kernel": -1, "kernelTCP": 0, "disableOOMKiller": False},
        "cpu": {"realtimeRuntime": 0},
        "network": {},
        "pids": None,
    }
    kept = {"memory": {"limit": 5}, "cpu": {}}
    assert completed(resources(**given))["linux"]["resources"] == kept
    assert parse_resources(json.dumps(given).encode()) == kept


@pytest.mark.parametrize(
    "name", ["x" * 64, "a b", "x\n127.0.0.1 evil", "", "-a", "a-", "\u00e9", ".", "a..b", "a_b"]
)
def test_a_host_name_is_one(name: str) -> None:
    """It gets into files of the container, where a second line would be an entry of its own."""
    with pytest.raises(AgentError) as caught:
        parse_spec(spec(hostname=name))
    assert (caught.value.reason, caught.value.fields["path"]) == (Reason.BAD_SPEC, "hostname")


@pytest.mark.parametrize("name", ["ok-1", "a" * 63, "1", "web-1.example.org"])
def test_host_names_of_rfc_1123(name: str) -> None:
    assert completed(spec(hostname=name))["hostname"] == name


SYSCTLS = [
    ("vm.swappiness", USERS[:1], "whole guest"),
    ("kernel.core_pattern", USERS[:1], "whole guest"),
    ("kernel.shm_next_id", [*USERS[:1], {"type": "ipc"}], "whole guest"),
    ("kernel.msgmax", USERS[:1], "no ipc namespace"),
    ("kernel.msgmax", [*USERS[:1], {"type": "ipc", "path": "/proc/1/ns/ipc"}], "no ipc"),
    ("kernel/msgmax", USERS[:1], "no ipc namespace"),
    ("fs.mqueue.msg_max", USERS[:1], "no ipc namespace"),
    ("kernel.domainname", USERS[:1], "no uts namespace"),
    ("kernel.hostname", None, "hostname"),
    ("net.ipv4.ip_forward", None, "no network namespace"),
    ("net/../kernel/core_pattern", [*USERS[:1], {"type": "network"}], "no name"),
    ("net...kernel", [*USERS[:1], {"type": "network"}], "no name"),
    ("net", [*USERS[:1], {"type": "network"}], "whole guest"),
    ("", None, "no name"),
]


@pytest.mark.parametrize(("name", "namespaces", "words"), SYSCTLS)
def test_a_container_sets_nothing_of_the_guests(name: str, namespaces: Any, words: str) -> None:
    with pytest.raises(AgentError, match=words) as caught:
        parse_spec(linux(sysctl={name: "1"}, namespaces=namespaces))
    assert caught.value.reason is Reason.BAD_SPEC
    assert caught.value.fields["path"] == f"linux.sysctl.{name}"


@pytest.mark.parametrize(
    ("name", "namespaces"),
    [
        ("kernel.msgmax", None),
        ("kernel.domainname", None),
        ("fs.mqueue.msg_max", [*USERS[:1], {"type": "ipc"}]),
        ("net.ipv4.ip_forward", [*USERS[:1], {"type": "network"}]),
        ("net/ipv4/conf/eth0.100/rp_filter", [*USERS[:1], {"type": "network", "path": ""}]),
    ],
)
def test_what_is_its_own_it_may_set(name: str, namespaces: Any) -> None:
    given = linux(sysctl={name: "1"}, namespaces=namespaces)
    assert completed(given)["linux"]["sysctl"] == {name: "1"}


def test_mounts_stay_shared_where_the_specification_is_silent_of_the_root() -> None:
    """crun 1.21 makes all of them private in the end, unless it is told otherwise of the root."""
    plain = {"destination": "/a", "type": "bind", "source": "/a", "options": ["bind", "ro"]}
    slave = {"destination": "/b", "type": "bind", "source": "/b", "options": ["rbind", "rslave"]}
    tmpfs = {"destination": "/c", "type": "tmpfs"}
    whole = completed(spec(mounts=[plain, slave, tmpfs]))
    assert whole["linux"]["rootfsPropagation"] == "private"
    assert whole["mounts"] == [{**plain, "options": ["bind", "ro", "rprivate"]}, slave, tmpfs]
    said = completed(spec(mounts=[plain, slave], linux={"rootfsPropagation": "rshared"}))
    assert said["mounts"] == [plain, slave]
    quiet = completed(spec(mounts=[plain, tmpfs]))
    assert "rootfsPropagation" not in quiet["linux"]
    assert quiet["mounts"] == [plain, tmpfs]


def test_names_of_profiles_that_are_empty_are_none() -> None:
    """crun 1.21 asks the kernel for the profile "", which refuses."""
    whole = completed(process(apparmorProfile="", selinuxLabel=""))["process"]
    assert not {"apparmorProfile", "selinuxLabel"} & whole.keys()
    later = exec_defaults({"args": ["ls"], "apparmorProfile": ""}, {"env": []})
    assert "apparmorProfile" not in later


def test_an_exec_is_scheduled_as_the_first_process() -> None:
    given = {"scheduler": SCHEDULER, "execCPUAffinity": {"final": "0"}}
    first = completed(process(**given))["process"]
    assert exec_defaults({"args": ["ls"]}, first).items() >= given.items()


@pytest.mark.parametrize("value", ["a\nb", "\u00e9", "\x01\x1f", "=x", ""])
def test_variables_may_come_twice(value: str) -> None:
    """They are left to the runtime, where the last one counts."""
    env = [f"A={value}", "A=2"]
    assert completed(process(env=env))["process"]["env"] == env


def test_variables_that_are_added_take_the_place_of_their_names() -> None:
    assert added(["A=1", "B=2", "A=3"], ["A=4", "C="]) == ["B=2", "A=4", "C="]
    assert added(["A=1"], []) == ["A=1"]


def test_of_the_group_itself_only_its_bounds_can_be_set() -> None:
    def asked(name: str) -> bytes:
        return json.dumps({"unified": {name: "7"}}).encode()

    for name in ("cgroup.max.depth", "cgroup.max.descendants"):
        assert parse_resources(asked(name)) == {"unified": {name: "7"}}
    for name in ("cgroup.procs", "cgroup.freeze", "cgroup.subtree_control", "cgroup.kill"):
        with pytest.raises(AgentError) as caught:
            parse_resources(asked(name))
        assert caught.value.reason is Reason.BAD_SPEC

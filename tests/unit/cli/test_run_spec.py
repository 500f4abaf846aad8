"""Each option of `innkeeper run` that is about the container, and the OCI that it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from innkeeper.cli import ocidefaults
from innkeeper.shim.client import VmSpec
from innkeeper.shim.guest_disk import DiskError
from tests.fakes.oci_layout import FakeLayout, member, tar_of
from tests.run_words import create, request, spec

pytestmark = [pytest.mark.unit, pytest.mark.operations]

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULTS = len(ocidefaults.mounts())


def of_process(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = spec(*words)["process"]
    return found


def of_linux(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = spec(*words)["linux"]
    return found


def resources(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = of_linux(*words)["resources"]
    return found


def added_mounts(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec(*words)["mounts"]
    assert found[:DEFAULTS] == ocidefaults.mounts()
    return found[DEFAULTS:]


def vm_of(*words: str) -> VmSpec:
    found = request(*words, "--", "app").spec
    assert found is not None
    return found


def test_what_was_not_said_is_left_to_the_guest() -> None:
    assert spec() == {
        "ociVersion": "1.1.0",
        "process": {"args": ["app"], "env": [PATH], "cwd": "/"},
    }


def test_the_process() -> None:
    words = ("-e", "A=1", "-e", "A=2", "-w", "/srv", "-u", "1000:50", "--entrypoint", "/init")
    assert of_process(*words) == {
        "args": ["/init", "app"],
        "env": [PATH, "A=2"],
        "cwd": "/srv",
        "user": {"uid": 1000, "gid": 50},
    }
    assert of_process("-u", "nobody:adm")["user"] == {"username": "nobody:adm"}


def test_variables_of_files_come_before_those_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("A=file\nB=file\n")
    assert of_process("-e", "A=line", "--env-file", f"{tmp_path}/env")["env"] == [
        PATH,
        "A=line",
        "B=file",
    ]


def test_cpus_are_a_quota_and_a_new_vm_has_as_many_rounded_up() -> None:
    """docker-run(1): --cpus is cpu-quota over a cpu-period of 100 ms."""
    assert resources("--cpus", "1.5") == {"cpu": {"quota": 150_000, "period": 100_000}}
    assert resources("--vm", "web", "--cpus", "0.25")["cpu"]["quota"] == 25_000
    assert [vm_of(*words).cpus for words in ((), ("--cpus", "1.5"), ("--cpus", "3"))] == [1, 2, 3]
    assert vm_of("--cpus", "1.5", "--vm-cpus", "4").cpus == 4
    assert vm_of("--cpuset-cpus", "0,2-3").cpus == 4
    assert resources("--cpuset-cpus", "0,2-3") == {"cpu": {"cpus": "0,2-3"}}


def test_memory_is_the_containers_and_a_new_vm_has_more() -> None:
    assert resources("-m", "1G") == {"memory": {"limit": 1 << 30}}
    assert resources("--memory", "512")["memory"]["limit"] == 512 << 20
    assert resources("--memory", "8388608b")["memory"]["limit"] == 8 << 20
    assert [
        vm_of(*words).memory >> 20
        for words in ((), ("-m", "64M"), ("-m", "1G"), ("-m", "8388609b"), ("--vm-memory", "1G"))
    ] == [512, 512, 1280, 512, 1024]
    memory = resources("-m", "64M", "--memory-swap", "96M", "--memory-reservation", "32M")
    assert memory["memory"] == {"limit": 64 << 20, "reservation": 32 << 20, "swap": 96 << 20}
    assert resources("-m", "64M", "--memory-swap", "-1")["memory"]["swap"] == -1


def test_pids_and_shared_memory() -> None:
    assert resources("--pids-limit", "20") == {"pids": {"limit": 20}}
    assert resources("--pids-limit", "-1") == {"pids": {"limit": -1}}
    (shm,) = [each for each in spec("--shm-size", "8M")["mounts"] if each["source"] == "shm"]
    assert shm["options"][-1] == "size=8388608"


def test_capabilities_are_added_to_and_dropped_from_the_usual_ones() -> None:
    def names(*words: str) -> set[str]:
        found = of_process(*words)["capabilities"]
        assert found["bounding"] == found["effective"] == found["permitted"]
        assert set(found) == {"bounding", "effective", "permitted"}
        return set(found["bounding"])

    usual = set(ocidefaults.CAPABILITIES)
    assert names("--cap-add", "net_admin") == usual | {"CAP_NET_ADMIN"}
    assert names("--cap-drop", "CAP_CHOWN", "--cap-drop", "kill") == usual - {
        "CAP_CHOWN",
        "CAP_KILL",
    }
    assert names("--cap-drop", "ALL") == set()
    assert names("--cap-drop", "ALL", "--cap-add", "CHOWN") == {"CAP_CHOWN"}
    everything = names("--cap-add", "ALL")
    assert len(everything) == 41
    assert names("--cap-add", "all", "--cap-drop", "SYS_MODULE") == everything - {"CAP_SYS_MODULE"}
    assert names("--privileged") == everything


def test_a_privileged_container_has_all_devices_and_nothing_masked() -> None:
    found = spec("--privileged")
    assert found["linux"] == {
        "maskedPaths": [],
        "readonlyPaths": [],
        "resources": {"devices": [{"allow": True, "access": "rwm"}]},
    }
    by_place = {each["destination"]: each["options"] for each in found["mounts"]}
    assert "ro" not in by_place["/sys"] + by_place["/sys/fs/cgroup"]
    assert request("--privileged", "--", "app").all_devices


def test_security_options(tmp_path: Path) -> None:
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    option = "--security-opt"
    assert of_process(option, "no-new-privileges")["noNewPrivileges"] is True
    assert of_process(option, "no-new-privileges:true")["noNewPrivileges"] is True
    assert of_process(option, "apparmor=mine")["apparmorProfile"] == "mine"
    assert of_linux(option, f"seccomp={tmp_path}/profile.json")["seccomp"] == profile
    assert of_linux(option, "systempaths=unconfined") == {"maskedPaths": [], "readonlyPaths": []}
    assert "linux" not in spec(option, "seccomp=unconfined", option, "apparmor=unconfined")


def test_ulimits_keep_the_usual_number_of_files() -> None:
    """A list in OCI is the whole list."""
    usual = {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 524288}
    core = {"type": "RLIMIT_CORE", "soft": 0, "hard": 2**64 - 1}
    assert of_process("--ulimit", "core=0:unlimited")["rlimits"] == [core, usual]
    files = {"type": "RLIMIT_NOFILE", "soft": 64, "hard": 64}
    assert of_process("--ulimit", "nofile=64")["rlimits"] == [files]


def test_sysctls_and_a_network_of_its_own() -> None:
    assert of_linux("--sysctl", "kernel.shmmax=100") == {"sysctl": {"kernel.shmmax": "100"}}
    linux = of_linux("--network", "own", "--sysctl", "net.ipv4.ip_forward=1")
    assert linux["sysctl"] == {"net.ipv4.ip_forward": "1"}
    kinds = [each["type"] for each in linux["namespaces"]]
    assert kinds == ["pid", "ipc", "uts", "mount", "cgroup", "network"]
    assert of_linux("--network", "none")["namespaces"] == linux["namespaces"]
    assert "linux" not in spec("--network", "host")


def test_namespaces_of_the_sandbox() -> None:
    words = ("--vm", "web", "--pid", "sandbox", "--ipc", "sandbox", "--uts", "sandbox")
    assert list(create(*words).shared_namespaces) == ["pid", "ipc", "uts"]
    assert list(create().shared_namespaces) == []


def test_root_host_name_and_init() -> None:
    assert spec("--read-only")["root"]["readonly"] is True
    assert spec("-h", "box")["hostname"] == "box"
    assert of_process("--init")["args"] == ["/dev/init", "--", "app"]
    (init,) = added_mounts("--init")
    assert init == {
        "destination": "/dev/init",
        "type": "bind",
        "source": "/usr/bin/catatonit",
        "options": ["bind", "ro"],
    }


def test_memory_as_a_mount() -> None:
    """Everybody may write there, as with docker, unless another mode is said."""
    (plain, sized) = added_mounts("--tmpfs", "/run", "--tmpfs", "/tmp:size=64M,mode=1777,exec")
    assert plain == {
        "destination": "/run",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", "noexec", "mode=1777"],
    }
    assert sized["options"] == ["nosuid", "nodev", "noexec", "size=67108864", "mode=1777", "exec"]
    (long,) = added_mounts("--mount", "type=tmpfs,dst=/tmp,tmpfs-size=1048576,tmpfs-mode=700,ro")
    assert long["options"][3:] == ["ro", "size=1048576", "mode=700"]


def test_directories_are_shared_and_names_are_storages(tmp_path: Path) -> None:
    bind = f"type=bind,source={tmp_path},target=/b,readonly"
    volume = "type=volume,src=conf,dst=/c"
    words = ("-v", f"{tmp_path}:/a", "--mount", bind, "-v", "data:/d:ro,z", "--mount", volume)
    found = request("--vm", "web", *words, "--", "app")
    assert [(each.what, each.mount, each.read_only) for each in found.shares] == [
        (str(tmp_path), "/a", False),
        (str(tmp_path), "/b", True),
    ]
    assert [(each.what, each.mount, each.read_only) for each in found.storages] == [
        ("data", "/d", True),
        ("conf", "/c", False),
    ]


def test_a_log_is_kept_of_what_nobody_follows() -> None:
    assert not create().HasField("streams")
    log = create("-d").streams.log
    assert (log.max_bytes, log.files) == (0, 0)
    log = create("--log-opt", "max-size=1M", "--log-opt", "max-file=3").streams.log
    assert (log.max_bytes, log.files) == (1 << 20, 3)


@pytest.mark.parametrize(
    ("words", "passed_on"),
    [((), True), (("-n",), False), (("-d",), False), (("-d", "-i"), True), (("-dt",), True)],
)
def test_input_is_passed_on_unless_nobody_is_there(
    words: tuple[str, ...], *, passed_on: bool
) -> None:
    assert request(*words, "--", "app").process.stdin is passed_on


def test_names() -> None:
    assert vm_of("--name", "box").name == "box"
    found = request("--vm", "web", "--name", "db", "--", "app")
    assert (found.spec, found.vm, found.container) == (None, "web", "db")
    assert request("--", "app").container == "main"
    assert request("--vm", "web", "--", "app").container.startswith("run-")


def test_a_vm_that_is_kept_is_not_tied_to_us() -> None:
    assert [vm_of(*words).tied for words in ((), ("--rm",), ("--keep",), ("-d",))] == [
        True,
        True,
        False,
        False,
    ]


def test_only_what_can_be_left_has_keys_for_it() -> None:
    """A VM that ends with its command can't be left."""
    words = [(), ("--keep",), ("--vm", "web"), ("--vm", "web", "--detach-keys", "")]
    assert [request(*each, "--", "app").keys for each in words] == [
        b"",
        b"\x10\x11",
        b"\x10\x11",
        b"",
    ]


def test_how_it_is_asked_to_end() -> None:
    assert request("--", "app").stop is None
    for word in ("SIGUSR1", "usr1", "10"):
        stop = request("--stop-signal", word, "--", "app").stop
        assert stop is not None
        assert (stop.signal, stop.timeout) == ("USR1", 10)
    stop = request("--stop-timeout", "3", "--", "app").stop
    assert stop is not None
    assert (stop.signal, stop.timeout) == ("TERM", 3)


def test_names_are_looked_up_where_the_new_vm_is_told_to() -> None:
    dns = request("--dns", "192.0.2.53", "--add-host", "db:2001:db8::7", "--", "app").dns
    assert dns is not None
    assert dns.servers == ["192.0.2.53"]
    assert dns.hosts is not None
    assert [(entry.address, *entry.names) for entry in dns.hosts] == [("2001:db8::7", "db")]
    assert request("--", "app").dns is None


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """An image that says all that one can of its container."""
    return image(
        tmp_path,
        {
            "Entrypoint": ["/bin/app"],
            "Cmd": ["serve"],
            "Env": ["PATH=/app", "A=image"],
            "WorkingDir": "/srv",
            "User": "app:adm",
            "StopSignal": "SIGQUIT",
        },
    )


def image(folder: Path, config: object) -> Path:
    made = FakeLayout(folder / "layout")
    made.add(tar_of(member("bin/app", b"")), name="latest")
    (manifest_at,) = made.manifests
    path = made.root / "blobs/sha256" / manifest_at["digest"].removeprefix("sha256:")
    manifest = json.loads(path.read_bytes())
    blob = made.root / "blobs/sha256" / manifest["config"]["digest"].removeprefix("sha256:")
    whole = {**json.loads(blob.read_bytes()), "config": config}
    manifest["config"] = made.blob(json.dumps(whole).encode())
    made.manifests = []
    made.describe(manifest, name="latest")
    return made.write()


def test_an_image_says_what_runs_in_it(layout: Path) -> None:
    """image-spec, config.md: Entrypoint, Cmd, Env, WorkingDir, User."""
    found = request("--rootfs", f"{layout}:latest")
    assert found.process.to_oci() == {
        "args": ["/bin/app", "serve"],
        "env": ["PATH=/app", "A=image"],
        "cwd": "/srv",
        "user": {"username": "app:adm"},
    }
    assert found.stop is None
    assert found.image == "latest"


def test_the_command_line_goes_before_the_image(layout: Path) -> None:
    words = ("-e", "A=line", "-w", "/", "-u", "0", "--stop-timeout", "1")
    found = request("--rootfs", str(layout), *words, "--", "check", "-v")
    assert found.process.to_oci() == {
        "args": ["/bin/app", "check", "-v"],
        "env": ["PATH=/app", "A=line"],
        "cwd": "/",
        "user": {"uid": 0, "gid": 0},
    }
    assert found.stop is not None
    assert found.stop.signal == "QUIT"
    other = request("--rootfs", str(layout), "--entrypoint", "sh", "--", "-c", "true")
    assert other.process.argv == ("sh", "-c", "true")
    assert request("--rootfs", str(layout), "--entrypoint", "", "--", "ls").process.argv == ("ls",)


def test_an_images_number_is_looked_up_for_its_group(tmp_path: Path) -> None:
    """image-spec: "if group is not specified, the default group ... of the given user in
    /etc/passwd ... from the container are applied", which only the guest can see."""
    found = request("--rootfs", str(image(tmp_path, {"User": "1000", "Cmd": ["app"]})))
    assert found.process.to_oci()["user"] == {"username": "1000"}


@pytest.mark.parametrize("config", [{"Env": "A"}, {"Cmd": [1]}, {"User": 5}, ["x"]])
def test_an_image_of_another_form_is_refused_before_a_vm_boots(
    tmp_path: Path, config: object
) -> None:
    with pytest.raises(DiskError, match="the image's configuration"):
        request("--rootfs", str(image(tmp_path, config)), "--", "app")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "write the command"),
        (("--cpus", "0"), "0.01 to 64"),
        (("--cpus", "65"), "0.01 to 64"),
        (("--cpus", "nan"), "0.01 to 64"),
        (("--cpus", "2", "--vm-cpus", "1"), "is more than --vm-cpus 1"),
        (("--cpuset-cpus", "0-1", "--vm-cpus", "1"), "the VM has CPUs 0 to 0"),
        (("--cpuset-cpus", "a"), "numbers of CPUs"),
        (("--memory", "1M"), "at least 6M"),
        (("--memory", "536870912"), "write 536870912b for bytes"),
        (("--memory", "512M", "--vm-memory", "512M"), "not less than --vm-memory"),
        (("--vm-memory", "64M"), "--vm-memory 64M: .*at least 192M"),
        (("--memory-swap", "1G"), "wants --memory"),
        (("-m", "1G", "--memory-swap", "512M"), "less than --memory"),
        (("-m", "64M", "--memory-reservation", "1G"), "is more than --memory"),
        (("--pids-limit", "-5"), "--pids-limit -5"),
        (("--cap-add", "NET_ADMNI"), "did you mean NET_ADMIN"),
        (("--cap-drop", "nothing-like-it"), "is no capability"),
        (("--security-opt", "label=disable"), "--security-opt label=disable"),
        (("--security-opt", "seccomp=/none"), "/none: No such file"),
        (("--ulimit", "files=1"), "names: as, core"),
        (("--ulimit", "nofile=4:2"), "above the hard one"),
        (("--sysctl", "vm.swappiness=1"), "is the guest's"),
        (("--sysctl", "net.ipv4.ip_forward=1"), "wants --network own"),
        (("--sysctl", "kernel.shmmax"), "NAME=VALUE"),
        (("--pid", "host"), "write own or sandbox"),
        (("--pid", "sandbox"), "wants --vm"),
        (("--vm", "web", "--pid", "sandbox", "--init"), "the sandbox's own init"),
        (("--vm", "web", "--uts", "sandbox", "-h", "x"), "the name is the sandbox's"),
        (("-h", "x" * 65), "at most 64 bytes"),
        (("-v", "data:/data"), "want --vm; a directory here is ./data"),
        (("-v", "/data"), "memory is --tmpfs"),
        (("-v", "/none/x:/data"), "-v /none/x: no such directory"),
        (("-v", "/etc/passwd:/data"), "is no directory"),
        (("-v", "/tmp:/data:shared"), "'shared' is none of"),
        (("--tmpfs", "tmp"), "MOUNT"),
        (("--tmpfs", "/tmp:huge=always"), "'huge=always' is none of"),
        (("--mount", "type=npipe,dst=/x"), "type is one of"),
        (("--mount", "type=bind,src=x,dst=/x"), "source is a path, as in ./x"),
        (("--mount", "type=bind,src=/tmp,dst=x"), "target is an absolute path"),
        (("--mount", "type=bind,src=/tmp,dst=/x,tmpfs-size=1"), "size is nothing for bind"),
        (("--mount", "type=bind,from=/tmp,dst=/x"), "'from' is none of"),
        (("--device", "gpu0"), "want --vm"),
        (("--device", "nvidia.com/gpu=0"), "not built yet"),
        (("--rootfs", "storage:x"), "wants --vm"),
        (("--rootfs", "none"), "no such file"),
        (("--rm", "-d"), "nobody is there"),
        (("--stop-signal", "SIGNOT"), "is no signal"),
        (("--log-opt", "tag=x"), "max-size=SIZE or max-file=N"),
        (("--log-opt", "max-file=17"), "1 to 16"),
        (("--dns", "here"), "is no IP address"),
        (("--add-host", "db"), "NAME:IP"),
        (("-p", "80", "--network", "own"), "-L PORT:main@PORT"),
        (("--vm", "web", "--name", "../x"), "a container's id"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else None,
)
def test_what_can_be_known_is_refused_before_a_vm_boots(words: tuple[str, ...], why: str) -> None:
    command = () if not words else ("--", "app")
    with pytest.raises(typer.BadParameter, match=why):
        request(*words, *command)


def test_a_profile_of_dockers_own_form_is_refused(tmp_path: Path) -> None:
    """What its daemon would resolve, the runtime would ignore."""
    file = tmp_path / "default.json"
    for profile, why in (
        ({"defaultAction": "SCMP_ACT_ERRNO", "archMap": []}, "archMap is docker's own"),
        ({"defaultAction": "X", "syscalls": [{"includes": {"caps": ["X"]}}]}, "includes"),
        ({}, "no defaultAction"),
    ):
        file.write_text(json.dumps(profile))
        with pytest.raises(typer.BadParameter, match=why):
            request("--security-opt", f"seccomp={file}", "--", "app")

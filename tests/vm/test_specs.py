"""OCI specifications under the real crun: what the process itself sees of them.

Each container or exec shows many members at once: what it prints is in parts, one for each.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc import aio

from innkeeper.v1 import containers_pb2 as containers
from tests.vm.guest import EVERYTHING, PATH, Finished, Guest, create_request, reason
from tests.vm.observer import Observer, observing
from tests.vm.test_containers import added, done, ref

pytestmark = [pytest.mark.vm, pytest.mark.containers]

NAMESPACES = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")]
USER = {"type": "user"}
MAPS = [{"containerID": 0, "hostID": 100_000, "size": 65_536}]
OWN_USERS = {"namespaces": [*NAMESPACES, USER], "uidMappings": MAPS, "gidMappings": MAPS}
PROC = {"destination": "/proc", "type": "proc", "source": "proc"}
PYTHON = [
    {"destination": where, "type": "bind", "source": source, "options": ["rbind", "ro"]}
    for where, source in {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}.items()
]
"""The guest's own interpreter, for what busybox can't ask for."""


@pytest_asyncio.fixture(loop_scope="session")
async def observer(guest: Guest) -> AsyncIterator[Observer]:
    async with observing(guest) as running:
        yield running


def script(**parts: str) -> str:
    """Commands that say each part under its name, errors too."""
    said = [f"echo '##' {name}; {{ {command}\n}} 2>&1" for name, command in parts.items()]
    return "\n".join((*said, "true"))


def parts(finished: Finished) -> dict[str, str]:
    """What was said of each part."""
    assert finished.code == 0, finished
    found = [part.partition("\n") for part in finished.text.split("## ")[1:]]
    return {name: said.strip() for name, _, said in found}


async def seen(guest: Guest, commands: dict[str, str], **spec: Any) -> dict[str, str]:
    """What a container of that specification says; members beside `linux` and so on too."""
    return parts(await run(guest, script(**commands), **spec))


async def run(guest: Guest, commands: str, **spec: Any) -> Finished:
    known = {name: spec.pop(name) for name in ("mounts", "linux", "process") if name in spec}
    request = create_request("spec", commands, **known)
    request.spec = json.dumps(json.loads(request.spec) | spec).encode()
    await guest.containers.Create(request)
    try:
        await guest.containers.Start(containers.StartContainerRequest(id="spec"))
        return await guest.follow(ref("spec"))
    finally:
        await guest.remove("spec")


# The process.

STATUS = "cat /proc/self/status"


def status(text: str) -> dict[str, str]:
    return {
        name: value.strip() for name, _, value in (line.partition(":") for line in text.split("\n"))
    }


def bits(*numbers: int) -> str:
    return f"{sum(1 << number for number in numbers):016x}"


CHOWN, KILL, SETUID, NET_RAW = 0, 5, 7, 13

PROCESS = {
    "user": {"uid": 1000, "gid": 1001, "umask": 0o27, "additionalGids": [7, 8]},
    "capabilities": {
        "bounding": ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_SETUID"],
        "permitted": ["CAP_CHOWN", "CAP_KILL"],
        "effective": ["CAP_CHOWN", "CAP_KILL"],
        "inheritable": ["CAP_KILL"],
        "ambient": ["CAP_KILL"],
    },
    "rlimits": [
        {"type": "RLIMIT_NOFILE", "soft": 77, "hard": 88},
        {"type": "RLIMIT_CORE", "soft": 0, "hard": 2**64 - 1},
    ],
    "noNewPrivileges": True,
    "oomScoreAdj": 321,
    "scheduler": {"policy": "SCHED_BATCH", "nice": 5},
    "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 2},
    "cwd": "/var/made/for/it",
    "env": [PATH, "A=1"],
}
ASK_OF_PROCESS = {
    "id": "id",
    "umask": "umask",
    "status": STATUS,
    "limits": "cat /proc/self/limits",
    "oom": "cat /proc/self/oom_score_adj",
    "sched": "cut -d' ' -f19,40,41 /proc/self/stat",
    "ioprio": "ionice",
    "cwd": "pwd",
}


async def test_a_process_is_as_it_was_asked_for(guest: Guest) -> None:
    """And so is one that comes later, where its own words are silent."""
    name = await guest.start(script(**ASK_OF_PROCESS) + "\nsleep 300", process=PROCESS)
    later = parts(await done(guest, name, script(**ASK_OF_PROCESS), cwd=PROCESS["cwd"]))
    await guest.remove(name)
    first = await seen(guest, ASK_OF_PROCESS, process=PROCESS)
    for said in (first, later):
        assert said["id"] == "uid=1000 gid=1001 groups=7,8"
        assert said["umask"] == "0027"
        of = status(said["status"])
        assert of["CapBnd"] == bits(CHOWN, KILL, SETUID, NET_RAW)
        assert of["CapInh"] == of["CapAmb"] == bits(KILL)
        # A program of a user who is not root starts with the ambient ones (capabilities(7)).
        assert of["CapPrm"] == of["CapEff"] == bits(KILL)
        assert of["NoNewPrivs"] == "1"
        limits = [line.split() for line in said["limits"].splitlines()]
        assert ["Max", "open", "files", "77", "88", "files"] in limits
        assert ["Max", "core", "file", "size", "0", "unlimited", "bytes"] in limits
        # Nice, real-time priority and policy: SCHED_BATCH is 3 (sched(7)).
        assert said["sched"] == "5 0 3"
        assert said["ioprio"] == "best-effort: prio 2"
        assert said["cwd"] == "/var/made/for/it"
    assert (first["oom"], later["oom"]) == ("321", "321")


async def test_an_execs_own_words_win(guest: Guest) -> None:
    """What is in force for all of a container stays: its profile, its personality."""
    linux = {
        "personality": {"domain": "LINUX32"},
        "seccomp": {
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
        },
    }
    own = {
        "user": {"uid": 5, "gid": 6},
        "scheduler": {"policy": "SCHED_OTHER"},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 55, "hard": 55}],
        "noNewPrivileges": False,
        "oomScoreAdj": 123,
        # Two CPUs are in the shared guest: the first for the start, the second from then on.
        "execCPUAffinity": {"initial": "0", "final": "1"},
        "capabilities": {"bounding": ["CAP_CHOWN"]},
    }
    name = await guest.start("sleep 300", process=PROCESS, linux=linux)
    more = {"cpus": "grep Cpus_allowed_list /proc/self/status", "machine": "uname -m"}
    said = parts(await done(guest, name, script(**ASK_OF_PROCESS, **more, dir="mkdir /q"), **own))
    await guest.remove(name)
    assert said["id"] == "uid=5 gid=6"
    of = status(said["status"])
    assert (of["CapBnd"], of["CapEff"], of["NoNewPrivs"]) == (bits(CHOWN), bits(), "0")
    assert said["sched"].split()[-1] == "0"
    assert ["Max", "open", "files", "55", "55", "files"] in [
        line.split() for line in said["limits"].splitlines()
    ]
    assert said["oom"] == "123"
    assert said["cpus"].split()[-1] == "1"
    assert said["machine"] == "i686"
    assert "Operation not permitted" in said["dir"]


async def test_the_first_process_is_no_exec(guest: Guest) -> None:
    """execCPUAffinity is for those that come later (config.md)."""
    process = {"execCPUAffinity": {"final": "1"}}
    name = await guest.start("grep Cpus_allowed_list /proc/self/status; sleep 300", process=process)
    said = (await done(guest, name, "grep Cpus_allowed_list /proc/self/status /proc/1/status")).text
    await guest.remove(name)
    assert [line.split()[-1] for line in said.splitlines()] == ["1", "0-1"]


async def test_a_terminal_has_its_size_from_the_start(guest: Guest) -> None:
    process = {"terminal": True, "consoleSize": {"height": 33, "width": 77}}
    assert (await guest.run("stty size", process=process)).text.strip() == "33 77"


async def test_variables_of_all_sorts(guest: Guest) -> None:
    """Values outside printable ASCII came out mangled elsewhere; of two the last counts."""
    odd = ["LINE=a\nb", "E=é", "CONTROL=\x01\x1b\x1f", "EQUAL==x", "EMPTY=", "TWICE=1", "TWICE=2"]
    finished = await guest.run("cat /proc/$$/environ; true", process={"env": [PATH, *odd]})
    given = finished.stdout.decode().split("\0")
    assert given[: len(odd)] == [PATH, *(entry for entry in odd if entry != "TWICE=1")]


async def test_big_specifications(guest: Guest) -> None:
    """More than 10 KiB once hung, and more than 4 MiB can't be passed to any program."""
    env = [PATH, *(f"V{number}={'x' * 100}" for number in range(8000))]
    long = {"args": ["sh", "-c", "env | grep -c ^V; echo ${#1}", "sh", "y" * 131_071], "env": env}
    assert (await guest.run("", process=long)).text.split() == ["8000", "131071"]
    for size in (4 << 20, 15 << 20):
        process = {"env": [f"V{number}={'x' * 65_000}" for number in range(size // 65_000)]}
        error = await refusal(guest, process=process)
        assert (error.code(), reason(error)) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_SPEC")
        assert "E2BIG" in (error.details() or "")


# Users by name.


async def test_users_by_name_are_the_containers_own(guest: Guest) -> None:
    """In an exec with what is mounted there, and what the container has written since."""
    first = await run(guest, "id; echo $HOME", process={"user": {"username": "nobody:tty"}})
    assert first.text.split("\n")[:2] == ["uid=65534(nobody) gid=5(tty)", "/nonexistent"]
    name = await guest.start(
        "echo web:x:77:78::/srv: >>/etc/passwd; echo extra:x:90:web >>/etc/group; sleep 300",
        process={"user": {"username": "root"}},
    )
    wanted = {
        "web": "uid=77(web) gid=78 groups=90(extra)",
        "77": "uid=77(web) gid=78 groups=90(extra)",
        "web:extra": "uid=77(web) gid=90(extra)",
        "4000": "uid=4000 gid=0(root)",
        "4000:4001": "uid=4000 gid=4001",
    }
    for username, expected in wanted.items():
        said = await done(guest, name, "id", user={"username": username, "additionalGids": []})
        assert said.text.strip() == expected, username
    assert (await done(guest, name, "echo $HOME", user={"username": "web"})).text == "/srv\n"
    for username in ("wob", "web:wheel", "4294967295"):
        with pytest.raises(aio.AioRpcError) as caught:
            await added(guest, name, "id", user={"username": username})
        assert reason(caught.value) == "UNKNOWN_USER"
    await guest.remove(name)


async def test_a_hostile_passwd_hangs_nobody(guest: Guest) -> None:
    """A FIFO that nobody writes to, a file without end, a way out of the root.

    The runtime itself looks there for HOME, unless it is given.
    """
    name = await guest.start("sleep 300", process={"env": [PATH, "HOME=/"]})
    for trap in (
        "mkfifo /etc/passwd",
        "truncate -s 1T /etc/passwd",
        "mkdir /etc/passwd",
        "ln -s /proc/1/root/etc/shadow /etc/passwd",
    ):
        await done(guest, name, f"rm -rf /etc/passwd; {trap}")
        with pytest.raises(aio.AioRpcError) as caught:
            await added(guest, name, "id", user={"username": "root"})
        assert (caught.value.code(), reason(caught.value)) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "UNKNOWN_USER",
        ), trap
    await guest.remove(name)


# Namespaces.


async def test_namespaces_of_its_own(guest: Guest) -> None:
    kinds = ("network", "time")
    linux = {
        "namespaces": [*NAMESPACES, *({"type": kind} for kind in kinds)],
        "timeOffsets": {
            "boottime": {"secs": 1_000_000, "nanosecs": 5},
            "monotonic": {"secs": -3},
        },
        "sysctl": {
            "kernel.msgmax": "7777",
            "fs.mqueue.msg_max": "9",
            "net.ipv4.ip_forward": "1",
            "net/core/somaxconn": "77",
            "kernel.domainname": "by-sysctl",
        },
    }
    said = await seen(
        guest,
        {
            "host": "hostname; cat /proc/sys/kernel/domainname",
            "offsets": "cat /proc/self/timens_offsets",
            "uptime": "cut -d. -f1 /proc/uptime",
            "sysctls": "cd /proc/sys; cat kernel/msgmax fs/mqueue/msg_max net/ipv4/ip_forward"
            " net/core/somaxconn",
            "links": "ls /sys/class/net",
            "first": "echo $$",
        },
        linux=linux,
        hostname="ok-1",
    )
    assert said["host"] == "ok-1\nby-sysctl"
    offsets = [line.split() for line in said["offsets"].splitlines()]
    assert offsets == [["monotonic", "-3", "0"], ["boottime", "1000000", "5"]]
    assert int(said["uptime"]) > 1_000_000
    assert said["sysctls"].split() == ["7777", "9", "1", "77"]
    assert (said["links"], said["first"]) == ("lo", "1")
    there = "cd /guest/proc/sys/kernel; cat msgmax domainname; cat ../net/ipv4/ip_forward"
    assert "7777" not in await guest.probe(there)


async def test_a_container_with_users_of_its_own(guest: Guest) -> None:
    """Its root is read, its masks and devices are there, and it is nobody outside."""
    source = {"type": "bind", "source": "/usr/lib/innkeeper"}
    bound = {**source, "destination": "/bound", "options": ["rbind", "ro"]}
    mapped = {**source, "destination": "/mapped", "options": ["rbind", "ro", "idmap"]}
    said = await seen(
        guest,
        {
            "maps": "cat /proc/self/uid_map /proc/self/gid_map",
            "id": "id",
            "root": "head -1 /etc/passwd",
            "masks": "ls /sys/firmware /proc/acpi; head -c 1 /proc/kcore | wc -c",
            "null": "echo x >/dev/null && echo written",
            "outside": "stat -c '%u %g' /bound /mapped",
            "mounts": "grep -c ' / /bound \\| /bound ' /proc/self/mountinfo",
            "power": "echo 1 >/proc/sys/kernel/hostname || true",
            "status": STATUS,
        },
        linux=OWN_USERS,
        mounts=[*DEFAULT_MOUNTS, bound, mapped],
    )
    assert [line.split() for line in said["maps"].splitlines()] == [["0", "100000", "65536"]] * 2
    assert said["id"].startswith("uid=0(root) gid=0(root)")
    assert said["root"].startswith("root:x:0:0:")
    assert said["masks"].split() == ["/proc/acpi:", "/sys/firmware:", "0"]
    assert said["null"] == "written"
    # The guest's root is nobody here (user_namespaces(7)); an idmapped mount makes it root.
    assert said["outside"].splitlines() == ["65534 65534", "0 0"]
    assert "Read-only file system" in said["power"]


DEFAULT_MOUNTS: list[dict[str, Any]] = [
    PROC,
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "ro"]},
]


# Mounts.

APART = ["bind", "unbindable"]


async def test_mounts_have_their_options(guest: Guest) -> None:
    mounts = [
        *DEFAULT_MOUNTS,
        {
            "destination": "/t",
            "type": "tmpfs",
            "source": "t",
            "options": ["size=64k", "mode=700", "noexec", "nosuid", "nodev"],
        },
        {"destination": "/etc", "type": "tmpfs", "source": "t", "options": ["tmpcopyup"]},
        # The guest's own tree: what is mounted below becomes read-only as well.
        {"destination": "/rro", "type": "bind", "source": "/", "options": ["rbind", "rro"]},
        {"destination": "/ro", "type": "bind", "source": "/", "options": ["rbind", "ro"]},
        {"destination": "/shared", "type": "bind", "source": "/usr", "options": ["bind", "shared"]},
        {"destination": "/apart", "type": "bind", "source": "/usr", "options": APART},
        {
            "destination": "/mapped",
            "type": "bind",
            "source": "/usr",
            "options": ["bind", "idmap"],
            "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
            "gidMappings": [{"containerID": 0, "hostID": 1001, "size": 1}],
        },
    ]
    said = await seen(
        guest,
        {
            "mounts": "cat /proc/self/mountinfo",
            "etc": "cat /etc/passwd | head -1; echo x >/etc/new && cat /etc/new",
            "mapped": "stat -c '%u %g' /mapped",
            "root": "touch /x",
        },
        mounts=mounts,
        root={"readonly": True},
    )
    table = {line.split()[4]: line for line in said["mounts"].splitlines()}
    assert table["/t"].split()[5] == "rw,nosuid,nodev,noexec,relatime"
    assert "size=64k" in table["/t"]
    assert "mode=700" in table["/t"]
    assert table["/rro"].split()[5].startswith("ro,")
    assert table["/rro/run"].split()[5].startswith("ro,")
    assert table["/ro"].split()[5].startswith("ro,")
    assert table["/ro/run"].split()[5].startswith("rw,")
    # Before " - " are the optional fields (proc_pid_mountinfo(5)).
    assert " shared:" in table["/shared"].partition(" - ")[0]
    assert " unbindable" in table["/apart"].partition(" - ")[0]
    others = [line.partition(" - ")[0] for path, line in table.items() if path != "/shared"]
    assert not any(" shared:" in line or " master:" in line for line in others)
    assert said["etc"].splitlines() == ["root:x:0:0:root:/root:/bin/sh", "x"]
    assert said["mapped"] == "1000 1001"
    assert "Read-only file system" in said["root"]


async def test_masked_and_read_only_paths(guest: Guest) -> None:
    """Directories too: they were left as they are in other agents. What is not there is fine."""
    linux = {
        "maskedPaths": ["/etc", "/proc/timer_list", "/sys/firmware", "/not/there"],
        "readonlyPaths": ["/proc/sys", "/root", "/not/there"],
    }
    said = await seen(
        guest,
        {
            "etc": "ls -A /etc; cat /etc/passwd; touch /etc/x",
            "timers": "wc -c </proc/timer_list",
            "firmware": "ls -A /sys/firmware",
            "sys": "echo x >/proc/sys/kernel/domainname",
            "root": "touch /root/x",
            "usual": "head -c 1 /proc/kcore | wc -c",
        },
        linux=linux,
        process={"capabilities": EVERYTHING},
    )
    assert "No such file" in said["etc"]
    assert "Read-only file system" in said["etc"]
    assert said["etc"].count("\n") == 1
    assert (said["timers"], said["firmware"]) == ("0", "")
    assert "Read-only file system" in said["sys"]
    assert "Read-only file system" in said["root"]
    # The host's list stands in the place of the usual one.
    assert said["usual"] == "1"


# seccomp.


async def test_profiles(guest: Guest) -> None:
    """ERRNO without a number is EPERM; it was 0, so that a refused call seemed to succeed."""
    rules = [
        {"names": ["mkdir", "mkdirat", "no_such_call"], "action": "SCMP_ACT_ERRNO"},
        {"names": ["rmdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28},
        {
            "names": ["fchmodat", "chmod"],
            "action": "SCMP_ACT_ERRNO",
            "args": [{"index": 2, "value": 0o700, "op": "SCMP_CMP_EQ"}],
        },
        {"names": ["symlink", "symlinkat"], "action": "SCMP_ACT_KILL_PROCESS"},
    ]
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW"],
        "syscalls": rules,
    }
    said = await seen(
        guest,
        {
            "mkdir": "mkdir /q",
            "rmdir": "rmdir /mnt",
            "chmod": "touch /f; chmod 755 /f && stat -c %a /f",
            "link": "ln -s /a /b; echo $?",
            "status": STATUS,
        },
        linux={"seccomp": profile},
    )
    assert "Operation not permitted" in said["mkdir"]
    assert "No space left on device" in said["rmdir"]
    assert said["chmod"] == "755"
    assert said["link"].split()[-1] == str(128 + 31)
    # Its own and the one that all of the guest's containers have.
    assert status(said["status"])["Seccomp_filters"] == "2"


# No container reaches AF_VSOCK.

VSOCK = 40
WAYS_AROUND = f"""
import ctypes, errno, mmap, os, platform, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*map(ctypes.c_ulong, arguments))
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def in_child(what):
    "What SIGSYS ends, ends a child: its code is the errno, less than 0 the signal."
    child = os.fork()
    if not child:
        os._exit(what())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return errno.errorcode.get(code, "ok") if code >= 0 else signal.Signals(-code).name
def x32(family):
    result = libc.syscall(*map(ctypes.c_ulong, (0x40000000 + 41, family, 1, 0)))
    return 0 if result >= 0 else ctypes.get_errno()
def i386():
    # push rbx; mov eax, 359 (socket); mov ebx, 40; mov ecx, 1; xor edx, edx; int 0x80; pop; ret
    code = bytes.fromhex("53 b867010000 bb28000000 b901000000 31d2 cd80 5b c3")
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    return 0 if result >= 0 else -result
print("high bits", call(41, (1 << 32) + {VSOCK}, 1, 0))
print("all bits", call(41, (0xffffffff << 32) + {VSOCK}, 1, 0))
print("x32", in_child(lambda: x32({VSOCK})))
print("x32 unix", in_child(lambda: x32(1)))
print("i386", in_child(i386))
print("io_uring", call(425, 8, 0))
print("pair", call(53, {VSOCK}, 1, 0, ctypes.addressof((ctypes.c_int * 2)())))
print("unix", call(41, 1, 1, 0))
"""


@pytest.mark.parametrize(
    "profile",
    [
        None,
        {"defaultAction": "SCMP_ACT_ALLOW"},
        {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "syscalls": [
                {"names": ["socket", "io_uring_setup"], "action": "SCMP_ACT_LOG"},
                {
                    "names": ["socket"],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [{"index": 0, "value": VSOCK, "op": "SCMP_CMP_EQ"}],
                },
            ],
        },
    ],
)
async def test_no_profile_lets_vsock_through(guest: Guest, profile: dict[str, Any] | None) -> None:
    """Neither of its own, nor with all capabilities, by other call numbers or without a call."""
    process = {"args": ["/usr/bin/python3", "-IS", "-c", WAYS_AROUND], "capabilities": EVERYTHING}
    linux = {"seccomp": profile} if profile else {}
    finished = await guest.run("", process=process, linux=linux, mounts=[*DEFAULT_MOUNTS, *PYTHON])
    said = dict(line.rsplit(" ", 1) for line in finished.text.splitlines())
    assert finished.code == 0, finished
    assert said == {
        "high bits": "EAFNOSUPPORT",
        "all bits": "EAFNOSUPPORT",
        # A profile that names no architectures adds its own SIGSYS for x32.
        "x32": said["x32"],
        "x32 unix": said["x32"],
        "i386": "SIGSYS",
        "io_uring": "EPERM",
        # EOPNOTSUPP has two names.
        "pair": "ENOTSUP",
        "unix": "ok",
    }
    assert said["x32"] in {"ENOSYS", "SIGSYS"}


# What is refused.


async def refusal(guest: Guest, **spec: Any) -> aio.AioRpcError:
    known = {name: spec.pop(name) for name in ("mounts", "linux", "process") if name in spec}
    request = create_request("refused", "true", **known)
    request.spec = json.dumps(json.loads(request.spec) | spec).encode()
    with pytest.raises(aio.AioRpcError) as caught:
        await guest.containers.Create(request)
    return caught.value


LABEL = "system_u:system_r:container_t:s0"
BIND = {"destination": "/x", "type": "bind", "source": "/usr", "options": ["bind", "nosymfollow"]}
NOT_SUPPORTED: dict[str, dict[str, Any]] = {
    "process.apparmorProfile": {"process": {"apparmorProfile": "no-such-profile"}},
    "process.selinuxLabel": {"process": {"selinuxLabel": LABEL}},
    "linux.mountLabel": {"linux": {"mountLabel": LABEL}},
    "linux.memoryPolicy": {"linux": {"memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0"}}},
    "linux.personality.flags": {"linux": {"personality": {"domain": "LINUX", "flags": ["X"]}}},
    "linux.intelRdt": {"linux": {"intelRdt": {"closID": "x"}}},
    "linux.resources.rdma": {"linux": {"resources": {"rdma": {"mlx5_1": {"hcaHandles": 1}}}}},
    "linux.resources.network": {"linux": {"resources": {"network": {"classID": 1}}}},
    "linux.resources.memory.swappiness": {"linux": {"resources": {"memory": {"swappiness": 1}}}},
    "linux.resources.hugepageLimits[0].pageSize": {
        "linux": {"resources": {"hugepageLimits": [{"pageSize": "64KB", "limit": 1}]}}
    },
    "mounts[0].options[1]": {"mounts": [BIND]},
}
BAD: dict[str, dict[str, Any]] = {
    "linux.sysctl.vm.swappiness": {"linux": {"sysctl": {"vm.swappiness": "1"}}},
    "linux.sysctl.net.ipv4.ip_forward": {"linux": {"sysctl": {"net.ipv4.ip_forward": "1"}}},
    "linux.sysctl.net/../kernel/core_pattern": {
        "linux": {"sysctl": {"net/../kernel/core_pattern": "|/x"}}
    },
    "process.capabilities.bounding[0]": {"process": {"capabilities": {"bounding": ["CAP_NEW"]}}},
    "linux.uidMappings": {"linux": {"uidMappings": MAPS}},
    "linux.timeOffsets": {"linux": {"timeOffsets": {"boottime": {"secs": 1}}}},
    "hostname": {"hostname": "x\n127.0.0.1 evil"},
}


async def test_what_would_be_less_is_refused_by_name(guest: Guest, observer: Observer) -> None:
    """Nothing of it is left behind, and nothing of the guest was changed."""
    before = await observer.census()
    for place, spec in NOT_SUPPORTED.items():
        error = await refusal(guest, **spec)
        assert (error.code(), reason(error)) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "NOT_SUPPORTED",
        ), place
        assert place in (error.details() or "")
    for place, spec in BAD.items():
        error = await refusal(guest, **spec)
        assert (error.code(), reason(error)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_SPEC",
        ), place
        assert place in (error.details() or "")
    await observer.returns_to(before)


async def test_profiles_of_apparmor_that_mean_none(guest: Guest) -> None:
    """An empty name is what some hosts send for none; crun would ask the kernel for it."""
    for name in ("", "unconfined"):
        process = {"apparmorProfile": name, "selinuxLabel": ""}
        finished = await guest.run("cat /proc/self/attr/apparmor/current", process=process)
        assert finished.text.strip() == "unconfined"


async def test_unknown_members_are_left_alone(guest: Guest) -> None:
    """As the specification tells runtimes to ("Extensibility", config.md)."""
    process = {"commandLine": "for Windows", "newer": {"x": 1}}
    assert (await run(guest, "exit 7", newest=[1], process=process, ociVersion="1.3.0")).code == 7

"""The OCI runtime specification's own example configurations are created, started, and looked at
from within (tests/vm/examples/README.md)."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from innkeeper.v1 import containers_pb2 as containers
from tests.vm.guest import Guest, create_request, reason
from tests.vm.test_containers import attached, done, ref
from tests.vm.test_specs import bits, status

pytestmark = [pytest.mark.vm, pytest.mark.containers]

EXAMPLES = Path(__file__).parent / "examples"
ADAPTATIONS: list[dict[str, Any]] = json.loads((EXAMPLES / "adaptations.json").read_text())
REFUSED = [each for each in ADAPTATIONS if "refused" in each]
AUDIT_WRITE, KILL, NET_BIND_SERVICE = 29, 5, 10


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / f"{name}.json").read_text())
    return found


def adapted(without: dict[str, Any] | None = None) -> dict[str, Any]:
    """The full example with all adaptations, or all but one."""
    spec = example("full")
    for each in ADAPTATIONS:
        if each is not without:
            _adapt(spec, each)
    return spec


def _adapt(spec: dict[str, Any], change: dict[str, Any]) -> None:
    *way, last = re.findall(r"[^.\[\]]+", change["place"])
    part: Any = spec
    for name in way:
        part = part[name]
    if "value" in change:
        part[last] = copy.deepcopy(change["value"])
    else:
        del part[int(last) if isinstance(part, list) else last]


def request_for(spec: dict[str, Any]) -> containers.CreateContainerRequest:
    request = create_request("example", "")
    request.spec = json.dumps(spec).encode()
    return request


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: str(change["place"]))
async def test_what_this_guest_lacks_is_refused_by_name(
    guest: Guest, change: dict[str, Any]
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await guest.containers.Create(request_for(adapted(without=change)))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert reason(caught.value) == change["refused"]
    assert change["place"] in (caught.value.details() or "")


ASK = {
    "id": "id",
    "limits": "ulimit -Hc -n",
    "oom": "cat /proc/self/oom_score_adj",
    "ioprio": "ionice",
    "host": "hostname",
    "offsets": "cat /proc/self/timens_offsets",
    "maps": "cat /proc/self/uid_map /proc/self/gid_map",
    "sysctls": "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/core/somaxconn",
    "devices": "ls -n /dev/fuse /dev/sda",
    "mounts": "cat /proc/self/mountinfo",
    "getcwd": "/bin/pwd",
    "root": "touch /x",
    "masked": "head -c 1 /proc/kcore | wc -c",
    "cgroup": "cd /sys/fs/cgroup; cat memory.max memory.low memory.swap.max pids.max"
    " hugetlb.2MB.max cpuset.cpus cpuset.mems cpu.max cpu.idle",
    "io": "cat /sys/fs/cgroup/io.max",
    "status": "cat /proc/self/status",
}


async def test_the_full_example_runs(guest: Guest) -> None:
    """Terminal, hooks and all: it is typed at, and it ends as it is told to."""
    await guest.probe("rm -f /guest/run/example-hooks")
    await guest.containers.Create(request_for(adapted()))
    await guest.containers.Start(containers.StartContainerRequest(id="example"))
    said = {name: (await done(guest, "example", command)).text for name, command in ASK.items()}
    errors = {
        name: (await done(guest, "example", ASK[name])).stderr.decode()
        for name in ("getcwd", "root", "devices")
    }
    attachment = await attached(guest, ref("example"))
    await attachment.send(b"exit 42\n")
    assert (await attachment.to_the_end()).code == 42
    await guest.remove("example")
    assert said["id"].startswith("uid=1 gid=1 groups=5(tty),6")
    # In blocks of 512 bytes; and the number of files.
    assert said["limits"].split()[-1] == "1024"
    assert said["ioprio"].strip() == "idle"
    assert said["host"] == "slartibartfast\n"
    assert [line.split() for line in said["offsets"].splitlines()] == [
        ["monotonic", "0", "0"],
        ["boottime", "0", "0"],
    ]
    assert [line.split() for line in said["maps"].splitlines()] == [["0", "1000", "32000"]] * 2
    assert said["sysctls"].split() == ["1", "256"]
    assert said["devices"].startswith("crw-rw-rw-")
    assert "/dev/sda: No such file" in errors["devices"]
    assert "Operation not permitted" in errors["getcwd"]
    assert "Read-only file system" in errors["root"]
    assert said["masked"].strip() == "0"
    # More huge pages than the kernel's counters hold (page_counter.h) are all of them.
    assert said["cgroup"].split() == [
        *("536870912", "536870912", "0", "32771", "max"),
        *("0-1", "0", "1000000", "500000", "1"),
    ]
    assert said["io"].split() == ["254:0", "rbps=600000000", "wbps=max", "riops=max", "wiops=300"]
    of = status(said["status"])
    assert of["CapBnd"] == of["CapInh"] == bits(AUDIT_WRITE, KILL, NET_BIND_SERVICE)
    assert of["CapEff"] == of["CapAmb"] == bits(NET_BIND_SERVICE)
    assert of["NoNewPrivs"] == "1"
    assert said["oom"].strip() == "100"
    table = {line.split()[4]: line.split() for line in said["mounts"].splitlines()}
    assert table["/"][5].startswith("ro,")
    assert table["/sys"][5].startswith("rw,nosuid,nodev,noexec")
    assert table["/sys/fs/cgroup"][5].startswith("ro,nosuid,nodev,noexec")
    assert (await guest.probe("cat /guest/run/example-hooks")).splitlines() == [
        "fix-mounts arg1 arg2 value1",
        "setup-network",
        "notify-start",
        "cleanup.sh -f",
    ]


async def test_the_usual_example_runs(guest: Guest) -> None:
    await guest.containers.Create(request_for(example("usual")))
    await guest.containers.Start(containers.StartContainerRequest(id="example"))
    said = (await done(guest, "example", "id -u; hostname; ulimit -n; ls /sys/class/net")).text
    denied = await done(guest, "example", "touch /x; cat /proc/kcore; ls -A /sys/firmware")
    of = status((await done(guest, "example", "cat /proc/self/status")).text)
    attachment = await attached(guest, ref("example"))
    await attachment.send(b"exit\n")
    assert (await attachment.to_the_end()).code == 0
    await guest.remove("example")
    assert said.split() == ["0", "runc", "1024", "lo"]
    assert (denied.stdout, denied.stderr.count(b"Read-only file system")) == (b"", 1)
    assert of["CapEff"] == of["CapBnd"] == bits(AUDIT_WRITE, KILL, NET_BIND_SERVICE)

"""`innkeeper run` in docker's words, in a real guest: each option does what it says."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import secrets
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from innkeeper.shim import commands
from innkeeper.shim.client import list_vms
from innkeeper.v1 import devices_pb2, host_pb2, storages_pb2
from tests.command_line import INNKEEPER, Innkeeper
from tests.fakes.oci_layout import FakeLayout
from tests.fakes.plugs import disk_plug
from tests.vm.guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.operations, pytest.mark.containers]

ROOT = "/usr/lib/innkeeper/rootfs"


@pytest.fixture
def innkeeper() -> Innkeeper:
    return Innkeeper(environment=os.environ)


@pytest.fixture
def name() -> str:
    return f"run-{secrets.token_hex(4)}"


def told(output: bytes) -> dict[str, str]:
    """Lines of `say NAME VALUE`."""
    pairs = (line.partition(": ") for line in output.decode().splitlines())
    return {name: value.strip() for name, _, value in pairs}


SAY = 'say() { n="$1"; shift; echo "$n: $("$@" 2>&1 | tr "\\n" " ")"; }\n'


async def look(innkeeper: Innkeeper, guest: Guest, *words: str, script: str) -> dict[str, str]:
    command = ("run", "--vm", guest.vm.name, *words, "--", "sh", "-c", SAY + script)
    done = await innkeeper(*command)
    assert done.code == 0, done.err
    return told(done.out)


async def test_limits_rights_and_mounts(guest: Guest, innkeeper: Innkeeper, tmp_path: Path) -> None:
    """One container with most of what docker run has."""
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "hello").write_text("from the host\n")
    (tmp_path / "env").write_text("# mine\nFILE=1\nBOTH=file\n")
    found = await look(
        innkeeper,
        guest,
        *("--cpus", "0.5", "-m", "64M", "--memory-swap", "64M", "--memory-reservation", "32M"),
        *("--pids-limit", "20", "--cpuset-cpus", "1", "--shm-size", "8M"),
        *("--cap-drop", "ALL", "--cap-add", "chown", "--security-opt", "no-new-privileges"),
        *("--ulimit", "nofile=64:128", "--ulimit", "core=0", "--sysctl", "kernel.shmmax=4096"),
        *("--read-only", "--tmpfs", "/tmp:size=1M", "--mount", "type=tmpfs,dst=/scratch,ro"),
        *("-v", f"{tmp_path}/share:/src:ro", "--hostname", "box", "--env-file", f"{tmp_path}/env"),
        *("-e", "BOTH=line", "-w", "/src", "-u", "1000:50"),
        script="""
        cd /sys/fs/cgroup
        for file in cpu.max memory.max memory.low memory.swap.max pids.max cpuset.cpus; do
          say $file cat $file
        done
        cd - > /dev/null
        say effective sed -n 's/^CapEff:.//p' /proc/self/status
        say bounding sed -n 's/^CapBnd:.//p' /proc/self/status
        say no_new sed -n 's/^NoNewPrivs:.//p' /proc/self/status
        say files sed -n 's/^Max open files *//p' /proc/self/limits
        say core sed -n 's/^Max core file size *//p' /proc/self/limits
        say shmmax cat /proc/sys/kernel/shmmax
        say name hostname
        say where pwd
        say user id -u
        say group id -g
        say variables echo $FILE $BOTH
        say root sh -c 'touch /x && echo written'
        say share sh -c 'cat hello; touch x && echo written'
        say tmp sh -c 'df -k /tmp | tail -1'
        say shm sh -c 'df -k /dev/shm | tail -1'
        say tmp_written sh -c 'touch /tmp/x && echo written'
        say scratch sh -c 'touch /scratch/x && echo written'
        """,
    )
    assert found["cpu.max"] == "50000 100000"
    assert (found["memory.max"], found["memory.low"]) == (str(64 << 20), str(32 << 20))
    assert found["memory.swap.max"] == "0"
    assert (found["pids.max"], found["cpuset.cpus"]) == ("20", "1")
    # CAP_CHOWN is bit 0, and a user that is not root has none of them in effect.
    assert (int(found["bounding"], 16), int(found["effective"], 16)) == (1, 0)
    assert found["no_new"] == "1"
    assert found["files"].split()[:2] == ["64", "128"]
    assert found["core"].split()[:2] == ["0", "0"]
    assert found["shmmax"] == "4096"
    assert (found["name"], found["where"]) == ("box", "/src")
    assert (found["user"], found["group"], found["variables"]) == ("1000", "50", "1 line")
    for place in ("root", "share", "scratch"):
        assert "Read-only file system" in found[place], place
    assert "from the host" in found["share"]
    assert found["tmp"].split()[:2] == ["tmpfs", "1024"]
    assert found["shm"].split()[1] == "8192"
    assert found["tmp_written"] == "written"


async def test_privileges_and_a_network_of_its_own(guest: Guest, innkeeper: Innkeeper) -> None:
    found = await look(
        innkeeper,
        guest,
        *("--privileged", "--network", "own", "--entrypoint", "env"),
        *("--sysctl", "net.ipv4.ip_forward=1"),
        script="""
        say effective sed -n 's/^CapEff:.//p' /proc/self/status
        say first sh -c 'tr "\\0" " " < /proc/1/cmdline'
        say links ls /sys/class/net
        say forward cat /proc/sys/net/ipv4/ip_forward
        say masked sh -c 'grep -c . /proc/keys || true'
        say device sh -c 'mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg > /tmp/x && echo read'
        say cgroup sh -c 'grep " /sys/fs/cgroup " /proc/mounts'
        """,
    )
    assert int(found["effective"], 16) == (1 << 41) - 1
    assert found["first"].startswith("sh -c say()")
    assert (found["links"], found["forward"]) == ("lo", "1")
    assert found["masked"].isdecimal()
    assert found["device"] == "read"
    assert "rw" in found["cgroup"].split()[3].split(",")


async def test_a_small_init_reaps_what_is_left_behind(guest: Guest, innkeeper: Innkeeper) -> None:
    """Process 1 of a container is no shell then; zombies of others' children don't stay."""
    found = await look(
        innkeeper,
        guest,
        "--init",
        script="""
        say first sh -c 'tr "\\0" " " < /proc/1/cmdline'
        say parent sh -c '(sh -c "sleep 0.1 & echo \\$! > /tmp/orphan") ; cat /tmp/orphan'
        until [ ! -e /proc/$(cat /tmp/orphan) ]; do sleep 0.1; done
        """,
    )
    assert found["first"].startswith("/dev/init -- sh -c")
    assert found["parent"].isdecimal()


async def test_a_device_by_its_address_and_by_its_node(
    guest: Guest, innkeeper: Innkeeper, tmp_path: Path, name: str
) -> None:
    """A node that is attached under no id is so while the container is there."""
    (tmp_path / "disk.img").write_bytes(bytes(1 << 20))
    plugged = await guest.host.Plug(disk_plug(name, tmp_path / "disk.img"))
    [disk] = plugged.attached
    try:
        node = disk.nodes[0].path
        look_at = f"[ -b {node} ] && echo node; [ -b /dev/disk ] && echo disk; : > /dev/disk"
        found = await look(
            innkeeper,
            guest,
            *("--device", f"{disk.pci_bdf}:r", "--device", f"{node}:/dev/disk:r"),
            *("--device", "/dev/kmsg:/dev/log:r", "--cap-add", "SYSLOG"),
            script=f"say disk sh -c '{look_at}'; say kmsg sh -c 'head -c 1 /dev/log | wc -c'",
        )
        assert found["disk"].startswith("node disk"), found
        assert "Operation not permitted" in found["disk"]
        assert found["kmsg"] == "1"
        attached = await guest.devices.List(devices_pb2.ListDevicesRequest())
        assert [each.device.id for each in attached.devices if "-device" in each.device.id] == []
    finally:
        await guest.host.Unplug(host_pb2.UnplugRequest(id=name))


async def test_a_storage_as_root_stays_as_it_is(
    guest: Guest, innkeeper: Innkeeper, name: str
) -> None:
    storage = storages_pb2.Storage(id=name, read_only=True, bind=storages_pb2.BindSource(path=ROOT))
    await guest.storages.Attach(storages_pb2.AttachStorageRequest(storage=storage))
    try:
        words = ("--rootfs", f"storage:{name}", "-v", f"{name}:/data:ro")
        found = await look(
            innkeeper, guest, *words, script="say root sh -c 'touch /x; ls -d /x /data/x'"
        )
        assert "/x" in found["root"].split()
        assert "/data/x: No such file" in found["root"]
    finally:
        await guest.storages.Detach(storages_pb2.DetachStorageRequest(id=name))


async def test_a_detached_container_goes_on_and_has_a_log(
    guest: Guest, innkeeper: Innkeeper, name: str
) -> None:
    """Its input has ended, and it runs until somebody takes it away."""
    words = ("run", "--vm", guest.vm.name, "-d", "--name", name, "--", "sh", "-c")
    done = await innkeeper(*words, "cat; echo no more input; exec sleep 600")
    assert (done.code, done.lines) == (0, [name]), done.err
    try:
        logs = await innkeeper.start("logs", "-f", guest.vm.name, name)
        assert logs.stdout is not None
        assert await logs.stdout.readline() == b"no more input\n"
        logs.terminate()
        await logs.communicate()
        done = await innkeeper("exec", guest.vm.name, name, "--", "true")
        assert done.code == 0, done.err
        done = await innkeeper("run", "--vm", guest.vm.name, "--name", name, "--", "true")
        assert (done.code, "ID_IN_USE" in done.err) == (125, True), done.err
        done = await innkeeper("exec", guest.vm.name, name, "--", "true")
        assert done.code == 0, done.err
    finally:
        await guest.remove(name)


@pytest.fixture
def layout(image: Path, tmp_path: Path) -> Path:
    """An image made of the guest's own small root, with a user and what it runs."""
    commands.run(
        ["/usr/sbin/debugfs", "-R", f"rdump {ROOT} {tmp_path}", image / "root.ext4"], deadline=60
    )
    root = tmp_path / "rootfs"
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\napp:x:1234:50::/srv:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nfifty:x:50:\nmore:x:77:app\n")
    (root / "srv").mkdir(exist_ok=True)
    with tarfile.open(tmp_path / "layer.tar", "w") as tar:
        tar.add(root, arcname=".")
    made = FakeLayout(tmp_path / "layout")
    made.add((tmp_path / "layer.tar").read_bytes())
    return _with_config(
        made,
        {
            "Entrypoint": ["/bin/sh", "-c"],
            "Cmd": ["exec sleep 600"],
            "Env": ["FROM=image", "BOTH=image"],
            "WorkingDir": "/srv",
            "User": "app",
        },
    )


def _with_config(made: FakeLayout, config: dict[str, object]) -> Path:
    [descriptor] = made.manifests
    manifest = json.loads(_blob(made, descriptor))
    whole = {**json.loads(_blob(made, manifest["config"])), "config": config}
    manifest["config"] = made.blob(json.dumps(whole).encode())
    made.manifests = []
    made.describe(manifest)
    return made.write()


def _blob(made: FakeLayout, descriptor: dict[str, str]) -> bytes:
    return (made.root / "blobs/sha256" / descriptor["digest"].partition(":")[2]).read_bytes()


@pytest.fixture
def vm(innkeeper: Innkeeper, name: str) -> Iterator[str]:
    yield name
    if name in {vm.name for vm in list_vms()}:
        commands.run([*INNKEEPER, "vm", "stop", name], deadline=90)


async def test_a_vm_of_its_own_has_room_for_its_container_and_runs_the_image(
    innkeeper: Innkeeper, image: Path, layout: Path, vm: str
) -> None:
    done = await innkeeper(
        *("run", "--image", f"{image}/", "--transport", "serial", "--name", vm, "-d"),
        *("--cpus", "1.5", "-m", "320M", "--rootfs", str(layout), "-e", "BOTH=line"),
        *("--dns", "192.0.2.53", "--add-host", "db:192.0.2.7"),
    )
    assert (done.code, done.lines) == (0, [f"{vm} main"]), done.err
    script = """
    say cpus nproc
    say quota cat /sys/fs/cgroup/cpu.max
    say limit cat /sys/fs/cgroup/memory.max
    say available sed -n 's/^MemAvailable: *\\([0-9]*\\) .*/\\1/p' /proc/meminfo
    say user sed -n 's/^Uid:.\\([0-9]*\\).*/\\1/p' /proc/1/status
    say group sed -n 's/^Gid:.\\([0-9]*\\).*/\\1/p' /proc/1/status
    say groups sed -n 's/^Groups:.//p' /proc/1/status
    say where readlink /proc/1/cwd
    say environment sh -c 'tr "\\0" " " < /proc/1/environ'
    say resolver cat /etc/resolv.conf
    say hosts cat /etc/hosts
    """
    done = await innkeeper("exec", vm, "main", "--", "sh", "-c", SAY + script)
    assert done.code == 0, done.err
    found = told(done.out)
    assert (found["cpus"], found["quota"]) == ("2", "150000 100000")
    assert found["limit"] == str(320 << 20)
    # 256 MiB beside the limit are enough for the guest: the whole limit can be used.
    assert int(found["available"]) << 10 >= 320 << 20
    assert (found["user"], found["group"], found["groups"]) == ("1234", "50", "77")
    assert found["where"] == "/srv"
    assert {"FROM=image", "BOTH=line"} <= set(found["environment"].split())
    assert "nameserver 192.0.2.53" in found["resolver"]
    assert "192.0.2.7" in found["hosts"]


async def test_a_terminal_can_be_left(guest: Guest, innkeeper: Innkeeper, name: str) -> None:
    """ctrl-p ctrl-q: the container stays, and so does what it runs."""
    ours, theirs = pty.openpty()
    words = ("run", "--vm", guest.vm.name, "--name", name, "-it", "--", "sh")
    try:
        process = await asyncio.create_subprocess_exec(
            *INNKEEPER, *words, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.write(ours, b"echo $((6 * 7))\r")
        seen = b""
        while b"\n42\r\n" not in seen:
            seen += await asyncio.to_thread(os.read, ours, 1000)
        os.write(ours, b"\x10\x11")
        reader = asyncio.create_task(asyncio.to_thread(os.read, ours, 1000))
        assert await process.wait() == 0
        await reader
        done = await innkeeper("exec", guest.vm.name, name, "--", "true")
        assert done.code == 0, done.err
    finally:
        os.close(ours)
        os.close(theirs)
        await guest.remove(name)

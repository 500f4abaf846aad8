"""The command line on real VMs: what a shell sees of a process in a guest."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import pty
import re
import secrets
import signal
import struct
import termios
from pathlib import Path

import pytest

from innkeeper.cli.demo import left_processes
from innkeeper.shim import commands, guest_disk
from innkeeper.shim.client import Vm, VmSpec, list_vms
from tests.command_line import INNKEEPER, Innkeeper
from tests.vm.guest import PROBE, Guest, booted

pytestmark = [pytest.mark.vm, pytest.mark.operations]


@pytest.fixture
def innkeeper() -> Innkeeper:
    return Innkeeper(environment=os.environ)


@pytest.fixture
def run(image: Path) -> tuple[str, ...]:
    """`innkeeper run` with the image under test."""
    return ("run", "--image", f"{image}/", "--transport", "serial")


def debugfs(image: Path, request: str) -> bytes:
    return commands.run(["/usr/sbin/debugfs", "-R", request, image], deadline=60).stdout


def unique() -> str:
    return f"cli-{secrets.token_hex(4)}"


def nothing_left(state_directory: Path, name: str) -> bool:
    """No VM of that name, and no process that has its directory in its command line."""
    return name not in {vm.name for vm in list_vms()} and not left_processes(
        state_directory / name, qemu_pid=-1
    )


async def test_run_passes_every_byte_and_the_exit_code_and_leaves_nothing(
    innkeeper: Innkeeper, run: tuple[str, ...], state_directory: Path
) -> None:
    data = hashlib.shake_128(b"input").digest(2 << 20)
    name = unique()
    script = "tee /tmp/copy; sha256sum /tmp/copy >&2; exit 7"
    done = await innkeeper(*run, "--name", name, "--", "sh", "-c", script, stdin=data)
    assert done.code == 7, done.err
    assert done.out == data
    assert done.err.split()[0] == hashlib.sha256(data).hexdigest()
    assert nothing_left(state_directory, name)


async def test_run_mounts_disks_and_what_is_written_is_on_them(
    innkeeper: Innkeeper, run: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "in").write_text("from the host\n")
    disks = [
        guest_disk.make_disk(tmp_path / "tree", tmp_path / name, size=32 << 20).file
        for name in ("rw.img", "ro.img")
    ]
    done = await innkeeper(
        *(*run, "--disk", f"{disks[0]}:/rw", "--disk", f"{disks[1]}:/mnt/ro:ro"),
        *("--", "sh", "-c", "cat /rw/in; echo written > /rw/out; touch /mnt/ro/x"),
    )
    assert done.out == b"from the host\n", done.err
    assert done.code != 0
    assert "Read-only" in done.err
    assert debugfs(disks[0], "cat /out") == b"written\n"


async def test_run_takes_a_root_of_ones_own_with_user_environment_and_directory(
    innkeeper: Innkeeper, run: tuple[str, ...], image: Path, tmp_path: Path
) -> None:
    """The root is a tar of the image's own small one, with a file more."""
    debugfs(image / "root.ext4", f"rdump /usr/lib/innkeeper/rootfs {tmp_path}")
    root = tmp_path / "rootfs"
    (root / "srv").mkdir(exist_ok=True)
    (root / "srv" / "mine").write_text("mine\n")
    commands.run(["tar", "-C", root, "-czf", tmp_path / "root.tar.gz", "."], deadline=60)
    done = await innkeeper(
        *(*run, "--rootfs", str(tmp_path / "root.tar.gz"), "--user", "1000:50"),
        *("--env", "GREETING=hi", "--workdir", "/srv"),
        *("--", "sh", "-c", 'cat mine; id -u; id -g; echo "$GREETING"; pwd'),
    )
    assert done.code == 0, done.err
    assert done.out == b"mine\n1000\n50\nhi\n/srv\n"


async def test_interrupting_twice_takes_the_vm_down(
    innkeeper: Innkeeper, run: tuple[str, ...], state_directory: Path
) -> None:
    name = unique()
    script = "trap 'echo caught' INT; echo ready; while :; do sleep 1; done"
    process = await innkeeper.start(*run, "--name", name, "--", "sh", "-c", script)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert await process.stdout.readline() == b"caught\n"
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert nothing_left(state_directory, name)


async def test_a_run_that_is_killed_leaves_no_vm(
    innkeeper: Innkeeper, run: tuple[str, ...], state_directory: Path
) -> None:
    name = unique()
    process = await innkeeper.start(*run, "--name", name, "--", "sh", "-c", "echo up; sleep 600")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    [vm] = [vm for vm in list_vms() if vm.name == name]
    process.kill()
    await process.communicate()
    await _ended(vm)
    assert nothing_left(state_directory, name)


async def _ended(vm: Vm) -> None:
    """Waits for the daemon's end, by descriptor."""
    fd = os.pidfd_open(vm.daemon_pid)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def test_exec_in_a_container_that_runs(guest: Guest, innkeeper: Innkeeper) -> None:
    name = await guest.start("sleep 600")
    try:
        done = await innkeeper("exec", guest.vm.name, name, "--", "cat", stdin=b"\x00\xff\r\n")
        assert (done.code, done.out) == (0, b"\x00\xff\r\n"), done.err
        done = await innkeeper("exec", guest.vm.name, name, "--", "sh", "-c", "kill -9 $$")
        assert done.code == 128 + signal.SIGKILL
        done = await innkeeper("exec", guest.vm.name, name, "--", "nosuch")
        assert done.code == 127, done.err
    finally:
        await guest.remove(name)


async def test_a_terminal_has_our_size_and_takes_our_keys(
    guest: Guest, innkeeper: Innkeeper
) -> None:
    name = await guest.start("sleep 600")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    try:
        words = ("exec", "-t", guest.vm.name, name, "--")
        process = await asyncio.create_subprocess_exec(
            *(*INNKEEPER, *words, "sh", "-c", "stty size; read line; echo got $line"),
            stdin=theirs,
            stdout=theirs,
        )
        assert await _until(ours, rb"33 99\r\n")
        os.write(ours, b"typed\r")
        assert await _until(ours, rb"got typed\r\n")
        assert await process.wait() == 0
    finally:
        os.close(ours)
        os.close(theirs)
        await guest.remove(name)


async def _until(fd: int, pattern: bytes) -> bool:
    """Reads until the pattern was there; the test's own timeout is the bound."""
    seen = b""
    while not re.search(pattern, seen):
        seen += await asyncio.to_thread(os.read, fd, 1000)
    return True


async def test_output_is_whole_though_the_agent_is_killed_meanwhile(
    innkeeper: Innkeeper, image: Path
) -> None:
    """Half of the lines are written while there is no agent; the command line goes on."""
    spec = VmSpec(name=unique(), image=f"{image}/", transport="serial")
    async with booted(spec) as guest:
        name = await guest.start("sleep 600")
        agent = (await guest.describe()).agent_pid
        script = "i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); sleep 0.1; done; cat; exit 3"
        process = await innkeeper.start("exec", guest.vm.name, name, "--", "sh", "-c", script)
        assert process.stdout is not None
        first = await process.stdout.readline()
        await guest.start(f"sleep 1; kill -9 {agent}", **PROBE)
        out, err = await process.communicate(b"input\n")
        assert process.returncode == 3, err
        lines = (first + out).decode().splitlines()
        assert lines == [*(str(number) for number in range(100)), "input"]
        assert (await guest.describe()).agent_restarts == 1


async def test_devices_by_hand(guest: Guest, innkeeper: Innkeeper, tmp_path: Path) -> None:
    (tmp_path / "disk.img").write_bytes(bytes(8 << 20))
    vm = guest.vm.name
    done = await innkeeper("device", "attach", vm, str(tmp_path / "disk.img"), "--id", "byhand")
    assert done.code == 0, done.err
    told = re.fullmatch(
        r"byhand: PCI path (\S+), (\S+), (/dev/\w+), 8 MiB \(\d+ ms\)", done.lines[0]
    )
    assert told, done.out
    listed = json.loads((await innkeeper("device", "list", vm, "--json")).out)
    [device] = [device for device in listed if device["id"] == "byhand"]
    assert (device["pci_path"], device["bdf"], device["node"]) == told.groups()
    assert (await innkeeper("device", "detach", vm, "byhand")).code == 0
    done = await innkeeper("device", "detach", vm, "byhand")
    assert done.code == 125
    assert "reason: UNKNOWN_DEVICE" in done.err


async def test_any_method_by_name(guest: Guest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("call", guest.vm.name, "Sandbox.Describe")
    told = json.loads(done.out)
    assert told["init_command_line"][-1] == "/usr/lib/innkeeper/init"
    done = await innkeeper("call", guest.vm.name, "Devices.Get", '{"id": "no-such"}')
    assert done.code == 125
    assert "reason: UNKNOWN_DEVICE" in done.err


async def test_the_vm_is_listed(guest: Guest, innkeeper: Innkeeper) -> None:
    records = json.loads((await innkeeper("vm", "list", "--json")).out)
    [record] = [record for record in records if record["name"] == guest.vm.name]
    assert record["transport"] == "serial"
    assert record["state"] == "running"

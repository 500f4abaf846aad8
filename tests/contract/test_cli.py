"""The command `innkeeper` as a program, with a VM's daemon that is a fake.

What a shell sees: bytes on stdout, words on stderr, an exit code.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import pty
import signal
import struct
import termios
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innkeeper.v1 import containers_pb2, processes_pb2, storages_pb2
from tests.command_line import INNKEEPER, Innkeeper
from tests.fakes.processes_service import FakeProcess
from tests.fakes.vm_daemon import FakeGuest, running_vm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.contract, pytest.mark.operations]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "INNKEEPER_STATE_DIR": str(tmp_path / "vms"), "TERM": "xterm"}


@pytest.fixture
async def guest(environment: dict[str, str], tmp_path: Path) -> AsyncIterator[FakeGuest]:
    (tmp_path / "vms").mkdir(mode=0o700)
    guest = FakeGuest(process=FakeProcess())
    async with running_vm(tmp_path / "vms", guest):
        yield guest


@pytest.fixture
def innkeeper(environment: dict[str, str]) -> Innkeeper:
    return Innkeeper(environment=environment)


async def test_exec_passes_every_byte_in_and_out_and_the_exit_code(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    data = hashlib.shake_128(b"bytes").digest(300_000)
    guest.process.echo = True
    guest.process.stderr = b"to stderr\n"
    guest.process.exit_code = 42
    done = await innkeeper("exec", "web", "main", "--", "cat", stdin=data)
    assert (done.code, done.out, done.err) == (42, data, "to stderr\n")
    assert json.loads(guest.executed[0].process)["args"] == ["cat"]


async def test_exec_reads_regular_files_too(
    guest: FakeGuest, environment: dict[str, str], tmp_path: Path
) -> None:
    """A shell's `< file > file`: epoll does not take regular files."""
    (tmp_path / "in").write_bytes(b"line\n" * 50_000)
    guest.process.echo = True
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *INNKEEPER, "exec", "web", "--", "cat", stdin=source, stdout=sink, env=environment
        )
        assert await process.wait() == 0
    assert (tmp_path / "out").read_bytes() == b"line\n" * 50_000


async def test_without_input_the_process_sees_its_end(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.process.echo = True
    process = await innkeeper.start("exec", "-n", "web", "--", "cat")
    assert process.stdin is not None
    assert await process.wait() == 0
    process.stdin.close()


async def test_exec_without_a_container_takes_the_only_one(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    assert (await innkeeper("exec", "web", "--", "true")).code == 0
    assert guest.executed[0].container_id == "main"


async def test_exec_without_a_container_names_those_that_run(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.containers = ("a", "b")
    done = await innkeeper("exec", "web", "--", "true")
    assert done.code == 125
    assert "2 run (a, b)" in done.err


async def test_a_command_that_is_not_there_is_127(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("exec", "web", "--", "nosuch")
    assert done.code == 127
    assert "reason: RUNTIME_REFUSED" in done.err


async def test_the_first_interrupt_is_the_processs_and_the_second_ends_it(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.process.echo = True
    process = await innkeeper.start("exec", "web", "--", "cat")
    assert process.stdin is not None
    process.stdin.write(b"x")
    assert process.stdout is not None
    await process.stdout.readexactly(1)
    process.send_signal(signal.SIGINT)
    assert await guest.signals.get() == signal.SIGINT
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 128 + signal.SIGINT
    assert await guest.signals.get() == signal.SIGKILL
    process.stdin.close()


async def test_output_that_nobody_reads_ends_like_a_local_command(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    """`innkeeper exec ... | head -1`: the shell sees SIGPIPE's exit code."""
    guest.process.stdout = bytes(1 << 20)
    process = await innkeeper.start("exec", "web", "--", "yes")
    assert process.stdout is not None
    await process.stdout.readexactly(1)
    process.stdout._transport.close()  # type: ignore[attr-defined]  # asyncio has no other way
    assert await process.wait() == 128 + signal.SIGPIPE
    assert process.stdin is not None
    process.stdin.close()


async def test_a_terminal_is_raw_and_its_size_goes_along(
    guest: FakeGuest, environment: dict[str, str]
) -> None:
    guest.process.echo = guest.process.terminal = True
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    before = termios.tcgetattr(theirs)
    process = await asyncio.create_subprocess_exec(
        *INNKEEPER, "exec", "-t", "web", "--", "sh", stdin=theirs, stdout=theirs, env=environment
    )
    assert await guest.process.sizes.get() == (33, 99)
    os.write(ours, b"\x03")
    assert await asyncio.to_thread(os.read, ours, 10) == b"\x03"
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process.send_signal(signal.SIGWINCH)
    assert await guest.process.sizes.get() == (40, 120)
    guest.process.input_closed = True
    guest.process.changed.set()
    assert await process.wait() == 0
    assert termios.tcgetattr(theirs) == before
    assert json.loads(guest.executed[0].process)["consoleSize"] == {"height": 33, "width": 99}
    os.close(ours)
    os.close(theirs)


async def test_a_terminal_is_refused_when_there_is_none(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("exec", "-t", "web", "--", "sh")
    assert done.code == 125
    assert "not both a terminal" in done.err


async def test_call_prints_the_answer_as_json(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("call", "web", "Devices.List")
    answer = json.loads(done.out)
    assert answer["devices"][0]["pci_bdf"] == "0000:01:00.0"


async def test_call_finds_the_only_vm_and_takes_full_names(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("call", "/innkeeper.v1.Devices/Get", '{"id": "data"}')
    assert json.loads(done.out)["device"]["id"] == "data"


async def test_call_takes_its_request_from_stdin(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("call", "web", "Devices.Get", "-", stdin=b'{"id": "data"}')
    assert json.loads(done.out)["device"]["id"] == "data"


async def test_call_shows_reason_fields_and_hint_of_a_refusal(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("call", "web", "Devices.Get", '{"id": "x"}')
    assert (done.code, done.out) == (125, b"")
    assert done.err.splitlines() == [
        "innkeeper: no device x",
        "  reason: UNKNOWN_DEVICE",
        "  id: x",
        "  hint: list them",
    ]


async def test_call_names_the_methods_of_a_service(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("call", "web", "Devices.Lost")
    assert done.code == 125
    assert "no method Devices.Lost" in done.err
    assert "methods of Devices: Devices.Attach, Devices.Detach" in done.err


async def test_call_names_the_fields_of_a_request(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    done = await innkeeper("call", "web", "Devices.Get", '{"name": "x"}')
    assert done.code == 125
    assert "fields of GetDeviceRequest: id" in done.err


async def test_vms_are_listed_as_a_table_and_as_json(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    table = (await innkeeper("vm", "list")).lines
    assert (
        " ".join(table[0].split()) == "NAME STATE ACCEL TRANSPORT CPUS MEMORY QEMU IMAGE FORWARDS"
    )
    assert " ".join(table[1].split()) == "web running tcg serial 1 512 MiB 4242 - -"
    records = json.loads((await innkeeper("vm", "list", "--json")).out)
    assert records[0]["qemu_pid"] == 4242


async def test_a_disk_is_attached_by_its_absolute_path(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    """The daemon has another working directory than the command."""
    (tmp_path / "data.img").touch()
    elsewhere = replace(innkeeper, directory=tmp_path)
    done = await elsewhere("device", "attach", "web", "data.img", "--id", "data", "--read-only")
    assert done.out == b"data: PCI path 02/00, 0000:01:00.0, /dev/vdb, 64 MiB (52 ms)\n"
    content = guest.plugged[0].functions[0].hardware.disk.content
    assert (content.file, content.read_only) == (str(tmp_path / "data.img"), True)


async def test_devices_are_listed_with_both_sides(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    lines = (await innkeeper("device", "list", "web")).lines
    row = "data virtio-blk plugged 02/00 0000:01:00.0 /dev/vdb 64 MiB /disks/data.img"
    assert lines[1].split() == row.split()


async def test_a_device_is_detached(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    assert (await innkeeper("device", "detach", "web", "data")).code == 0
    assert guest.unplugged == ["data"]


async def test_a_container_in_a_vm_that_runs_leaves_nothing_there(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    """In the reverse order: a disk can go only when nobody has it mounted."""
    (tmp_path / "data.img").write_bytes(bytes(512))
    guest.process.stdout = b"hello\n"
    guest.process.exit_code = 3
    disk = f"{tmp_path}/data.img:/data"
    done = await innkeeper("run", "--vm", "web", "--disk", disk, "--", "echo", "hello")
    assert (done.code, done.out, done.err) == (3, b"hello\n", "")
    ours = ["plug", "mount", "create", "start"]
    assert guest.done == [*ours, "remove", "unmount", "unplug"]
    assert guest.unplugged == [guest.plugged[0].functions[0].id]
    assert guest.plugged[0].functions[0].id.endswith("-disk1")
    assert not guest.stopped


async def test_a_container_that_does_not_start_leaves_nothing_there_either(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("run", "--vm", "web", "--", "nosuch")
    assert done.code == 127
    assert guest.done == ["create", "remove"]


async def test_exec_in_a_vm_without_a_container_says_how_to_run_one(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.containers = ()
    done = await innkeeper("exec", "web", "--", "true")
    assert done.code == 125
    assert "hint: run one with: innkeeper run --vm web -- CMD..." in done.err


async def test_a_connection_that_broke_is_told_with_the_reason_that_the_guest_has(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.away = "the agent was killed by SIGKILL and starts again"
    done = await innkeeper("exec", "web", "--", "break")
    assert done.code == 125
    assert done.err.splitlines() == [f"innkeeper: {guest.away}", "  reason: AGENT_AWAY"]


async def test_a_connection_that_broke_without_a_reason_shows_the_console(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    console = tmp_path / "vms" / "web" / "console.log"
    console.write_bytes(b"Out of memory: Killed process 123\r\n")
    done = await innkeeper("exec", "web", "--", "break")
    assert done.code == 125
    assert "VM web: the connection to the guest's agent broke: Stream removed" in done.err
    assert f"{console} ends with:\n  Out of memory: Killed process 123" in done.err


@pytest.mark.parametrize("words", [("vm", "list"), ("--help",), ("exec", "web", "--", "yes")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_a_full_disk_for_stdout_is_one_line(
    guest: FakeGuest, innkeeper: Innkeeper, words: tuple[str, ...], unbuffered: str
) -> None:
    """/dev/full, full(4): every write ends with ENOSPC."""
    guest.process.stdout = b"y\n"
    environment = {**innkeeper.environment, "PYTHONUNBUFFERED": unbuffered}
    full = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        *(*INNKEEPER, *words), stdout=full, stderr=asyncio.subprocess.PIPE, env=environment
    )
    os.close(full)
    _, err = await process.communicate()
    assert process.returncode == 125
    assert err == b"innkeeper: stdout: No space left on device\n"


async def test_sizes_in_json_are_numbers_of_bytes(guest: FakeGuest, innkeeper: Innkeeper) -> None:
    (device,) = json.loads((await innkeeper("device", "list", "web", "--json")).out)
    assert device["size"] == 64 << 20


async def test_a_call_with_a_vm_alone_says_what_is_missing(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("call", "web")
    assert done.code == 125
    assert done.err.splitlines()[0] == "innkeeper: VM web: which method?"


async def test_a_vm_that_does_not_run_is_named_with_those_that_do(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    done = await innkeeper("vm", "stop", "other")
    assert done.code == 125
    assert "VM other: does not run" in done.err
    assert "these run: web" in done.err


def created(guest: FakeGuest) -> containers_pb2.CreateContainerRequest:
    [request] = [
        call
        for call in guest.lives.calls
        if isinstance(call, containers_pb2.CreateContainerRequest)
    ]
    return request


async def test_a_detached_container_is_named_and_stays(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    """Its input ends, or whoever reads it would wait for ever."""
    (tmp_path / "data.img").write_bytes(bytes(512))
    disk = f"{tmp_path}/data.img:/data"
    guest.process.echo = True
    done = await innkeeper(
        *("run", "--vm", "web", "-d", "--name", "db", "--disk", disk, "--", "sleep", "9")
    )
    assert (done.code, done.out, done.err) == (0, b"db\n", "")
    assert guest.done == ["plug", "mount", "create", "start"]
    assert created(guest).streams.HasField("log")
    assert guest.process.input_closed


async def test_a_container_is_kept_with_its_disks(
    guest: FakeGuest, innkeeper: Innkeeper, tmp_path: Path
) -> None:
    (tmp_path / "data.img").write_bytes(bytes(512))
    disk = f"{tmp_path}/data.img:/data"
    guest.process.exit_code = 3
    done = await innkeeper("run", "--vm", "web", "--keep", "--disk", disk, "--", "true")
    assert (done.code, guest.done) == (3, ["plug", "mount", "create", "start"])
    assert not created(guest).streams.HasField("log")


async def test_a_device_is_found_by_its_address_and_by_its_node(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    words = ("--device", "01:00.0:r", "--device", "/dev/vdb:/dev/disk")
    done = await innkeeper("run", "--vm", "web", *words, "--", "true")
    assert done.code == 0, done.err
    grants = [
        (each.device_id, each.node, each.container_path, each.permissions)
        for each in created(guest).devices
    ]
    assert grants == [("data", "", "", "r"), ("data", "/dev/vdb", "/dev/disk", "")]


async def test_a_root_that_can_only_be_read_gets_a_layer(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.storages += [
        storages_pb2.Storage(id="image", read_only=True),
        storages_pb2.Storage(id="disk"),
    ]
    for name, layer in (("image", True), ("disk", False)):
        done = await innkeeper("run", "--vm", "web", "--rootfs", f"storage:{name}", "--", "true")
        assert done.code == 0, done.err
        assert (created(guest).storage_id, created(guest).writable_layer) == (name, layer)
        guest.lives.calls.clear()


async def test_a_container_that_is_interrupted_twice_is_asked_to_end_first(
    guest: FakeGuest, innkeeper: Innkeeper
) -> None:
    guest.process.echo = True
    words = ("--vm", "web", "--stop-signal", "USR1", "--stop-timeout", "20")
    process = await innkeeper.start("run", *words, "--", "cat")
    assert process.stdin is not None
    process.stdin.write(b"x")
    assert process.stdout is not None
    await process.stdout.readexactly(1)
    process.send_signal(signal.SIGINT)
    assert await guest.signals.get() == signal.SIGINT
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 128 + signal.SIGINT
    process.stdin.close()
    signals = [call for call in guest.lives.calls if isinstance(call, processes_pb2.SignalRequest)]
    assert [each.name for each in signals] == ["", "USR1"]
    assert guest.done == ["create", "start", "remove"]

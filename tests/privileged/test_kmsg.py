"""The kernel's own log: what it says itself, and what others write into it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.kernel_log import KernelLog, names
from agent.core.roots import Roots
from agent.linux.kmsg import KernelRecord, Kmsg, parse
from tests.privileged import loops, swapping

DEVICE = Path("/dev/kmsg")
PATIENCE = 20.0
SIZE = 4 << 20

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.devices,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: reads and writes /dev/kmsg"),
]


@pytest.fixture
def source() -> Iterator[Kmsg]:
    """The log, from now on."""
    made = Kmsg(DEVICE)
    os.lseek(made.fileno(), 0, os.SEEK_END)
    yield made
    made.close()


def write(text: str) -> None:
    DEVICE.write_text(f"{text}\n")


def find(source: Kmsg, part: str) -> KernelRecord:
    """Raises BlockingIOError when there is no such record."""
    while True:
        record = parse(source.receive())
        if record is not None and part in record.text:
            return record


def test_a_written_record_is_read_back(source: Kmsg) -> None:
    """The level stays, and the writer cannot pass for the kernel (facility 0)."""
    mark = f"innkeeper {os.getpid()}"
    write(f"<4>{mark} a\\b\tc\x1b")
    record = find(source, mark)
    assert (record.level, record.facility) == (4, 1)
    assert record.text == f"{mark} a\\b\tc\x1b"
    write(f"<4>{mark} again")
    later = find(source, "again")
    assert later.sequence > record.sequence
    assert later.micros >= record.micros


def test_a_record_in_the_kernels_name_is_not_believed(source: Kmsg) -> None:
    name = f"0000:{os.getpid() % 256:02x}:1e.7"
    log = KernelLog.open(Roots())
    write(f"<3>pci {name}: probe with driver evil failed with error -5")
    assert find(source, name).facility == 1
    assert log.records(name) == ()
    log.close()


async def test_the_kernel_speaks_of_a_device(tmp_path: Path) -> None:
    """It announces swap space, always; most of what it says of loop devices it limits."""
    if not loops.CONTROL.exists():
        pytest.skip("this machine's kernel has no loop devices")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(SIZE)
    log = KernelLog.open(Roots())
    log.start()
    with loops.attached(image) as device:
        name = Path(device).name
        position = log.position
        heard = asyncio.Event()
        with log.listening(lambda record: heard.set() if names(record, name) else None):
            with swapping.active(device, SIZE):
                pass
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
    new = [record for record in log.records(name) if record.sequence > position]
    assert new[-1].text.startswith("Adding 4092k swap on")
    assert device in new[-1].text
    assert log.about(name)[-1] == str(new[-1])
    log.close()

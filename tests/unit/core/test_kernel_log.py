"""The kernel's log about a device; lines are those of a 6.12 guest with virtio disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.kernel_log import LINE_LIMIT, SHOWN, KernelLog, names
from agent.core.roots import Roots
from agent.linux.kmsg import KernelRecord
from tests.fakes.hotplug import turns
from tests.fakes.kmsg import FakeKmsg

pytestmark = [pytest.mark.unit, pytest.mark.devices]

BDF = "0000:01:00.0"
DISCOVERY = f"pci {BDF}: [1af4:1042] type 00 class 0x010000 PCIe Endpoint"


@pytest.fixture
def kernel() -> FakeKmsg:
    return FakeKmsg()


@pytest.fixture
def log(kernel: FakeKmsg) -> Iterator[KernelLog]:
    made = KernelLog(kernel)
    yield made
    made.close()


def texts(log: KernelLog, *devices: str) -> list[str]:
    return [record.text for record in log.records(*devices)]


def test_lines_for_an_error(log: KernelLog, kernel: FakeKmsg) -> None:
    kernel.log(DISCOVERY, SUBSYSTEM="pci", DEVICE=f"+pci:{BDF}")
    kernel.log("virtio_blk virtio3: [vdb] 131072 512-byte logical blocks")
    kernel.log("random: crng init done")
    assert log.about(BDF, "virtio3") == (
        f"[    1.000000] {DISCOVERY}",
        "[    2.000000] virtio_blk virtio3: [vdb] 131072 512-byte logical blocks",
    )


def test_a_device_named_by_the_key_alone(log: KernelLog, kernel: FakeKmsg) -> None:
    kernel.log("Attached SCSI disk", SUBSYSTEM="scsi", DEVICE="+scsi:1:0:0:2")
    kernel.log("Attached SCSI disk", SUBSYSTEM="scsi", DEVICE="+scsi:1:0:0:20")
    kernel.log("link becomes ready", SUBSYSTEM="net", DEVICE="n3")
    assert len(log.records("1:0:0:2")) == 1


@pytest.mark.parametrize(
    ("text", "device", "said"),
    [
        ("virtio_blk virtio3: x", "virtio3", True),
        ("virtio_blk virtio30: x", "virtio3", False),
        ("xvirtio3: x", "virtio3", False),
        ("virtio_blk: probe of virtio3 failed with error -22", "virtio3", True),
        (" vdb: vdb1 vdb2", "vdb", True),
        ("EXT4-fs (vdb): mounted", "vdb", True),
        ("EXT4-fs (vdb1): mounted", "vdb", False),
        ("EXT4-fs error (device vdb) in x", "vdb", True),
        ("I/O error, dev vdb, sector 0", "vdb", True),
        (f"pci {BDF}: BAR 0", BDF, True),
        ("pci 10000:01:00.0: BAR 0", BDF, False),
        ("pci 0000:01:00.01: BAR 0", BDF, False),
        ("pcieport 0000:00:02.0:pcie004: x", "0000:00:02.0", False),
        (f"/devices/pci0000:00/0000:00:02.0/{BDF}", BDF, True),
        ("sd 11:0:0:2: [sdb]", "1:0:0:2", False),
        ("nvme nvme0: pci function", "nvme0", True),
        ("nvme nvme0n1: x", "nvme0", False),
        ("Adding 16380k swap on /dev/loop0.  Priority:-2", "loop0", True),
        ("anything", "", False),
    ],
)
def test_a_device_is_named_by_a_whole_word(text: str, device: str, said: bool) -> None:
    assert names(KernelRecord(sequence=1, micros=0, level=6, text=text), device) is said


def test_what_was_said_of_the_device_before_at_this_address_is_left_out(
    log: KernelLog, kernel: FakeKmsg
) -> None:
    """A card that failed was pulled, a good one came into the same slot."""
    kernel.log(DISCOVERY)
    kernel.log("virtio_blk virtio3: probe with driver virtio_blk failed with error -22")
    kernel.log(DISCOVERY.replace("1042", "1041"))
    kernel.log("virtio-pci 0000:01:00.0: enabling device (0000 -> 0002)")
    assert texts(log, BDF, "virtio3") == [
        DISCOVERY.replace("1042", "1041"),
        "virtio-pci 0000:01:00.0: enabling device (0000 -> 0002)",
    ]


def test_another_function_that_arrives_changes_nothing(log: KernelLog, kernel: FakeKmsg) -> None:
    kernel.log(DISCOVERY)
    kernel.log("pci 0000:01:00.1: [8086:10d3] type 00 class 0x020000")
    assert texts(log, BDF) == [DISCOVERY]


def test_a_line_that_only_looks_like_an_arrival(log: KernelLog, kernel: FakeKmsg) -> None:
    kernel.log(DISCOVERY)
    kernel.log(f"evil[12]: {DISCOVERY}")
    assert len(texts(log, BDF)) == 2


def test_what_processes_write_is_not_believed(log: KernelLog, kernel: FakeKmsg) -> None:
    """Priority 14 is LOG_USER, the least that a writer of /dev/kmsg can get."""
    kernel.log(f"virtio-pci {BDF}: probe with driver virtio-pci failed with error -5", priority=14)
    assert log.records(BDF) == ()


def test_the_newest_lines_and_not_endless_ones(log: KernelLog, kernel: FakeKmsg) -> None:
    for number in range(SHOWN + 5):
        kernel.log(f"pci {BDF}: line {number} {'x' * 500}\x1b")
    lines = log.about(BDF)
    assert len(lines) == SHOWN
    assert lines[-1].startswith(f"[   15.000000] pci {BDF}: line {SHOWN + 4} xxx")
    assert {len(line) for line in lines} == {LINE_LIMIT}


def test_nothing_unprintable_gets_into_an_error(log: KernelLog, kernel: FakeKmsg) -> None:
    kernel.log(rf"pci {BDF}: \x1b[31mred\x0anew line")
    assert log.about(BDF) == (f"[    1.000000] pci {BDF}: ?[31mred?new line",)


def test_only_so_many_are_kept(kernel: FakeKmsg) -> None:
    log = KernelLog(kernel, kept=3)
    for number in range(5):
        kernel.log(f"pci {BDF}: {number}")
    assert texts(log, BDF) == [f"pci {BDF}: {number}" for number in (2, 3, 4)]
    log.close()


def test_overwritten_records_are_counted_and_reading_goes_on(
    log: KernelLog, kernel: FakeKmsg
) -> None:
    kernel.log(f"pci {BDF}: before")
    kernel.overwrite()
    kernel.log(f"pci {BDF}: after")
    assert texts(log, BDF) == [f"pci {BDF}: before", f"pci {BDF}: after"]
    assert log.lost == 1


def test_a_position_parts_old_from_new(log: KernelLog, kernel: FakeKmsg) -> None:
    assert log.position == -1
    kernel.log(f"pci {BDF}: old")
    position = log.position
    kernel.log(f"pci {BDF}: new")
    assert [r.text for r in log.records(BDF) if r.sequence > position] == [f"pci {BDF}: new"]


async def test_a_listener_is_called_when_the_kernel_speaks(kernel: FakeKmsg) -> None:
    log = KernelLog(kernel)
    kernel.log("old")
    log.start()
    heard: list[str] = []
    with log.listening(lambda record: heard.append(record.text)):
        kernel.log(f"virtio-pci {BDF}: new")
        await turns()
        assert heard == [f"virtio-pci {BDF}: new"]
    kernel.log("later")
    await turns()
    assert heard == [f"virtio-pci {BDF}: new"]
    log.close()


async def test_what_was_logged_before_the_start_is_there(kernel: FakeKmsg) -> None:
    log = KernelLog(kernel)
    kernel.log(DISCOVERY)
    log.start()
    assert texts(log, BDF) == [DISCOVERY]
    log.close()
    log.close()
    assert texts(log, BDF) == [DISCOVERY]


async def test_a_source_that_fails_ends_the_reading_and_not_the_agent(kernel: FakeKmsg) -> None:
    log = KernelLog(kernel)
    log.start()
    kernel.log(f"pci {BDF}: before")
    kernel.fail()
    await turns()
    assert texts(log, BDF) == [f"pci {BDF}: before"]
    assert "Input/output error" in log.problem
    log.close()


def test_a_log_that_cannot_be_read_is_empty_and_says_why(tmp_path: Path) -> None:
    log = KernelLog.open(Roots(dev=tmp_path))
    assert log.about(BDF) == ()
    assert f"{tmp_path}/kmsg" in log.problem
    log.start()
    log.close()

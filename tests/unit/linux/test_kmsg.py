"""Records of /dev/kmsg; their form is that of Documentation/ABI/testing/dev-kmsg."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.linux.kmsg import RECORD_SIZE, KernelRecord, Kmsg, parse, unescape

pytestmark = [pytest.mark.unit, pytest.mark.devices]


def test_the_documents_own_examples() -> None:
    """The three records that the ABI document shows."""
    first = parse(
        b"7,160,424069,-;pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)\n"
        b" SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n"
    )
    assert first == KernelRecord(
        sequence=160,
        micros=424069,
        level=7,
        text="pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)",
        subsystem="acpi",
        device="+acpi:PNP0A03:00",
    )
    second = parse(b"6,339,5140900,-;NET: Registered protocol family 10\n")
    assert second is not None
    assert (second.subsystem, second.device) == ("", "")
    third = parse(b"30,340,5690716,-;udevd[80]: starting version 181\n")
    assert third is not None
    assert (third.facility, third.level) == (3, 6)


def test_a_header_with_more_fields_than_today() -> None:
    """ "Future extensions might add more comma separated values before the terminating ';'."""
    found = parse(b"6,1,2,-,caller=T1,what=ever;text; with; semicolons\n")
    assert found is not None
    assert found.text == "text; with; semicolons"


def test_continuation_lines_with_an_unknown_key() -> None:
    found = parse(b"6,1,2,c;text\n SOMETHING=new\n DEVICE=b254:16\n SUBSYSTEM=block\n")
    assert found is not None
    assert (found.subsystem, found.device) == ("block", "b254:16")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("plain", "plain"),
        (r"a\x5cb", "a\\b"),
        (r"a\x0ab", "a\nb"),
        (r"\xc3\xa4", "ä"),
        (r"\xff", "\N{REPLACEMENT CHARACTER}"),
        (r"\xZZ", r"\xZZ"),
    ],
)
def test_escapes(written: str, meant: str) -> None:
    assert unescape(written) == meant


def test_an_escaped_newline_is_no_continuation() -> None:
    """A workload that gets a newline into a name must not get a DEVICE key with it."""
    found = parse(rb"6,1,2,-;name\x0a DEVICE=+pci:0000:01:00.0" + b"\n")
    assert found is not None
    assert found.device == ""


@pytest.mark.parametrize("data", [b"", b"text", b"6,1;text", b"a,b,c,-;text\n", b"6,1,2,-"])
def test_what_is_no_record(data: bytes) -> None:
    assert parse(data) is None


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (3_123_456, "[    3.123456] x"),
        (0, "[    0.000000] x"),
        (12_345_000_001, "[12345.000001] x"),
    ],
)
def test_a_record_looks_as_in_dmesg(micros: int, shown: str) -> None:
    assert str(KernelRecord(sequence=1, micros=micros, level=6, text="x")) == shown


def test_reading_waits_for_nothing(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    source = Kmsg(fifo)
    writer = os.open(fifo, os.O_WRONLY)
    with pytest.raises(BlockingIOError):
        source.receive()
    os.write(writer, b"6,1,2,-;text\n")
    assert source.receive() == b"6,1,2,-;text\n"
    os.close(writer)
    source.close()


def test_the_buffer_holds_the_longest_record() -> None:
    """PRINTK_MESSAGE_MAX is 2 KiB since 6.3, CONSOLE_EXT_LOG_MAX 8 KiB before: else EINVAL."""
    assert RECORD_SIZE >= 8192

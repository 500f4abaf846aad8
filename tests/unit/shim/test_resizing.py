"""A disk grows: what QEMU is asked, and what it is not."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.resizing import resize_disk
from innkeeper.v1 import host_pb2
from tests.fakes.plug_bench import LIMIT, PlugBench, plug_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MIB = 1 << 20


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PlugBench]:
    async with plug_bench(tmp_path) as made:
        await made.plug()
        yield made


async def resize(bench: PlugBench, size: int, device_id: str = "data") -> int:
    return await resize_disk(bench.table, bench.plugger._monitor, device_id, size)


async def refusal(bench: PlugBench, size: int, device_id: str = "data") -> ShimError:
    bench.qemu.commands.clear()
    with pytest.raises(ShimError) as caught:
        await resize(bench, size, device_id)
    assert bench.qemu.commands in ([], ["block_resize"])
    return caught.value


async def test_the_new_size_is_qemus_to_make(bench: PlugBench) -> None:
    assert await resize(bench, MIB) == MIB
    assert list(bench.qemu.sizes.values()) == [MIB]
    assert bench.qemu.commands[-1] == "block_resize"


async def test_a_file_that_has_grown_is_looked_at_again(bench: PlugBench) -> None:
    """In whole sectors, as QEMU has it."""
    os.truncate(bench.content.file, 2 * MIB + 100)
    assert await resize(bench, 0) == 2 * MIB


async def test_a_disk_never_shrinks(bench: PlugBench) -> None:
    error = await refusal(bench, 512)
    assert error.reason is Reason.RESIZE_REFUSED
    assert "it has 1 KiB (1024 bytes)" in error.message


@pytest.mark.parametrize("size", [MIB + 1, 1 << 63])
async def test_a_size_that_no_disk_has(bench: PlugBench, size: int) -> None:
    assert (await refusal(bench, size)).reason is Reason.BAD_FIELD


async def test_what_qemu_refuses_is_told_in_its_words(bench: PlugBench) -> None:
    """QEMU's NVMe does not share the permission to resize."""
    bench.qemu.refuse["block_resize"] = "Conflicts with use by /machine/peripheral/dev-data"
    error = await refusal(bench, MIB)
    assert error.reason is Reason.RESIZE_REFUSED
    assert "Conflicts with use" in error.message


async def test_what_is_no_disk_or_read_only_or_not_there(bench: PlugBench) -> None:
    assert (await refusal(bench, MIB, "other")).reason is Reason.UNKNOWN_DEVICE
    content = host_pb2.DiskFile(file=bench.content.file, read_only=True)
    await bench.plug_kinds(("ro", {"disk": host_pb2.Disk(content=content)}), timeout=LIMIT)
    assert "read-only" in (await refusal(bench, MIB, "ro")).message
    await bench.plugger.unplug("ro", LIMIT)
    await bench.plug_kinds(("rng", {"rng": host_pb2.Rng()}), timeout=LIMIT)
    assert "is no disk" in (await refusal(bench, MIB, "rng")).message


async def test_the_size_of_a_qcow2_file_is_not_its_disks(bench: PlugBench, tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(b"QFI\xfb" + (3).to_bytes(4, "big") + bytes(200))
    content = host_pb2.DiskFile(file=str(tmp_path / "q"), format="qcow2")
    await bench.plug_kinds(("q", {"disk": host_pb2.Disk(content=content)}), timeout=LIMIT)
    assert (await refusal(bench, 0, "q")).reason is Reason.BAD_FIELD
    assert await resize(bench, MIB, "q") == MIB

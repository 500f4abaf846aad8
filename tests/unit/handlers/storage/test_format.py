"""Making a file system only where there is nothing: with the real blkid and mkfs, on files."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.model import DeviceNode
from agent.handlers.storage.format import (
    MAKERS,
    Below,
    first_line,
    format_if_empty,
    parse_export,
    unfinished,
)
from tests.fakes.storage_jobs import JobBench, job_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MIB = 1 << 20
# Below it mkfs.xfs refuses (xfsprogs 5.19: "Filesystem must be larger than 300MB").
SIZE = 320 * MIB
PATHS = "/usr/sbin:/sbin:/usr/bin:/bin"


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobBench]:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{PATHS}")
    async with job_bench(tmp_path) as made:
        yield made


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=PATHS) is None:
            pytest.skip(f"{program} is not on this machine")


def disk(lab: JobBench, name: str = "vdb", size: int = SIZE) -> DeviceNode:
    """A file of zeros; the numbers tell disks apart."""
    node = lab.disk(name, f"254:{16 * ord(name[-1])}", b"")
    os.truncate(node.path, size)
    lab.bench.sysfs.write(lab.directory(node) / "size", str(size // 512))
    return node


def write(node: DeviceNode, at: int, data: bytes) -> None:
    with open(node.path, "r+b") as file:
        file.seek(at)
        file.write(data)


def head(node: DeviceNode) -> bytes:
    with open(node.path, "rb") as file:
        return file.read(2 * MIB)


def program(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def form(
    lab: JobBench,
    node: DeviceNode,
    fs_type: str = "ext4",
    *,
    read_only: bool = False,
    below: Below | None = None,
) -> bool:
    within = Deadline.after(60.0)
    return await format_if_empty(lab.tools, node, fs_type, within, read_only=read_only, below=below)


async def refused(awaitable: Awaitable[object], reason: Reason = Reason.FORMAT_REFUSED) -> str:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return str(caught.value)


def type_of(node: DeviceNode) -> str:
    argv = ["blkid", "-p", "-o", "value", "-s", "TYPE", node.path]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.parametrize("fs_type", MAKERS)
async def test_an_empty_disk_gets_its_file_system_once(lab: JobBench, fs_type: str) -> None:
    need("blkid", f"mkfs.{fs_type}")
    node = disk(lab)
    assert await form(lab, node, fs_type)
    assert type_of(node) == fs_type
    first = head(node)
    assert not await form(lab, node, fs_type)
    assert not await form(lab, node, fs_type, read_only=True)
    assert head(node) == first


def dump(node: DeviceNode) -> str:
    argv = ["dumpe2fs", "-h", node.path]
    return subprocess.check_output(argv, stderr=subprocess.DEVNULL, text=True)


async def test_an_ext4_of_all_the_blocks(lab: JobBench) -> None:
    """dumpe2fs(8) tells: nothing is kept for root."""
    need("blkid", "mkfs.ext4", "dumpe2fs")
    node = disk(lab)
    await form(lab, node)
    assert "Reserved block count:     0\n" in dump(node)
    assert "has_journal" in dump(node)


@pytest.mark.parametrize(
    ("at", "data", "told"),
    [
        (0, b"LUKS\xba\xbe\x00\x02" + bytes(4088), "crypto_LUKS"),
        (0, b"hsqs" + bytes(24) + b"\x04\x00\x00\x00" + bytes(480), "squashfs"),
        # An MBR with one partition of type 83.
        (446, b"\0\0\0\0\x83\0\0\0\0\x08\0\0\0\x08\0\0" + bytes(48) + b"\x55\xaa", "a dos part"),
    ],
)
async def test_a_disk_that_holds_something_else(
    lab: JobBench, at: int, data: bytes, told: str
) -> None:
    need("blkid")
    node = disk(lab)
    write(node, at, data)
    before = head(node)
    assert f"it is not empty: it holds {told}" in await refused(form(lab, node))
    assert head(node) == before


async def test_another_file_system_than_asked_for(lab: JobBench) -> None:
    need("blkid", "mkfs.ext4", "mkfs.xfs")
    node = disk(lab)
    await form(lab, node, "ext4")
    assert "it holds ext4" in await refused(form(lab, node, "xfs"))
    assert type_of(node) == "ext4"


@pytest.mark.parametrize("at", [0, 512, 200 * 1024, MIB - 1])
@pytest.mark.parametrize("fs_type", MAKERS)
async def test_a_disk_of_data_that_blkid_does_not_know(
    lab: JobBench, fs_type: str, at: int
) -> None:
    """Encrypted without a header, or a database's own format: it may be all that there is."""
    need("blkid")
    node = disk(lab)
    # Noise, but the same one each time: blkid has signatures of two bytes.
    write(node, at, bytes((i * i * 31 + 7) % 251 for i in range(1, 4097)))
    before = head(node)
    message = await refused(form(lab, node, fs_type))
    assert f"{node.path} was written to at byte {at // 512 * 512}" in message
    assert "is it encrypted? Then its key is needed" in message
    assert head(node) == before


async def test_data_behind_the_first_mebibyte_alone_are_not_seen(lab: JobBench) -> None:
    """What the promise says, and no more."""
    need("blkid", "mkfs.ext4")
    node = disk(lab)
    write(node, MIB, b"x")
    assert await form(lab, node)


async def test_several_signatures(lab: JobBench, tmp_path: Path) -> None:
    """Exit status 8 of blkid(8)."""
    program(tmp_path, "blkid", "exit 8")
    assert "signatures of several kinds" in await refused(form(lab, disk(lab)))


async def test_blkid_fails(lab: JobBench, tmp_path: Path) -> None:
    program(tmp_path, "blkid", "echo broken >&2; exit 4")
    assert "exit status 4: broken" in await refused(form(lab, disk(lab)))


async def test_an_empty_partition_is_empty(lab: JobBench, tmp_path: Path) -> None:
    """blkid tells of the table that it is in, and so exits with 0."""
    need("mkfs.ext4")
    program(tmp_path, "blkid", "echo DEVNAME=x; echo PART_ENTRY_SCHEME=gpt; echo PART_ENTRY_TYPE=y")
    assert await form(lab, disk(lab))


async def test_a_disk_that_cannot_be_read(lab: JobBench, tmp_path: Path) -> None:
    """blkid exits with 2 then, as for an empty one."""
    program(tmp_path, "blkid", "exit 2")
    program(tmp_path, "mkfs.ext4", f"touch {tmp_path}/made")
    node = disk(lab)
    # 128 KiB at its beginning, 64 KiB at its end, its first MiB as a whole.
    for n in range(1, 14):
        lab.files.calls.clear()
        lab.files.fail_at = n
        assert "nobody knows what it holds" in await refused(form(lab, node))
        assert not (tmp_path / "made").exists()
    lab.files.fail_at = 0
    assert await form(lab, node)


async def test_empty_and_read_only(lab: JobBench) -> None:
    need("blkid")
    node = disk(lab)
    assert "nothing to mount" in await refused(form(lab, node, read_only=True))
    lab.bench.sysfs.write(lab.directory(node) / "ro", "1")
    assert "nothing to mount" in await refused(form(lab, node))


async def test_a_type_that_is_not_made(lab: JobBench) -> None:
    message = await refused(form(lab, disk(lab), "squashfs"))
    assert "squashfs is not made here: known are ext4, xfs, btrfs" in message


@pytest.mark.parametrize(
    ("missing", "package"), [("blkid", "util-linux"), ("mkfs.btrfs", "btrfs-progs")]
)
async def test_a_tool_that_the_image_lacks(
    lab: JobBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, package: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if missing != "blkid":
        program(tmp_path, "blkid", "exit 2")
    message = await refused(form(lab, disk(lab), "btrfs"))
    assert f"{missing} is not in this image" in message
    assert f"the package {package}" in message


async def test_too_small_for_xfs(lab: JobBench, tmp_path: Path) -> None:
    """mkfs.xfs(8) would say so in 40 lines."""
    program(tmp_path, "blkid", "exit 2")
    message = await refused(form(lab, disk(lab, size=299 * MIB), "xfs"))
    assert "it has 299 MiB, and xfs needs at least 300" in message


async def test_mkfs_refuses(lab: JobBench, tmp_path: Path) -> None:
    """What is wrong comes back, neither the tool's version nor how it is used."""
    program(tmp_path, "blkid", "exit 2")
    said = "echo mke2fs 1.47.0 >&2; echo Device too small >&2; echo Usage: >&2; exit 1"
    program(tmp_path, "mkfs.ext4", said)
    message = await refused(form(lab, disk(lab)))
    assert message.endswith("mkfs.ext4: exit status 1: Device too small")


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("", ""),
        ("mke2fs 1.47.0 (5-Feb-2023)\n\n  x: no space\nmore", "x: no space"),
        (
            "Filesystem must be larger than 300MB.\nUsage: mkfs.xfs\n",
            "Filesystem must be larger than 300MB.",
        ),
        ("btrfs-progs v6.2\nERROR: too small", "ERROR: too small"),
    ],
)
def test_the_line_that_says_what_is_wrong(output: str, line: str) -> None:
    assert first_line(output) == line


async def test_what_a_failed_mkfs_left_is_cleared(lab: JobBench, tmp_path: Path) -> None:
    """Or the disk would not count as new any more."""
    program(tmp_path, "blkid", "exit 2")
    node = disk(lab)
    program(
        tmp_path, "mkfs.ext4", f"printf x | dd of={node.path} seek=5000 bs=1 conv=notrunc; exit 1"
    )
    await refused(form(lab, node))
    assert head(node) == bytes(2 * MIB)


async def test_what_somebody_else_made_is_not_cleared(lab: JobBench, tmp_path: Path) -> None:
    need("mkfs.ext4", "blkid")
    node = disk(lab)
    real = shutil.which("mkfs.ext4", path=PATHS)
    program(tmp_path, "mkfs.ext4", f"{real} -q {node.path}; exit 1")
    await refused(form(lab, node))
    assert type_of(node) == "ext4"


@pytest.mark.parametrize("fs_type", MAKERS)
async def test_what_is_made_between_look_and_clearing_stays(
    lab: JobBench, tmp_path: Path, fs_type: str
) -> None:
    """By another attachment, that is, of the same disk: blkid saw nothing yet."""
    need(f"mkfs.{fs_type}")
    node = disk(lab)
    program(tmp_path, "blkid", "exit 2")
    real = shutil.which(f"mkfs.{fs_type}", path=PATHS)
    program(tmp_path, f"mkfs.{fs_type}", f"{real} -q {node.path}; exit 1")
    await refused(form(lab, node, fs_type))
    assert lab.files.calls[-1] == "clear_disk"
    (tmp_path / "bin/blkid").unlink()
    assert type_of(node) == fs_type


async def test_a_failed_mkfs_that_cannot_be_cleared(lab: JobBench, tmp_path: Path) -> None:
    """The mkfs's own failure is what is told."""
    program(tmp_path, "blkid", "exit 2")
    program(tmp_path, "mkfs.ext4", "exit 7")
    for n in (14, 26):  # a read, and the clearing itself
        lab.files.calls.clear()
        lab.files.fail_at = n
        assert "exit status 7" in await refused(form(lab, disk(lab)))
    assert lab.files.calls[-1] == "clear_disk"


async def test_mkfs_takes_too_long(lab: JobBench, tmp_path: Path) -> None:
    program(tmp_path, "blkid", "exit 2")
    program(tmp_path, "mkfs.ext4", "exec tail -f /dev/null")
    making = format_if_empty(lab.tools, disk(lab), "ext4", Deadline.after(0.5), read_only=False)
    assert "was killed" in await refused(making, Reason.OPERATION_TIMED_OUT)


@pytest.mark.parametrize("fs_type", MAKERS)
@pytest.mark.parametrize("write_number", [2, 5, 12, 40])
async def test_a_mkfs_killed_half_way_can_be_repeated(
    lab: JobBench, tmp_path: Path, fs_type: str, write_number: int
) -> None:
    """strace(1) kills the real tool at its n-th write; the same request then works."""
    need("blkid", "strace", f"mkfs.{fs_type}")
    node = disk(lab)
    real = shutil.which(f"mkfs.{fs_type}", path=PATHS)
    kill = f"pwrite64,write:signal=KILL:when={write_number}"
    script = f'exec strace -f -qq -o /dev/null -e inject={kill} {real} "$@"'
    program(tmp_path, f"mkfs.{fs_type}", script)
    assert "SIGKILL" in await refused(form(lab, node, fs_type))
    (tmp_path / "bin" / f"mkfs.{fs_type}").unlink()
    assert await form(lab, node, fs_type)
    assert type_of(node) == fs_type
    assert unfinished(head(node)) == ""
    assert not await form(lab, node, fs_type)


async def test_an_unfinished_one_of_another_type(lab: JobBench, tmp_path: Path) -> None:
    program(tmp_path, "blkid", "exit 2")
    node = disk(lab)
    write(node, 65600, b"!BHRfS_M")
    assert "holds a btrfs that was not finished" in await refused(form(lab, node))


async def encrypted(lab: JobBench) -> tuple[DeviceNode, Below]:
    """A new disk under a key: zeros below, and so noise above."""
    raw = disk(lab, "vdc")
    above = disk(lab, "vdb")
    write(above, 0, os.urandom(2 * MIB))
    return above, Below(node=raw, offset=4096)


async def test_a_new_encrypted_disk(lab: JobBench) -> None:
    need("blkid", "mkfs.ext4")
    node, below = await encrypted(lab)
    assert await form(lab, node, below=below)
    assert not await form(lab, node, below=below)


async def test_an_encrypted_disk_under_a_wrong_key(lab: JobBench) -> None:
    """All noise, but written to: what is on it must stay."""
    need("blkid")
    node, below = await encrypted(lab)
    write(below.node, 4096 + 1024, b"written")
    before = head(node)
    message = await refused(form(lab, node, below=below))
    assert f"{below.node.path} was written to at byte 5120" in message
    assert "is the key right?" in message
    assert head(node) == before


async def test_a_disk_below_that_cannot_be_read(lab: JobBench) -> None:
    need("blkid")
    node, below = await encrypted(lab)
    os.truncate(below.node.path, 4096)
    assert errno.errorcode[errno.ENXIO] in await refused(form(lab, node, below=below))


@pytest.mark.parametrize(
    ("output", "values"),
    [
        (b"DEVNAME=/dev/x\nTYPE=ext4\n", {"DEVNAME": "/dev/x", "TYPE": "ext4"}),
        (b"LABEL=a=b\\ c\n\n=x\nodd\n", {"LABEL": "a=b\\ c", "odd": ""}),
        (b"", {}),
    ],
)
def test_the_output_of_blkid(output: bytes, values: dict[str, str]) -> None:
    assert parse_export(output) == values


@given(st.binary())
def test_any_output_is_read(output: bytes) -> None:
    assert "" not in parse_export(output)
    assert unfinished(output) in ("", "xfs", "btrfs")

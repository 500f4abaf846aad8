"""Copies on real file systems: full, read-only, layered, with mounts and devices, hung."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from agent.core.copies import CopyInRules, CopyOutRules, CopyPlace, CopyWorkers
from agent.core.errors import AgentError, Code, Reason
from agent.linux import mounting
from agent.linux.copyframes import Entry, EntryType, pack_part, unpack_parts
from agent.linux.mounting import MountFlag, UnmountFlag
from tests.privileged import fuse

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and owners"),
]

MIB = 1 << 20
RULES = CopyInRules()


@contextlib.contextmanager
def mounted(source: str, target: Path, fs_type: str, data: str = "") -> Iterator[Path]:
    target.mkdir(exist_ok=True)
    mounting.mount(source, str(target), fs_type, data=data)
    try:
        yield target
    finally:
        mounting.unmount(str(target), UnmountFlag.DETACH)


@contextlib.contextmanager
def bound(source: Path, target: Path, *, read_only: bool = False) -> Iterator[None]:
    mounting.mount(str(source), str(target), flags=MountFlag.BIND)
    if read_only:
        flags = MountFlag.BIND | MountFlag.REMOUNT | MountFlag.RDONLY
        mounting.mount(None, str(target), flags=flags)
    try:
        yield
    finally:
        mounting.unmount(str(target), UnmountFlag.DETACH)


def place(root: Path, path: str = "") -> CopyPlace:
    return CopyPlace(root=str(root), path=path, name="storage data")


def file(
    path: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] = (0, 0)
) -> tuple[bytes, ...]:
    entry = Entry(path, EntryType.FILE, mode, *owner, len(data))
    return pack_part(entry, 0, data)


async def copy_in(root: Path, *batches: tuple[bytes, ...], path: str = "") -> None:
    async def each() -> AsyncIterator[tuple[bytes, ...]]:
        for batch in batches:
            yield batch

    await CopyWorkers().copy_in(place(root, path), RULES, each())


async def copy_out(
    root: Path, path: str = "", workers: CopyWorkers | None = None
) -> tuple[dict[str, bytes], set[str]]:
    found: dict[str, bytes] = {}
    left_out: set[str] = set()
    name = ""
    copy = (workers or CopyWorkers()).copy_out(place(root, path), CopyOutRules(recursive=True))
    async with aclosing(copy) as frames:
        async for frame in frames:
            left_out |= set(frame.left_out)
            for part in unpack_parts(frame.parts):
                if part.entry is not None:
                    name = part.entry.path
                    found[name] = b""
                found[name] += bytes(part.hole) + bytes(part.data)
    return found, left_out


async def test_a_full_file_system_keeps_the_old_file_and_names_the_new(tmp_path: Path) -> None:
    """ENOSPC of write(2); the room of what was not finished is free again."""
    with mounted("tmpfs", tmp_path / "small", "tmpfs", "size=1m") as top:
        (top / "f").write_bytes(b"old")
        with pytest.raises(AgentError) as raised:
            await copy_in(top, file("first", b"1"), file("f", bytes(MIB)[:-1] + b"x" * MIB))
        error = raised.value
        assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, Reason.NO_SPACE)
        assert error.fields["path"] == "f"
        assert {each.name: each.read_bytes() for each in top.iterdir()} == {
            "f": b"old",
            "first": b"1",
        }
        await copy_in(top, file("f", b"x" * (MIB // 2)))


async def test_owner_and_set_id_bits_are_both_there(tmp_path: Path) -> None:
    """chown(2) takes set-id bits away, so they have to come last."""
    data = pack_part(Entry("d", EntryType.DIRECTORY, 0o2770, 1000, 1001), 0, b"")
    link = pack_part(Entry("l", EntryType.LINK, 0o777, 1002, 1003, 0, None, "d/f"), 0, b"")
    await copy_in(tmp_path, data, file("d/f", b"x", 0o6755, (1004, 1005)), link)
    for name, mode, owner in (
        ("d", 0o2770, (1000, 1001)),
        ("d/f", 0o6755, (1004, 1005)),
        ("l", 0o777, (1002, 1003)),
    ):
        found = (tmp_path / name).lstat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, *owner)


async def test_mounts_and_devices_are_told_and_left_out(tmp_path: Path) -> None:
    """Also mounts of the same file system, of a directory and of a file."""
    top, other = tmp_path / "top", tmp_path / "other"
    for folder in (top, other, top / "bound", top / "small"):
        folder.mkdir()
    for name in ("f", "g"):
        (top / name).write_bytes(b"own")
        (other / name).write_bytes(b"other")
    os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with (
        bound(other, top / "bound"),
        bound(other / "g", top / "g"),
        mounted("tmpfs", top / "small", "tmpfs"),
    ):
        found, left_out = await copy_out(top)
    assert found == {"": b"", "f": b"own"}
    assert left_out == {
        "bound: a mount",
        "g: a mount",
        "small: a mount",
        "null: a character device",
    }


async def test_a_link_of_proc_that_jumps_is_not_followed(tmp_path: Path) -> None:
    """/proc/PID/root leads to anywhere, whatever the path says (RESOLVE_NO_MAGICLINKS)."""
    with mounted("proc", tmp_path / "proc", "proc"):
        for path in (f"proc/{os.getpid()}/root/etc", f"proc/{os.getpid()}/cwd"):
            with pytest.raises(AgentError) as raised:
                await copy_out(tmp_path, f"{path}/x")
            assert raised.value.reason is Reason.LEADS_OUTSIDE
            with pytest.raises(AgentError) as raised:
                await copy_in(tmp_path, file("evil", b"x"), path=path)
            assert raised.value.reason is Reason.LEADS_OUTSIDE


async def test_a_read_only_file_system_refuses(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir()
    with (
        bound(tmp_path / "ro", tmp_path / "ro", read_only=True),
        pytest.raises(AgentError, match="read-only") as raised,
    ):
        await copy_in(tmp_path / "ro", file("f", b"x"))
    assert (raised.value.code, raised.value.fields["errno"]) == (Code.FAILED_PRECONDITION, "EROFS")


async def test_a_container_root_of_layers(tmp_path: Path) -> None:
    """An overlay: a file of the layer below is replaced, the layer stays as it was."""
    with mounted("tmpfs", tmp_path / "base", "tmpfs") as base:
        for name in ("lower", "upper", "work"):
            (base / name).mkdir()
        (base / "lower/f").write_bytes(b"old")
        (base / "lower/d").mkdir()
        options = ",".join(f"{key}dir={base / key}" for key in ("lower", "upper", "work"))
        try:
            with mounted("overlay", tmp_path / "merged", "overlay", options) as merged:
                await copy_in(merged, file("f", b"new"), file("d/g", b"g"))
                assert (await copy_out(merged))[0] == {"": b"", "d": b"", "d/g": b"g", "f": b"new"}
        except OSError as error:
            pytest.skip(f"no overlay here: {error}")
        assert (base / "lower/f").read_bytes() == b"old"


@pytest.mark.skipif(not fuse.NODE.exists(), reason="this machine's kernel has no FUSE")
@pytest.mark.parametrize("manners", [fuse.Manners.DEAF, fuse.Manners.MUTE])
async def test_a_server_that_does_not_answer_costs_a_worker_and_no_more(
    tmp_path: Path, manners: fuse.Manners
) -> None:
    """A copy that does not move is given up with a reason, and others go on."""
    (tmp_path / "hung").mkdir()
    (tmp_path / "good").mkdir()
    workers = CopyWorkers(patience=2.0)
    with fuse.mounted(tmp_path / "hung") as server:
        server.manners = manners
        with pytest.raises(AgentError) as raised:
            await copy_out(tmp_path, "hung", workers)
        assert raised.value.reason is Reason.OPERATION_TIMED_OUT

        async def one() -> AsyncIterator[tuple[bytes, ...]]:
            yield file("f", b"x")

        await workers.copy_in(place(tmp_path / "good"), RULES, one())
    assert (tmp_path / "good/f").read_bytes() == b"x"
    async with asyncio.timeout(20):
        await workers.close()
    assert workers.busy == 0

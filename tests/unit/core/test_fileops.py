"""File-system calls in worker processes: real workers, on ordinary files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core import fileops
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.fileops import (
    IDLE_LIMIT,
    OBJECT_LIMIT,
    BindMount,
    FileRefusal,
    FileWorkers,
    FsMount,
    Location,
    MountOption,
    OverlayMount,
)
from agent.linux.mounting import MountFlag, UnmountFlag
from tests.fakes.hotplug import turns
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def workers() -> AsyncIterator[FileWorkers]:
    made = FileWorkers(limit=2)
    yield made
    await made.close()
    if made._ending:
        await asyncio.wait(made._ending)


def ample() -> Deadline:
    return Deadline.after(60.0)


def pid(workers: FileWorkers) -> int:
    (idle,) = workers._idle
    return idle.pid


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A file whose reader waits for a writer that never comes."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


async def hang(workers: FileWorkers, path: Path) -> asyncio.Future[str]:
    """A call that is under way in a worker and will not come back."""
    task = asyncio.ensure_future(workers.read_text(path, ample()))
    await turns(1)
    while (fd := writing_end(path)) is None:
        await turns(1)
    task.add_done_callback(lambda _: os.close(fd))
    return task


def writing_end(path: Path) -> int | None:
    """Opening for writing fails until the worker has come to its own open."""
    with contextlib.suppress(OSError):
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    return None


async def test_calls_and_their_results(workers: FileWorkers, tmp_path: Path) -> None:
    path = tmp_path / "made"
    await workers.mkdir(str(path), ample(), mode=0o700)
    assert path.stat().st_mode & 0o777 == 0o700
    await workers.check_empty_directory(str(path), ample())
    assert not await workers.is_mount(str(path), ample())
    assert await workers.is_mount("/proc", ample())
    size = await workers.statfs("/proc", ample())
    assert (size.size, size.free) == (0, 0)
    await workers.rmdir(str(path), ample())
    assert not path.exists()
    (tmp_path / "file").write_text("old")
    await workers.write_text(tmp_path / "file", "new", ample())
    assert await workers.read_text(tmp_path / "file", ample()) == "new"


async def test_statfs_agrees_with_the_c_library(workers: FileWorkers, tmp_path: Path) -> None:
    expected = os.statvfs(tmp_path)
    size = await workers.statfs(str(tmp_path), ample())
    assert size.size == expected.f_blocks * expected.f_frsize
    assert size.files == expected.f_files


async def test_the_kernels_refusal_comes_back_exact(workers: FileWorkers, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for call, name in (
        (workers.rmdir(gone, ample()), "rmdir"),
        (workers.unmount(gone, UnmountFlag.NOFOLLOW, ample()), "unmount"),
        (workers.statfs(gone, ample()), "statfs"),
        (workers.mount(FsMount(source="x", fs_type="ext4"), gone, ample()), "openat2"),
    ):
        with pytest.raises(OSError, match=name) as caught:
            await call
        assert caught.value.errno in (errno.ENOENT, errno.EPERM)
        assert caught.value.filename == gone
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        await workers.mkdir(str(tmp_path / "file"), ample())
    with pytest.raises(NotADirectoryError):
        await workers.check_empty_directory(str(tmp_path / "file"), ample())


async def test_a_refused_mount_is_told_with_its_log(workers: FileWorkers, tmp_path: Path) -> None:
    """Without privileges fsopen(2) is EPERM; with them the option is EINVAL."""
    call = FsMount(fs_type="ramfs", source="x", options=(MountOption(key="mode", value="x"),))
    with pytest.raises(FileRefusal, match=r"fsopen|fsconfig\(mode\)") as caught:
        await workers.mount(call, str(tmp_path), ample())
    assert caught.value.errno in (errno.EPERM, errno.EINVAL)
    assert caught.value.filename == str(tmp_path)
    if caught.value.errno == errno.EINVAL:
        assert "mode" in caught.value.log[0]


async def test_what_a_location_is(workers: FileWorkers, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dir")
    root = str(tmp_path)
    assert await workers.is_directory(Location(root=root), ample())
    assert await workers.is_directory(Location(root=root, path="link"), ample())
    assert not await workers.is_directory(Location(root=root, path="file"), ample())
    with pytest.raises(FileNotFoundError):
        await workers.is_directory(Location(root=root, path="gone"), ample())
    with pytest.raises(OSError, match="is_directory") as caught:
        await workers.is_directory(Location(root=root, path="link", links=False), ample())
    assert caught.value.errno == errno.ELOOP


async def test_a_request_of_more_than_a_packet(workers: FileWorkers, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    await workers.write_text(path, "x" * 500_000, ample())
    assert await workers.read_text(path, ample()) == "x" * 500_000


async def test_a_directory_must_be_empty_and_itself(workers: FileWorkers, tmp_path: Path) -> None:
    (tmp_path / "full/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("full")
    with pytest.raises(OSError, match="Directory not empty") as caught:
        await workers.check_empty_directory(str(tmp_path / "full"), ample())
    assert caught.value.errno == errno.ENOTEMPTY
    for path in ("link", "link/inner"):
        with pytest.raises(OSError, match="check_empty") as caught:
            await workers.check_empty_directory(str(tmp_path / path), ample())
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


async def test_one_warm_worker_serves_call_after_call(workers: FileWorkers, tmp_path: Path) -> None:
    await workers.start()
    first = pid(workers)
    for _ in range(20):
        await workers.statfs(str(tmp_path), ample())
        with pytest.raises(FileNotFoundError):
            await workers.rmdir(str(tmp_path / "gone"), ample())
    assert pid(workers) == first


async def test_some_stay_for_a_while_when_there_is_much_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of a worker costs a start of Python; and an agent at rest has one."""
    monkeypatch.setattr(fileops, "LINGER", 2.0)
    made = FileWorkers(limit=8)

    async def all_at_once() -> None:
        for number in range(8):
            (tmp_path / str(number)).mkdir(exist_ok=True)
        calls = (made.check_directory(str(tmp_path / str(n)), ample()) for n in range(8))
        await asyncio.gather(*calls)

    await all_at_once()
    kept = {each.pid for each in made._idle}
    assert len(kept) == IDLE_LIMIT
    await until(lambda: len(made._idle) == 1)
    assert made._idle[0].pid in kept
    await made.close()
    assert made._idle == []


async def test_a_late_call_costs_its_worker_and_names_call_and_object(
    workers: FileWorkers, hanging: Path
) -> None:
    with pytest.raises(AgentError) as caught:
        await workers.read_text(hanging, Deadline.after(0.2))
    error = caught.value
    assert (error.code, error.reason) == (Code.DEADLINE_EXCEEDED, Reason.OPERATION_TIMED_OUT)
    assert error.fields == {"call": "read_text", "object": str(hanging)}
    assert await workers.settled(str(hanging), 30.0)
    assert (await workers.statfs(str(hanging.parent), ample())).size > 0


async def test_other_calls_go_on_beside_a_stuck_one(workers: FileWorkers, hanging: Path) -> None:
    stuck = await hang(workers, hanging)
    assert (await workers.statfs(str(hanging.parent), ample())).size > 0
    assert not stuck.done()
    stuck.cancel()
    await asyncio.wait([stuck])
    assert await workers.settled(str(hanging), 30.0)


async def test_a_cancelled_call_costs_its_worker(workers: FileWorkers, hanging: Path) -> None:
    stuck = await hang(workers, hanging)
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    assert await workers.settled(str(hanging), 30.0)
    assert workers._ending == {}


async def test_after_a_call_was_given_up_another_worker_is_warm(
    workers: FileWorkers, hanging: Path
) -> None:
    """The next mount must not pay for the start of one."""
    await workers.start()
    first = pid(workers)
    with pytest.raises(AgentError):
        await workers.read_text(hanging, Deadline.after(0.05))
    assert workers._warming is not None
    await workers._warming
    second = pid(workers)
    assert second != first
    await workers.statfs("/proc", ample())
    assert pid(workers) == second


async def test_workers_are_bounded_and_the_error_says_what_holds_them(
    workers: FileWorkers, hanging: Path
) -> None:
    other = hanging.with_name("other")
    os.mkfifo(other)
    stuck = [await hang(workers, hanging), await hang(workers, other)]
    with pytest.raises(AgentError, match="all 2 file-system workers are busy") as caught:
        await workers.statfs("/", Deadline.after(0.05))
    assert caught.value.reason is Reason.LIMIT_REACHED
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)
    assert (await workers.statfs("/proc", ample())).size == 0


async def test_what_hangs_leaves_workers_for_everything_else(tmp_path: Path, hanging: Path) -> None:
    """A server that answers nothing: the agent serves all other storages meanwhile."""
    workers = FileWorkers(limit=OBJECT_LIMIT + 1)
    stuck = [await hang(workers, hanging) for _ in range(OBJECT_LIMIT)]
    with pytest.raises(AgentError, match=f"{OBJECT_LIMIT} earlier calls on {hanging}") as caught:
        await workers.read_text(hanging, Deadline.after(0.05))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    await workers.mkdir(str(tmp_path / "other"), ample())
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)
    assert await workers.settled(str(hanging), 30.0)
    await workers.close()


async def test_a_mount_counts_for_what_it_is_made_of(tmp_path: Path, hanging: Path) -> None:
    workers = FileWorkers(limit=OBJECT_LIMIT + 1)
    stuck = [await hang(workers, hanging) for _ in range(OBJECT_LIMIT)]
    layers = (Location(root=str(tmp_path)), Location(root=str(hanging), path="a"))
    for call in (
        BindMount(source=layers[1], flags=MountFlag(0)),
        OverlayMount(lowers=layers, flags=MountFlag(0)),
    ):
        with pytest.raises(AgentError, match=f"earlier calls on {hanging}"):
            await workers.mount(call, str(tmp_path), Deadline.after(0.05))
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)
    await workers.close()


async def test_a_mount_is_taken_off_when_all_workers_are_stuck(
    workers: FileWorkers, hanging: Path
) -> None:
    """umount2(2): MNT_DETACH waits for nobody, and is the way out of such a state."""
    stuck = [await hang(workers, hanging), await hang(workers, hanging)]
    with pytest.raises(AgentError, match="all 2 file-system workers are busy"):
        await workers.unmount(str(hanging), UnmountFlag.NOFOLLOW, Deadline.after(0.05))
    with pytest.raises(OSError, match="unmount"):
        await workers.unmount(str(hanging), UnmountFlag.DETACH | UnmountFlag.NOFOLLOW, ample())
    for task in stuck:
        task.cancel()
    await asyncio.wait(stuck)


async def test_a_dead_worker_is_replaced(workers: FileWorkers, tmp_path: Path) -> None:
    await workers.start()
    (first,) = workers._idle
    first.kill()
    await first._child.wait()
    assert (await workers.statfs("/proc", ample())).size == 0
    assert pid(workers) != first.pid


async def test_a_worker_that_dies_in_a_call_is_an_error_of_its_own(
    workers: FileWorkers, hanging: Path
) -> None:
    await workers.start()
    (worker,) = workers._idle
    stuck = await hang(workers, hanging)
    worker.kill()
    with pytest.raises(AgentError, match="ended in the middle") as caught:
        await stuck
    assert caught.value.code is Code.UNAVAILABLE


async def test_calls_at_once_get_their_own_answers(tmp_path: Path) -> None:
    workers = FileWorkers(limit=4)
    names = [f"d{number}" for number in range(12)]
    await asyncio.gather(*(workers.mkdir(str(tmp_path / name), ample()) for name in names))
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    await workers.close()


async def test_a_directory_is_reached_without_links_or_not_at_all(
    workers: FileWorkers, tmp_path: Path
) -> None:
    """A container may have left a link in its storage that leads to the guest's own root."""
    (tmp_path / "root").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/")
    await workers.check_directory(str(tmp_path / "root"), ample())
    wrong = {"file": errno.ENOTDIR, "link": errno.ENOTDIR, "link/usr": errno.ELOOP}
    for name, number in wrong.items():
        with pytest.raises(OSError, match="check_directory") as caught:
            await workers.check_directory(str(tmp_path / name), ample())
        assert caught.value.errno == number, name

"""Directories of the agent's making: made, bound, and gone with what is in them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.fileops import BindMount
from agent.core.sources import LocalSource, TmpfsSource
from tests.fakes.source_bench import SourceBench, every_call_fails, source_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SourceBench]:
    async with source_bench(tmp_path) as made:
        yield made


def place(call: object) -> Path:
    assert isinstance(call, BindMount)
    return Path(call.source.root, call.source.path)


async def test_in_the_guests_memory(bench: SourceBench) -> None:
    made = place(await bench.attach("l", LocalSource(mode=0o2770)))
    assert made.parent == bench.roots.local
    assert stat.S_IMODE(made.stat().st_mode) == 0o2770
    (made / "a/b").mkdir(parents=True)
    (made / "a/file").touch()
    assert await bench.storages.detach("l") == await _plain_detach(bench)
    assert not made.exists()


async def _plain_detach(bench: SourceBench) -> object:
    await bench.attach("other", TmpfsSource())
    return await bench.storages.detach("other")


async def test_in_a_storage_under_a_name_that_nobody_can_foresee(bench: SourceBench) -> None:
    await bench.attach("base", TmpfsSource())
    names = set()
    for _ in range(2):
        made = place(await bench.attach("l", LocalSource(storage_id="base")))
        assert made.parent == bench.point("base")
        assert made.name.startswith(".innkeeper-local-l-")
        names.add(made.name)
        await bench.storages.detach("l")
        assert os.listdir(bench.point("base")) == []
    assert len(names) == 2


async def test_what_stays_is_told(bench: SourceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = place(await bench.attach("l", LocalSource()))
    (made / "file").touch()

    unlink = os.unlink

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        if name == "file":
            raise PermissionError(errno.EPERM, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    detached = await bench.storages.detach("l")
    (told,) = detached.left
    assert f"{made.name}/file: Operation not permitted" in told
    with pytest.raises(AgentError):
        bench.storages.get("l")


async def test_a_new_agent_removes_what_an_attachment_half_way_left(bench: SourceBench) -> None:
    await bench.attach("l", LocalSource())
    bench.files.kernel.drop(str(bench.point("l")))
    bench.storages = bench.new_manager()
    await bench.storages.restore()
    assert list(bench.roots.local.iterdir()) == []


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EBUSY])
async def test_every_call_may_fail(bench: SourceBench, number: int, late: bool) -> None:
    bench.roots.local.mkdir()
    assert await every_call_fails(bench, "l", LocalSource(), errno=number, late=late) == 3


async def test_a_base_that_is_not_there(bench: SourceBench) -> None:
    with pytest.raises(AgentError) as caught:
        await bench.attach("l", LocalSource(storage_id="no"))
    assert caught.value.reason is Reason.UNKNOWN_STORAGE

"""tmpfs: what goes to the kernel for which request."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.fileops import FsMount
from agent.core.sources import TmpfsSource
from agent.linux.mounting import MountFlag
from tests.fakes.source_bench import SourceBench, every_call_fails, source_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SourceBench]:
    async with source_bench(tmp_path) as made:
        yield made


async def test_size_and_mode_become_options(bench: SourceBench) -> None:
    source = TmpfsSource(size=64 << 20, mode=0o2755)
    call = await bench.attach("t", source, options=("noexec,nosuid", "huge=never"), read_only=True)
    assert isinstance(call, FsMount)
    assert (call.fs_type, call.source) == ("tmpfs", "tmpfs")
    assert [str(each) for each in call.options] == ["size=67108864", "mode=2755", "huge=never"]
    assert call.flags == MountFlag.NOEXEC | MountFlag.NOSUID | MountFlag.RDONLY


async def test_case_40_user_space_words_end_here(bench: SourceBench) -> None:
    words = ("defaults", "_netdev", "x-systemd.automount", "nofail", "size=1m", "")
    call = await bench.attach("t", TmpfsSource(), options=words)
    assert isinstance(call, FsMount)
    assert [str(each) for each in call.options] == ["size=1m"]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (TmpfsSource(size=1 << 20), "size=2m"),
        (TmpfsSource(size=1 << 20), "nr_blocks=1k"),
        (TmpfsSource(mode=0o700), "mode=755"),
        (TmpfsSource(mode=0o10000), "noexec"),
    ],
)
async def test_what_is_said_twice_or_is_no_mode(
    bench: SourceBench, source: TmpfsSource, word: str
) -> None:
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("t", source, options=(word,))
    assert caught.value.reason is Reason.BAD_FIELD
    assert bench.traces() == before


@pytest.mark.parametrize("late", [False, True])
async def test_every_call_may_fail(bench: SourceBench, late: bool) -> None:
    failed = await every_call_fails(bench, "t", TmpfsSource(size=1), errno=errno.EIO, late=late)
    assert failed == 2

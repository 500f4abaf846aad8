"""Huge pages, case 42: any spelling, added and read back, shortfall refused, given back."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.fileops import FsMount
from agent.core.sources import HugetlbSource
from agent.linux import pseudo
from tests.fakes.source_bench import PAGE, SourceBench, every_call_fails, source_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

GIB = 1 << 30


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SourceBench]:
    async with source_bench(tmp_path) as made:
        made.add_pool(GIB)
        yield made


@pytest.mark.parametrize(
    ("options", "page", "pages"),
    [
        (("pagesize=2M", "size=64M"), PAGE, 32),
        (("size=67108864", "pagesize=2097152"), PAGE, 32),
        (("pagesize=1Gi", "size=2Gi"), GIB, 2),
        (("pageSize=2Mi", "size=4MB"), PAGE, 2),
        (("pagesize=2MB,size=2m",), PAGE, 1),
        (("pagesize=2M",), PAGE, 0),
        (("size=4M",), PAGE, 2),
        ((), PAGE, 0),
    ],
)
async def test_spellings(
    bench: SourceBench, options: tuple[str, ...], page: int, pages: int
) -> None:
    call = await bench.attach("h", HugetlbSource(), options=options)
    assert isinstance(call, FsMount)
    said = [f"pagesize={page}"] + ([f"size={page * pages}"] if pages else [])
    assert call.fs_type == "hugetlbfs"
    assert [str(each) for each in call.options] == said
    assert bench.pages(page) == pages
    await bench.storages.detach("h")
    assert bench.pages(page) == 0


async def test_typed_fields_and_other_options(bench: SourceBench) -> None:
    source = HugetlbSource(page_size=PAGE, size=3 * PAGE)
    call = await bench.attach("h", source, options=("mode=0770", "pagesize=2Mi", "noexec"))
    assert isinstance(call, FsMount)
    assert [str(each) for each in call.options] == [
        f"pagesize={PAGE}",
        f"size={3 * PAGE}",
        "mode=0770",
    ]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (HugetlbSource(), ("pagesize=3M",)),
        (HugetlbSource(page_size=4096), ()),
        (HugetlbSource(page_size=PAGE, size=PAGE + 1), ()),
        (HugetlbSource(page_size=PAGE), ("pagesize=1G",)),
        (HugetlbSource(), ("size=50%",)),
    ],
)
async def test_impossible_requests(
    bench: SourceBench, source: HugetlbSource, options: tuple[str, ...]
) -> None:
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("h", source, options=options)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert bench.traces() == before


async def test_an_unknown_size_is_told_those_that_the_kernel_has(bench: SourceBench) -> None:
    with pytest.raises(AgentError) as caught:
        await bench.attach("h", HugetlbSource(page_size=3 << 20))
    assert caught.value.fields["known"] == "2097152,1073741824"


async def test_a_shortfall(bench: SourceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.add_pool(PAGE, pages=4)

    def write(path: Path, text: str) -> None:
        path.write_text(str(min(int(text), 10)))

    monkeypatch.setattr(pseudo, "write", write)
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("h", HugetlbSource(page_size=PAGE, size=32 * PAGE))
    error = caught.value
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, Reason.NO_HUGE_PAGES)
    assert (error.fields["wanted"], error.fields["got"]) == ("32", "6")
    assert bench.traces() == before


@pytest.mark.parametrize(
    ("meminfo", "pages", "refused"),
    [
        ("MemTotal:  4194304 kB\nMemAvailable:  2097152 kB", 992, False),
        ("MemTotal:  4194304 kB\nMemAvailable:  2097152 kB", 993, True),
        ("HugePages_Total:  3", 1 << 20, False),
    ],
)
async def test_more_than_the_guest_has(
    bench: SourceBench, meminfo: str, pages: int, *, refused: bool
) -> None:
    """Refused before the kernel is asked, which would look for them for minutes, and give
    away what the agent itself lives on. proc(5): MemAvailable is what could be had without
    swapping."""
    (bench.roots.proc / "meminfo").write_text(f"{meminfo}\n")
    source = HugetlbSource(page_size=PAGE, size=pages * PAGE)
    if not refused:
        await bench.attach("h", source)
        return
    before = bench.traces()
    with pytest.raises(AgentError) as caught:
        await bench.attach("h", source)
    error = caught.value
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, Reason.NO_HUGE_PAGES)
    assert (error.fields["wanted"], error.fields["got"]) == (str(pages), "0")
    assert "more than the guest can spare: 2147483648 bytes" in error.message
    assert "add_huge_pages" not in bench.files.calls
    assert bench.traces() == before


async def test_two_storages_have_their_own(bench: SourceBench) -> None:
    bench.add_pool(PAGE, pages=1)
    for name in ("a", "b"):
        await bench.attach(name, HugetlbSource(size=2 * PAGE))
    assert bench.pages() == 5
    await bench.storages.detach("a")
    assert bench.pages() == 3
    await bench.storages.detach("b")
    assert bench.pages() == 1


async def test_an_agent_that_dies_half_way_gives_back_what_was_made(
    bench: SourceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the pages were added and before the mount: the next one takes them back,
    and once, also when it dies in the middle of that."""
    bench.add_pool(PAGE, pages=3)

    class KilledError(BaseException):
        pass

    def killed(path: Path, text: str) -> None:
        path.write_text(text)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(pseudo, "write", killed)
        with monkeypatch.context() as dead:
            dead.setattr("agent.core.undo.UndoStack.run", _nothing)
            with pytest.raises(KilledError):
                await bench.attach("h", HugetlbSource(size=4 * PAGE))
        assert bench.pages() == 7
        bench.storages = bench.new_manager()
        with pytest.raises(KilledError):
            await bench.storages.restore()
        assert bench.pages() == 3
    bench.storages = bench.new_manager()
    await bench.storages.restore()
    assert bench.pages() == 3
    assert bench.lab.state.load_all("storages") == {}


async def _nothing(_self: object) -> None: ...


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EBUSY])
async def test_every_call_may_fail(bench: SourceBench, number: int, late: bool) -> None:
    bench.add_pool(PAGE, pages=2)
    source = HugetlbSource(size=2 * PAGE)
    assert await every_call_fails(bench, "h", source, errno=number, late=late) == 3
    assert bench.pages() == 4

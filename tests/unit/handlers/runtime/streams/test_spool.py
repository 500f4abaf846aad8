"""The spool against a plain model: bytes that were written, and readers that come and go."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.errors import AgentError, Reason
from agent.core.life import StreamOptions, WhenFull
from agent.handlers.runtime.streams.readers import Cursor
from agent.handlers.runtime.streams.space import Space
from agent.handlers.runtime.streams.spool import BURST, Spool
from agent.linux.splicing import PAGE

pytestmark = [pytest.mark.unit, pytest.mark.containers]

WINDOW = 64 * 1024
SLACK = 64 * 1024 + PAGE
"""What may be kept above the rule: memory is given back in steps, and in pages."""

WAIT = StreamOptions(window=WINDOW)
DROP = StreamOptions(window=WINDOW, when_full=WhenFull.DROP)


PARTS = st.sampled_from([0.0, 0.3, 1.0])


def at(offset: int, count: int) -> bytes:
    """The model: what the process has written at an offset."""
    period = 251
    start = offset % period
    return (bytes(range(period)) * (count // period + 2))[start : start + count]


def write(spool: Spool, count: int) -> None:
    os.pwrite(spool.fd, at(spool.size, count), spool.size)
    spool.grew(count)


def fill(spool: Spool, *, most: int = 1 << 30) -> int:
    """As much as there is room for."""
    written = 0
    while written < most and (room := min(spool.room(), 16 * 1024, most - written)) > 0:
        write(spool, room)
        written += room
    return written


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "stdout", options=WAIT, space=Space())
    yield spool
    spool.close()


@pytest.fixture
def dropping(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "stdout", options=DROP, space=Space())
    yield spool
    spool.close()


def test_the_slowest_counts_and_one_that_may_miss_does_not(spool: Spool) -> None:
    fast, slow, careless = spool.enter(0), spool.enter(0), spool.enter(0, may_miss=True)
    assert fill(spool) == WINDOW
    spool.advance(fast, WINDOW)
    assert spool.room() == 0
    spool.advance(slow, WINDOW // 2)
    assert fill(spool) == WINDOW // 2
    spool.advance(slow, spool.size)
    spool.advance(fast, spool.size)
    while spool.kept <= careless.position:
        fill(spool)
        spool.advance(slow, spool.size)
        spool.advance(fast, spool.size)
    assert spool.size < 5 * WINDOW


def test_only_readers_that_may_miss_hold_nobody(spool: Spool) -> None:
    careless = spool.enter(0, may_miss=True)
    assert fill(spool, most=10 * WINDOW) == 10 * WINDOW
    assert careless.position == 0
    assert WINDOW <= spool.size - spool.kept <= WINDOW + SLACK
    spool.leave(careless, for_good=False)
    # Nobody is there: the process waits again.
    assert fill(spool) <= WINDOW


def test_a_reader_that_keeps_up_misses_nothing_though_it_may(spool: Spool) -> None:
    careless, steady = spool.enter(0, may_miss=True), spool.enter(0, name="steady")
    for _ in range(20):
        write(spool, WINDOW // 2)
        spool.advance(steady, spool.size)
        spool.acknowledge(spool.size, "steady")
        assert spool.kept <= careless.position
        spool.advance(careless, spool.size)


def test_a_reader_that_broke_off_keeps_its_place_until_it_is_forgotten(spool: Spool) -> None:
    fast, slow = spool.enter(0, name="fast"), spool.enter(0, name="slow")
    fill(spool)
    spool.advance(slow, WINDOW // 2)
    spool.acknowledge(1000, "slow")
    left = spool.leave(slow, for_good=False)
    assert left is slow
    for _ in range(10):
        spool.advance(fast, spool.size)
        spool.acknowledge(spool.size, "fast")
        fill(spool)
    assert spool.kept <= 1000
    assert spool.size <= WINDOW // 2 + WINDOW
    again = spool.enter(1000, name="slow")
    assert spool.readers.away == ()
    spool.forget(left)
    assert spool.room() <= 0, "it is back, so its place is not given up"
    left = spool.leave(again, for_good=False)
    assert left is not None
    spool.forget(left)
    assert fill(spool) > 0


def test_no_other_reader_takes_the_place(spool: Spool) -> None:
    """Though it begins at the same byte."""
    slow = spool.enter(0, name="slow")
    fill(spool)
    spool.advance(slow, 1000)
    spool.acknowledge(0, "slow")
    spool.leave(slow, for_good=False)
    for name in ("other", ""):
        other = spool.enter(0, name=name)
        spool.advance(other, spool.size)
        spool.acknowledge(spool.size, name)
        spool.leave(other, for_good=True)
    assert spool.kept == 0
    assert fill(spool) == 1000
    spool.enter(0, name="slow")


def test_the_old_call_of_a_reader_that_is_back_changes_nothing(spool: Spool) -> None:
    old = spool.enter(0, name="one")
    fill(spool)
    spool.advance(old, WINDOW // 2)
    spool.acknowledge(1000, "one")
    new = spool.enter(1000, name="one")
    spool.advance(old, WINDOW)
    assert spool.leave(old, for_good=True) is None
    assert (new.position, spool.kept) == (1000, 0)
    assert fill(spool) == 1000
    assert not spool.all_read
    # It acknowledged before; what it is sent now counts as had when it says so.
    spool.advance(new, spool.size)
    assert fill(spool) == WINDOW
    assert spool.room() == 0
    assert spool.leave(new, for_good=False) is new


def test_a_reader_without_a_name_is_gone_with_its_connection(spool: Spool) -> None:
    fast, slow = spool.enter(0), spool.enter(0)
    fill(spool)
    spool.advance(fast, spool.size)
    assert spool.room() == 0
    assert spool.leave(slow, for_good=False) is None
    assert fill(spool) == WINDOW
    assert spool.leave(fast, for_good=False) is None
    # What was read stays for the window.
    assert spool.kept == 0
    assert fill(spool) == 0


def test_one_that_acknowledged_and_left_holds_up_nobody_who_does_not(spool: Spool) -> None:
    told, silent = spool.enter(0), spool.enter(0)
    spool.acknowledge(0)
    spool.leave(told, for_good=False)
    for _ in range(10):
        assert fill(spool) == WINDOW
        spool.advance(silent, spool.size)
    spool.acknowledge(spool.size)
    spool.leave(silent, for_good=False)
    later = spool.enter(spool.size)
    for _ in range(10):
        assert fill(spool) == WINDOW
        spool.advance(later, spool.size)


def test_a_reader_that_is_done_leaves_no_place(spool: Spool) -> None:
    fast, slow = spool.enter(0, name="fast"), spool.enter(0, name="slow")
    fill(spool)
    spool.advance(fast, spool.size)
    assert spool.leave(slow, for_good=True) is None
    assert spool.room() == WINDOW


def test_an_heir_keeps_a_place_for_each_name_of_before(spool: Spool) -> None:
    fast, slow = spool.enter(0, name="fast"), spool.enter(0, name="slow")
    spool.enter(0)
    spool.enter(0, name="careless", may_miss=True)
    spool.leave(spool.enter(0, name="gone"), for_good=True)
    for _ in range(40):
        fill(spool)
        spool.advance(fast, spool.size)
        spool.advance(slow, spool.size - 1000)
    spool.close()
    heir = Spool(spool.path, options=WAIT, space=Space())
    assert heir.readers.names == {"fast", "slow"}
    assert len(heir.readers.away) == 2
    assert (heir.size, heir.kept) == (spool.size, spool.kept)
    back = heir.enter(heir.size, name="fast")
    heir.leave(heir.enter(heir.size, name="new"), for_good=True)
    assert heir.kept == spool.kept
    assert heir.room() <= 0, "the other one has not come back"
    again = heir.enter(heir.size - 1000, name="slow")
    assert not list(heir.readers.away)
    assert heir.room() == WINDOW - 1000
    for each in (back, again):
        heir.leave(each, for_good=True)
    heir.close()
    assert spool.path.with_suffix(".readers").read_bytes() == b""


def test_what_is_no_name_in_the_file_is_nobody(tmp_path: Path) -> None:
    """An agent may die while it writes it."""
    (tmp_path / "stdout.readers").write_bytes(b"good\n\n../bad\n\xff\xfe\nalso-good\nha")
    spool = Spool(tmp_path / "stdout", options=WAIT, space=Space())
    assert spool.readers.names == {"good", "also-good", "ha"}
    spool.close()


def test_a_process_that_drops_never_waits_and_the_window_is_kept(dropping: Spool) -> None:
    behind = dropping.enter(0)
    for _ in range(50):
        assert dropping.room() == BURST
        write(dropping, 10_000)
    assert behind.position == 0
    assert WINDOW <= dropping.size - dropping.kept <= WINDOW + SLACK
    # Whoever comes late begins with a gap; what is not there yet is still refused.
    dropping.enter(0)
    with pytest.raises(AgentError) as caught:
        dropping.enter(dropping.size + 1)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_full_tmpfs_costs_a_process_that_drops_its_oldest_half(dropping: Spool) -> None:
    write(dropping, WINDOW)
    assert dropping.shed()
    assert dropping.kept == WINDOW // 2
    while dropping.shed():
        pass
    assert dropping.size - dropping.kept <= PAGE


def test_nothing_is_shed_of_a_process_that_waits(spool: Spool) -> None:
    fill(spool)
    assert not spool.shed()
    assert spool.kept == 0


def test_unnamed_acknowledgements_of_one_don_t_cost_another(spool: Spool) -> None:
    """Without names they may be anybody's, so that much stays for everybody."""
    fast, slow = spool.enter(0), spool.enter(0)
    for _ in range(20):
        fill(spool)
        spool.advance(fast, spool.size)
        spool.acknowledge(spool.size)
        spool.advance(slow, max(slow.position, spool.size - WINDOW // 4))
    assert spool.kept <= slow.position - WINDOW


@dataclass(slots=True)
class Host:
    """It has all before `had`; what it was sent above that is lost with its connection."""

    name: str
    had: int = 0
    cursor: Cursor | None = None
    due: bool = False
    """Its connection broke, and its time is not over."""


class Books:
    """Hosts with names that read, acknowledge, lose connections and come back, also before
    the agent knows, or never; one without a name; one agent after another."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "stdout"
        self.spool = self._opened()
        self._hosts = [Host(f"host-{number}") for number in range(3)] + [Host("")]
        self._old: list[Cursor] = []

    def _opened(self) -> Spool:
        return Spool(self._path, options=WAIT, space=Space())

    def step(self, what: str, who: int, amount: int, got: float, told: float) -> None:
        host = self._hosts[who]
        match what:
            case "write":
                fill(self.spool, most=amount)
            case "read":
                self._read(host, amount, got, told)
            case "leave" if host.cursor is not None:
                self.spool.leave(host.cursor, for_good=False)
                self._broke(host)
            case "cut" if host.cursor is not None and host.name:
                # The agent has yet to find out, and the host may be back before that.
                self._old.append(host.cursor)
                self._broke(host)
            case "find out" if self._old:
                self._linger(self._old.pop(), amount)
            case "forget":
                self._forget(host)
            case "die":
                self._die()
        self._check()

    def _check(self) -> None:
        """What each may ask for is there, and not much more."""
        spool = self.spool
        needed = [each.had for each in self._hosts if each.name and (each.cursor or each.due)]
        assert all(had >= spool.kept for had in needed)
        assert spool.size - spool.kept <= 2 * WINDOW + SLACK
        assert spool.size <= min(needed, default=spool.size) + 2 * WINDOW + SLACK

    def _read(self, host: Host, amount: int, got: float, told: float) -> None:
        """It gets a part of all that is under way, and acknowledges a part of that."""
        cursor = host.cursor or self._come(host)
        start, spool = cursor.position, self.spool
        assert start >= spool.kept
        count = min(amount, spool.size - start)
        assert os.pread(spool.fd, count, start) == at(start, count)
        spool.advance(cursor, start + count)
        host.had += int((start + count - host.had) * got)
        acknowledged = cursor.opened + int((host.had - cursor.opened) * told)
        spool.acknowledge(acknowledged, host.name)

    def _come(self, host: Host) -> Cursor:
        """At what it has; the first time, or too late, at what is there."""
        if not (host.due and host.name):
            host.had = max(host.had, self.spool.kept)
        host.cursor = self.spool.enter(host.had, name=host.name)
        # At once, so that the guest knows that this host does.
        self.spool.acknowledge(host.had, host.name)
        return host.cursor

    def _broke(self, host: Host) -> None:
        host.cursor, host.due = None, True

    def _linger(self, old: Cursor, amount: int) -> None:
        """The agent hands out more on the old call, and finds that nobody is there."""
        current = any(old is each for each in self.spool.readers._cursors)
        if current:
            self.spool.advance(old, min(old.position + amount, self.spool.size))
        else:
            self.spool.advance(old, self.spool.size)
        self.spool.leave(old, for_good=not current)

    def _forget(self, host: Host) -> None:
        for each in self.spool.readers.away:
            if each.name == host.name:
                self.spool.forget(each)
                host.due = False

    def _die(self) -> None:
        """All connections are lost; who has been there comes back to the next agent, but
        not at once."""
        size = self.spool.size
        self.spool.close()
        self.spool = self._opened()
        self._old.clear()
        assert self.spool.size == size
        for host in self._hosts:
            if host.cursor is not None:
                self._broke(host)


STEPS = st.tuples(
    st.sampled_from(
        ["write"] * 4 + ["read"] * 6 + ["leave", "cut"] * 2 + ["find out", "forget", "die"]
    ),
    st.integers(0, 3),
    st.integers(1, 3 * WINDOW),
    PARTS,
    PARTS,
)


@settings(max_examples=300)
@given(st.lists(STEPS, min_size=20, max_size=80))
def test_no_host_misses_anything_whoever_comes_and_goes(
    steps: list[tuple[str, int, int, float, float]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        books = Books(Path(directory))
        for step in steps:
            books.step(*step)
        books.spool.close()

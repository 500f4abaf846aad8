"""The pool of huge pages: added, read back, given back once, whatever was cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.linux import hugepages, pseudo

pytestmark = [pytest.mark.unit, pytest.mark.storage]


class Pool:
    """A pool of which the kernel gives `room` pages at most."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = base / "hugepages-2048kB"
        self.path.mkdir()
        self.book = base / "run/hugepages/hugepages-2048kB.json"
        self.room = 100
        self.broken: OSError | None = None
        self.set(0)
        monkeypatch.setattr(pseudo, "write", self.write)

    def write(self, path: Path, text: str) -> None:
        assert path == self.path / "nr_hugepages"
        if self.broken is not None:
            raise self.broken
        self.set(min(int(text), self.room))

    def set(self, pages: int, surplus: int = 0) -> None:
        (self.path / "nr_hugepages").write_text(f"{pages}\n")
        (self.path / "surplus_hugepages").write_text(f"{surplus}\n")

    @property
    def pages(self) -> int:
        return int(pseudo.read_text(self.path / "nr_hugepages"))

    def add(self, owner: str, pages: int) -> int:
        return hugepages.add_huge_pages(
            path=str(self.path), book=str(self.book), owner=owner, pages=pages
        )

    def drop(self, owner: str) -> int:
        return hugepages.drop_huge_pages(path=str(self.path), book=str(self.book), owner=owner)

    def interrupted(self, before: int, after: int, shares: dict[str, int]) -> None:
        """The book as a process leaves it that dies between writing it down and the change."""
        self.book.parent.mkdir(parents=True, exist_ok=True)
        self.book.write_text(json.dumps({"shares": shares, "pending": ["a", before, after]}))


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    return Pool(tmp_path, monkeypatch)


def test_pages_are_added_to_those_that_are_there(pool: Pool) -> None:
    """Case 42: raised by size/pagesize, added to the present count."""
    pool.set(5)
    assert pool.add("a", 32) == 32
    assert pool.add("b", 8) == 8
    assert pool.pages == 45
    assert pool.drop("a") == 32
    assert pool.pages == 13
    assert pool.drop("b") == 8
    assert pool.pages == 5
    assert not pool.book.exists()


def test_what_is_given_back_twice_goes_once(pool: Pool) -> None:
    pool.set(5)
    pool.add("a", 4)
    assert (pool.drop("a"), pool.drop("a"), pool.drop("never")) == (4, 0, 0)
    assert pool.pages == 5


def test_a_shortfall_leaves_the_pool_as_it_was(pool: Pool) -> None:
    pool.set(3)
    pool.room = 10
    assert pool.add("a", 32) == 7
    assert pool.pages == 3
    assert not pool.book.exists()
    assert pool.drop("a") == 0


@pytest.mark.parametrize("made", [0, 2, 4])
def test_an_addition_that_was_cut_off(pool: Pool, made: int) -> None:
    """Killed before the write, in the middle of it, or after it: just that much goes back."""
    pool.interrupted(before=6, after=10, shares={"b": 6})
    pool.set(6 + made)
    assert pool.drop("a") == made
    assert pool.pages == 6
    assert pool.drop("b") == 6


@pytest.mark.parametrize("gone", [0, 1, 4])
def test_a_giving_back_that_was_cut_off(pool: Pool, gone: int) -> None:
    pool.interrupted(before=10, after=6, shares={"a": 4, "b": 6})
    pool.set(10 - gone)
    assert pool.drop("a") == 4 - gone
    assert pool.pages == 6
    assert pool.drop("a") == 0


def test_another_one_settles_what_was_cut_off(pool: Pool) -> None:
    pool.interrupted(before=0, after=4, shares={})
    pool.set(4)
    assert pool.add("b", 2) == 2
    assert pool.drop("b") == 2
    assert pool.pages == 4, "those of the one that was cut off are still its own"
    assert pool.drop("a") == 4
    assert pool.pages == 0


def test_a_refused_write_is_an_error_and_nothing_is_owed(pool: Pool) -> None:
    pool.set(1)
    pool.broken = OSError(22, "write: Invalid argument", "nr_hugepages")
    with pytest.raises(OSError, match="Invalid"):
        pool.add("a", 4)
    pool.broken = None
    assert pool.drop("a") == 0
    assert pool.pages == 1
    assert not pool.book.exists()


def test_somebody_shrank_the_pool_meanwhile(pool: Pool) -> None:
    """Never below zero, and the rest is not owed."""
    pool.add("a", 8)
    pool.set(3)
    pool.drop("a")
    assert pool.pages == 0
    assert not pool.book.exists()


def test_surplus_pages_are_not_ours_to_count(pool: Pool) -> None:
    """nr_hugepages shows them, but what is written to it is the number without them
    (hugetlbpage.rst: "surplus" are pages above nr_hugepages)."""
    pool.set(7, surplus=3)
    pool.add("a", 2)
    assert pool.pages == 6

"""The kernel's pool of huge pages, shared by those who want some of it.

`nr_hugepages` is one number for all: whoever wants pages adds to it, and subtracts when it
is done (https://docs.kernel.org/admin-guide/mm/hugetlbpage.html). So that pages are given
back once, and only when they were really added, each change is written to a book before it
is made: from which number to which, for whom. A change that was cut off (its process was
killed, the agent died) is found there by the next one, and the number itself tells how far
it came. Changes follow one another by a lock on the kernel's file, which ends with its
process. The book is as old as the boot, like the number: it lies on a tmpfs.

Counted are the persistent pages. Surplus ones, beyond `nr_hugepages` as it was written, come
and go by themselves, and those in use while their number shrinks become such.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Change(NamedTuple):
    """`nr_hugepages` goes from `before` to `after`."""

    owner: str
    before: int
    after: int


def add_huge_pages(*, path: str, book: str, owner: str, pages: int) -> int:
    """Add pages to the pool `path` (.../hugepages-2048kB); how many there were to be had.

    With less than `pages` none stay added. Raises OSError.
    """
    with _opened(path, book) as pool:
        had = pool.share(owner)
        pool.change(owner, pages)
        got = pool.share(owner) - had
        if got < pages:
            pool.change(owner, -got)
        return got


def drop_huge_pages(*, path: str, book: str, owner: str) -> int:
    """Give back what the owner has in the pool; how many pages. Raises OSError."""
    with _opened(path, book) as pool:
        pages = pool.share(owner)
        if pages:
            pool.change(owner, -pages)
            # Others have shrunk the pool below what was added: there is nothing left to give.
            pool.forget(owner)
        return pages


@contextmanager
def _opened(path: str, book: str) -> Iterator[_Pool]:
    fd = os.open(f"{path}/nr_hugepages", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        pool = _Pool(Path(path), Path(book))
        pool.settle()
        yield pool
    finally:
        os.close(fd)


class _Pool:
    """One size of pages, locked."""

    def __init__(self, folder: Path, book: Path) -> None:
        self._folder = folder
        self._book = book
        self._shares: dict[str, int] = {}
        self._pending: _Change | None = None
        self._new = book.with_name(f"{book.name}.new")
        # Of a writer that was cut off: what it was about to do was not begun.
        self._new.unlink(missing_ok=True)
        if book.exists():
            data = json.loads(book.read_text())
            self._shares = data["shares"]
            self._pending = _Change(*data["pending"]) if data["pending"] else None

    def share(self, owner: str) -> int:
        return self._shares.get(owner, 0)

    def forget(self, owner: str) -> None:
        if self._shares.pop(owner, None) is not None:
            self._save()

    def change(self, owner: str, pages: int) -> None:
        """Raises OSError; the change is pending then."""
        before = self._persistent()
        self._pending = _Change(owner, before, max(0, before + pages))
        self._save()
        pseudo.write(self._folder / "nr_hugepages", str(self._pending.after))
        self.settle()

    def settle(self) -> None:
        """Book what became of the pending change."""
        if self._pending is None:
            return
        owner, before, after = self._pending
        low, high = min(before, after), max(before, after)
        self._shares[owner] = self.share(owner) + min(max(self._persistent(), low), high) - before
        if self._shares[owner] <= 0:
            del self._shares[owner]
        self._pending = None
        self._save()

    def _persistent(self) -> int:
        return self._number("nr_hugepages") - self._number("surplus_hugepages")

    def _number(self, name: str) -> int:
        return int(pseudo.read_text(self._folder / name))

    def _save(self) -> None:
        if not self._shares and self._pending is None:
            self._book.unlink(missing_ok=True)
            return
        self._book.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._new.write_text(json.dumps({"shares": self._shares, "pending": self._pending}))
        self._new.replace(self._book)

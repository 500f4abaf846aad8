"""Descriptors that outlive the agent, by name.

Streams of containers are pipes and terminals; while PID 1 holds their ends a
restarted agent can take them up again.
"""

from __future__ import annotations

import errno
import os

from agent.linux.libc import failure


class Store:
    """Owns its descriptors; what leaves it are duplicates or the numbers for one sendmsg."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._fds: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._fds)

    def put(self, name: str, fd: int) -> None:
        """Keep `fd`, which is ours from now on; an older one of that name is closed.

        Raises OSError (EMFILE) when the store is full; the descriptor stays the caller's.
        """
        if name not in self._fds and len(self._fds) >= self._limit:
            raise failure(errno.EMFILE, f"store (limit {self._limit})", name)
        old = self._fds.get(name)
        self._fds[name] = fd
        if old is not None:
            os.close(old)

    def drop(self, names: list[str]) -> int:
        """Close those that are there; how many that were."""
        found = [fd for name in names if (fd := self._fds.pop(name, None)) is not None]
        for fd in found:
            os.close(fd)
        return len(found)

    def find(self, names: list[str]) -> dict[str, int]:
        """Those that are there, in the order asked for; the descriptors stay ours."""
        return {name: self._fds[name] for name in names if name in self._fds}

    def names(self, *, prefix: str, after: str) -> list[str]:
        """All names with that prefix that sort behind `after`."""
        return sorted(name for name in self._fds if name.startswith(prefix) and name > after)

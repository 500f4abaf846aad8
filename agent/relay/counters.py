"""What the relay has done, in /run/innkeeper/relay.json, and what it says on the console."""

from __future__ import annotations

import os


class Counters:
    """Named counts, written to a file as one JSON object when they have changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._dirty = True
        self.values = dict.fromkeys(
            (
                "accepted",  # vsock connections from the host
                "refused_cid",  # vsock connections from anybody else
                "refused_greeting",  # spoke something else than HTTP/2
                "refused_full",  # over the limit of connections
                "silent",  # did not say in time what they want
                "open",  # connections now
                "port_sessions",  # sessions on virtio-serial ports
                "away_sessions",  # connections and sessions begun while the agent was away
                "away_replies",  # calls answered in the agent's place
                "unsaved",  # this file could not be written
            ),
            0,
        )

    def add(self, name: str, amount: int = 1) -> int:
        self.values[name] += amount
        self._dirty = True
        return self.values[name]

    def save(self) -> None:
        """Write the file anew if something changed. Raises OSError when it cannot."""
        if not self._dirty:
            return
        self._dirty = False
        text = ", ".join(f'"{name}": {value}' for name, value in self.values.items())
        fresh = f"{self._path}.new"
        with open(fresh, "w", encoding="ascii") as file:
            file.write(f"{{{text}}}\n")
        os.replace(fresh, self._path)  # noqa: PTH105 - pathlib costs the guest 10 ms at start


def say(text: str) -> None:
    """One line on the console; a console that is gone must not stop the relay."""
    try:
        os.write(2, f"innkeeper-relay: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        return


def worth_saying(count: int) -> bool:
    """The 1st, 2nd, 4th, 8th ... time: what anybody can provoke must not flood the console."""
    return count & (count - 1) == 0

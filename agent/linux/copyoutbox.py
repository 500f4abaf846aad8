"""What a copy's worker sends: small entries together, big ones in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.linux.copyframes import FRAME_BYTES, Kind, pack_frame, pack_json, pack_part, shown

if TYPE_CHECKING:
    import socket

    from agent.linux.copyframes import Entry
    from agent.linux.copyslate import Slate

LINES_MOST = 1000
"""Lines of what was left out; a longer list says how many more there are."""

_LONGEST_NAME = 5000


class Outbox:
    """Collects parts until they fill a frame. Sending waits for the agent: back-pressure."""

    def __init__(self, channel: socket.socket, slate: Slate) -> None:
        self._channel = channel
        self._slate = slate
        self._parts: list[bytes] = []
        self._size = 0
        self._entry: Entry | None = None
        self._hole = 0
        self._lines: list[str] = []
        self._told = 0

    def part(self, entry: Entry) -> None:
        """Begin an entry."""
        self._settle()
        self._entry = entry

    def hole(self, size: int) -> None:
        self._hole += size

    def data(self, data: bytes) -> None:
        if self._size + len(data) > FRAME_BYTES:
            self._send()
        entry, hole = self._entry, self._hole
        self._entry, self._hole = None, 0
        self._add(pack_part(entry, hole, data))

    def leave_out(self, path: str, why: str) -> None:
        self._told += 1
        if self._told <= LINES_MOST:
            self._lines.append(f"{shown(path)[:_LONGEST_NAME] or '.'}: {why}")

    def close(self) -> None:
        """Send the rest."""
        self._settle()
        if self._told > LINES_MOST:
            self._lines.append(f"... and {self._told - LINES_MOST} more")
        self._send()

    def _settle(self) -> None:
        """An entry without data, or a hole at a file's end, is a part of its own."""
        if self._entry is not None or self._hole:
            entry, hole = self._entry, self._hole
            self._entry, self._hole = None, 0
            self._add(pack_part(entry, hole, b""))

    def _send(self) -> None:
        if self._parts:
            frame = pack_frame(Kind.PARTS, *self._parts)
            self._parts, self._size = [], 0
            self._channel.sendall(frame)
        if self._lines:
            lines, self._lines = self._lines, []
            self._channel.sendall(pack_json(Kind.LEFT_OUT, lines))
        self._slate.beat()

    def _add(self, part: tuple[bytes, bytes]) -> None:
        self._parts += part
        self._size += len(part[0]) + len(part[1])
        self._slate.beat()
        if self._size >= FRAME_BYTES:
            self._send()

"""One direction of a relayed connection: splice(2) from socket to pipe to socket.

Bytes never enter this process. The pipe is the only buffer (64 KiB): when the
sink takes nothing it fills, the source is not read any more, and the sender
feels it.
"""

from __future__ import annotations

import os
import socket

from agent.linux.vsock import SEND_LIMIT

_CHUNK = 64 * 1024
_TURN = 1024 * 1024
_SPARE = 16


class Pipes:
    """Pipes for flows; a flow holds one only while bytes are in it."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        return self._spare.pop() if self._spare else os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def give(self, pipe: tuple[int, int]) -> None:
        """Take back an empty pipe."""
        if len(self._spare) < _SPARE:
            self._spare.append(pipe)
        else:
            self.discard(pipe)

    def close(self) -> None:
        """Close the spare ones."""
        while self._spare:
            self.discard(self._spare.pop())

    def discard(self, pipe: tuple[int, int]) -> None:
        """Drop a pipe with whatever is in it."""
        for fd in pipe:
            os.close(fd)


class Flow:
    """From `source` to `sink` until the source ends or the sink takes no more."""

    __slots__ = ("_ended", "_held", "_pipe", "_pipes", "_sink", "_source", "done")

    def __init__(self, source: socket.socket, sink: socket.socket, pipes: Pipes) -> None:
        self._source = source
        self._sink = sink
        self._pipes = pipes
        self._pipe: tuple[int, int] | None = None
        self._held = 0
        self._ended = False
        self.done = False

    def pump(self) -> bool:
        """Move what can be moved; true when there may be more and others should have a turn.

        Raises OSError when the source broke (reset, as opposed to ended).
        """
        moved = 0
        try:
            while not self.done and moved < _TURN:
                got = self._fill()
                put = self._drain()
                moved += put
                if not got and not put:
                    return False
            return not self.done
        finally:
            self._release()

    def close(self) -> None:
        """Drop what is held."""
        self.done = True
        if self._pipe is not None:
            self._pipes.discard(self._pipe)
            self._pipe = None

    def _fill(self) -> int:
        if self._ended or self._held >= _CHUNK:
            return 0
        if self._pipe is None:
            self._pipe = self._pipes.take()
        flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
        try:
            got = os.splice(self._source.fileno(), self._pipe[1], _CHUNK, flags=flags)
        except BlockingIOError:  # nothing there, or no free slot in the pipe: draining frees one
            return 0
        self._ended = got == 0
        self._held += got
        return got

    def _drain(self) -> int:
        put = 0
        if self._held and self._pipe is not None:
            put = self._push(self._pipe[0])
        if self._ended and not self._held and not self.done:
            self._finish()
        return put

    def _push(self, pipe: int) -> int:
        flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
        try:
            put = os.splice(pipe, self._sink.fileno(), min(self._held, SEND_LIMIT), flags=flags)
        except BlockingIOError:
            return 0
        except OSError:  # the sink takes no more, but may have last words for the other direction
            self.close()
            return 0
        self._held -= put
        return put

    def _finish(self) -> None:
        """Hand the source's end on."""
        self.done = True
        try:
            self._sink.shutdown(socket.SHUT_WR)
        except OSError:  # gone already: the other direction sees that itself
            return

    def _release(self) -> None:
        if self._pipe is not None and not self._held:
            self._pipes.give(self._pipe)
            self._pipe = None

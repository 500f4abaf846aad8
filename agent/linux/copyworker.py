"""A process that makes one copy, and can be given up.

Descriptor 0 is the socket to the agent (copyframes.py), the last argument the number of
the slate's descriptor. It ends when the copy is done or refused, and when the agent closes its side
in the middle: then nothing is left of the entry in progress.

    START    {"do": "in", "root": PATH, "path", "directory_mode", "only_new"}
             {"do": "out", "root": PATH, "path", "offset", "recursive", "follow_link"}
             {"do": "sweep", "root": PATH, "path", "leftover": [FOLDER, NAME, BESIDE]}
    REFUSED  {"path", "errno": N, "call"} | {"path", "why", "text"}
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agent.linux import copyframes
from agent.linux.copyfolders import Start, open_below, split
from agent.linux.copyframes import Kind, pack_frame, pack_json
from agent.linux.copyoutbox import Outbox
from agent.linux.copyrefusal import CopyRefusal
from agent.linux.copyslate import Leftover, Slate
from agent.linux.openat2 import open_in_root
from agent.linux.treereader import Question, TreeReader
from agent.linux.treewriter import TreeWriter

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = os.O_PATH | os.O_DIRECTORY


def main() -> None:
    # Modes are those that were asked for.
    os.umask(0)
    _more_descriptors()
    with socket.socket(fileno=0) as channel:
        serve(channel, int(sys.argv[-1]))


def serve(channel: socket.socket, page: int) -> None:
    """One copy, from its START to its end."""
    inbox = Inbox(channel)
    try:
        kind, payload = inbox.next()
    except EOFError:
        return
    request = copyframes.unpack_json(payload)
    if kind is not Kind.START:
        raise ValueError(f"the first frame is {kind!r}")
    with ExitStack() as stack:
        slate = Slate(page)
        stack.callback(slate.close)
        # Nobody reads the answer when the agent has closed its side.
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            channel.sendall(_answer(request, inbox, slate))


class Inbox:
    """The frames from the agent, each valid until the next."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._buffer = bytearray(2 * copyframes.FRAME_BYTES)

    def next(self) -> tuple[Kind, memoryview]:
        """Raises EOFError when the agent has closed its side."""
        length, kind = copyframes.PREFIX.unpack(self._take(copyframes.PREFIX.size))
        if length > copyframes.LONGEST_FRAME:
            raise ValueError(f"a frame of {length} bytes")
        return Kind(kind), self._take(length)

    def _take(self, count: int) -> memoryview:
        if count > len(self._buffer):
            self._buffer = bytearray(count)
        view = memoryview(self._buffer)[:count]
        if count and self.channel.recv_into(view, count, socket.MSG_WAITALL) != count:
            raise EOFError("the agent has closed its side")
        return view


class _Failed(Exception):  # noqa: N818 - it carries one
    """An error of the kernel, with the entry that it is about."""

    def __init__(self, error: OSError, path: str) -> None:
        super().__init__(error)
        self.error = error
        self.path = path


def _answer(request: dict[str, Any], inbox: Inbox, slate: Slate) -> bytes:
    try:
        root = os.open(request["root"], _FOLDER | os.O_CLOEXEC)
        try:
            inbox.channel.sendall(pack_frame(Kind.OPENED))
            return pack_json(Kind.DONE, _CALLS[request["do"]](root, request, inbox, slate))
        finally:
            os.close(root)
    except CopyRefusal as refusal:
        words = {"path": refusal.path, "why": refusal.why.value, "text": refusal.text}
    except _Failed as failed:
        words = _errno_words(failed.error, failed.path)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except OSError as error:
        words = _errno_words(error, "")
    return pack_json(Kind.REFUSED, words)


def _errno_words(error: OSError, path: str) -> dict[str, Any]:
    call = (error.strerror or "").partition(":")[0]
    return {"path": path, "errno": error.errno or errno.EIO, "call": call}


def _copy_in(root: int, request: dict[str, Any], inbox: Inbox, slate: Slate) -> dict[str, int]:
    start = Start(root=root, path=request["path"], directory_mode=request["directory_mode"])
    writer = TreeWriter(start, slate, only_new=request["only_new"])
    try:
        while (frame := inbox.next())[0] is Kind.PARTS:
            for part in copyframes.unpack_parts(frame[1]):
                writer.part(part)
        writer.finish()
    except OSError as error:
        raise _Failed(error, writer.entry.path if writer.entry else "") from error
    finally:
        writer.close()
    return asdict(writer.written)


def _copy_out(root: int, request: dict[str, Any], inbox: Inbox, slate: Slate) -> dict[str, int]:
    question = Question(
        root=root,
        path=request["path"],
        offset=request["offset"],
        recursive=request["recursive"],
        follow_link=request["follow_link"],
    )
    outbox = Outbox(inbox.channel, slate)
    TreeReader(question, outbox).read()
    outbox.close()
    return {}


def _sweep(root: int, request: dict[str, Any], _inbox: Inbox, _slate: Slate) -> dict[str, int]:
    """Remove the temporary name that a worker left which was killed."""
    left = Leftover(*request["leftover"])
    with suppress(FileNotFoundError), ExitStack() as stack:
        path = split(request["path"])[0] if left.beside else request["path"]
        folder = open_in_root(root, path or ".", _FOLDER)
        stack.callback(os.close, folder)
        if left.folder:
            folder = open_below(folder, left.folder, _FOLDER)
            stack.callback(os.close, folder)
        os.unlink(left.name, dir_fd=folder)
    return {}


def _more_descriptors() -> None:
    """A walk keeps one directory open for each level."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_CALLS: dict[str, Callable[[int, dict[str, Any], Inbox, Slate], dict[str, int]]] = {
    "in": _copy_in,
    "out": _copy_out,
    "sweep": _sweep,
}

"""Questions to and changes of the kernel's network, by netlink.

A `Change` or `Question` is a message without its header; `agent.core.rtnl` makes them.
`KernelNetlink` sends them and waits for what the kernel answers.

The kernel acts on a request inside send(2), and fills a dump inside recv(2), both under its
one lock of the network (rtnl). Whoever holds that lock, say a driver that waits for its
device, holds up the call, socket flags or not. So the calls are made by a thread of the
socket's own and never by the event loop: a caller's deadline and cancellation hold whatever
the kernel does.

A dump that was interrupted by a change (NLM_F_DUMP_INTR) may have holes and is made again.
Facts: Documentation/userspace-api/netlink/intro.rst, include/uapi/linux/netlink.h.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import select
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agent.core.errors import AgentError, Reason, timed_out, wrong_state
from agent.linux.netlinksocket import KERNEL_PORT, NETLINK_ROUTE, open_socket

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.core.deadlines import Deadline
    from agent.linux.netlinksocket import Datagram

log = logging.getLogger(__name__)

NLM_F_REQUEST = 0x1
NLM_F_MULTI = 0x2
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
_NLM_F_CAPPED = 0x100
_NLM_F_ACK_TLVS = 0x200

NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLMSG_OVERRUN = 4

_ATTRIBUTE_TEXT = 1
_ATTRIBUTE_OFFSET = 2

HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")

# A refusal takes less than 1 KiB of the receive buffer, which is at least 208 KiB
# (net.core.rmem_default), so a whole window of them always has room.
WINDOW = 128
WINDOW_BYTES = 64 * 1024
_TRIES_AFTER_LOSS = 3

Decode: TypeAlias = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One message that changes something. `flags` are NLM_F_* besides REQUEST and ACK;
    errnos in `fine` are no failure (EEXIST when the thing shall only be there)."""

    what: str
    type: int
    flags: int
    payload: bytes
    fine: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One message that asks. `flags` are NLM_F_DUMP or 0. `decode` makes of a whole
    message, header included, what `ask` gives; it is called in a thread."""

    what: str
    type: int
    flags: int
    payload: bytes
    decode: Decode = field(default=bytes, compare=False)

    @property
    def dump(self) -> bool:
        return self.flags & NLM_F_DUMP == NLM_F_DUMP


class NetlinkRefusal(OSError):  # noqa: N818 - an answer, and named as one
    """The kernel said no. `text` is what it says about it, empty for nothing."""

    def __init__(self, number: int, text: str, change: Change | Question) -> None:
        super().__init__(number, os.strerror(number))
        self.text = text
        self.change = change

    def __str__(self) -> str:
        words = f"{self.change.what}: {self.strerror}"
        return f"{words}: {self.text}" if self.text else words


def refused(error: NetlinkRefusal, hint: str | None = None) -> AgentError:
    """A refusal as the answer to a request."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return wrong_state(
        f"{error} [{name}]",
        reason=Reason.KERNEL_REFUSED,
        hint=hint,
        errno=name,
        text=error.text,
    )


class Netlink(Protocol):
    """A way to the kernel's network of one namespace."""

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        """Make changes, in order. Raises NetlinkRefusal for the first one that the kernel
        refuses, AgentError OPERATION_TIMED_OUT.

        Many go together in windows, so after a refusal later ones of its window may have
        been made: whoever takes back looks what is there. The errno ENOBUFS means that
        the answer is lost, and the change may have been made.
        """

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        """All answers, decoded. Raises NetlinkRefusal, AgentError OPERATION_TIMED_OUT."""

    def close(self) -> None:
        """Give the socket back, when what was asked for before is done."""


class Wire(Protocol):
    """The socket; tests stand their own kernel in for it."""

    @property
    def port(self) -> int: ...
    def fileno(self) -> int: ...
    def send(self, data: bytes) -> None: ...
    def receive(self) -> Datagram: ...
    def close(self) -> None: ...


class Message(bytes):
    """One message of a datagram, header included."""

    __slots__ = ()

    @property
    def type(self) -> int:
        return int(HEADER.unpack_from(self)[1])

    @property
    def flags(self) -> int:
        return int(HEADER.unpack_from(self)[2])

    @property
    def sequence(self) -> int:
        return int(HEADER.unpack_from(self)[3])

    @property
    def port(self) -> int:
        return int(HEADER.unpack_from(self)[4])


def messages(data: bytes) -> Iterator[Message]:
    """The messages of a datagram; what is malformed ends it."""
    offset = 0
    while offset + HEADER.size <= len(data):
        (length,) = struct.unpack_from("=I", data, offset)
        if not HEADER.size <= length <= len(data) - offset:
            return
        yield Message(data[offset : offset + length])
        offset += (length + 3) & ~3


def open_netlink(namespace: int | None = None, *, family: int = NETLINK_ROUTE) -> KernelNetlink:
    """A way to the network of a namespace by its descriptor, or to our own.

    Raises OSError. `close` it.
    """
    return KernelNetlink(open_socket(family, namespace=namespace))


class KernelNetlink:
    """The kernel, by one socket."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._bell = _Bell()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._latest: _Job | None = None
        self._closed = False

    @property
    def port(self) -> int:
        """The port id that notices of these changes carry."""
        return self._wire.port

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        for window in _windows(changes):
            for refusal in await self._do(_Job(changes=window, deadline=deadline)):
                raise refusal

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        return await self._do(_Job(question=question, deadline=deadline))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread is None or self._latest is None:
            self._end()
            return
        self._jobs.put(None)
        # With nothing left to do it ends at once; one that the kernel holds ends later.
        if self._latest.finished:
            self._thread.join()

    async def _do(self, job: _Job) -> list[Any]:
        if self._closed:
            raise OSError(errno.EBADF, f"{job.what}: the netlink socket is closed")
        self._start()
        self._latest = job
        self._jobs.put(job)
        try:
            async with job.deadline.limit():
                return await job.future
        except TimeoutError:
            raise _too_late(job) from None
        finally:
            job.left = True
            self._bell.ring()

    def _start(self) -> None:
        """A daemon: one that the kernel holds must not hold the agent's end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="netlink", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        exchange = _Exchange(self._wire, self._bell)
        while (job := self._jobs.get()) is not None:
            if job.left:
                job.finished = True
            else:
                job.run(exchange)
        self._end()

    def _end(self) -> None:
        self._wire.close()
        self._bell.close()


class _Bell:
    """Wakes the thread when somebody waits no more. Rung from another thread than closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def ring(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def quiet(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


def _too_late(job: _Job) -> AgentError:
    if job.started:
        text = f"{job.what}: no answer from the kernel until the deadline"
        hint = "another change of the network holds the kernel's lock; look before asking again"
    else:
        text = f"{job.what}: not begun until the deadline, as the requests before it are not done"
        hint = "nothing of it was done; ask again"
    return timed_out(text, hint=hint)


def _windows(changes: Sequence[Change]) -> Iterator[tuple[Change, ...]]:
    window: list[Change] = []
    size = 0
    for change in changes:
        if window and (len(window) == WINDOW or size + len(change.payload) > WINDOW_BYTES):
            yield tuple(window)
            window, size = [], 0
        window.append(change)
        size += HEADER.size + len(change.payload)
    if window:
        yield tuple(window)


class _LostError(Exception):
    """The kernel dropped answers, or one was larger than the buffer."""


class _LateError(Exception):
    """The deadline passed before the answer was complete."""


@dataclass(slots=True, kw_only=True)
class _Job:
    """Requests on their way. `left` is set when the caller waits no more."""

    deadline: Deadline
    changes: tuple[Change, ...] = ()
    question: Question | None = None
    future: asyncio.Future[list[Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    started: bool = False
    finished: bool = False
    left: bool = False

    @property
    def what(self) -> str:
        if self.question is not None:
            return self.question.what
        more = len(self.changes) - 1
        return f"{self.changes[0].what} (and {more} more)" if more else self.changes[0].what

    def run(self, exchange: _Exchange) -> None:
        self.started = True
        try:
            self._tell(exchange.answers(self))
        except Exception as error:  # noqa: BLE001 - the caller's to judge, not the thread's
            with contextlib.suppress(OSError):
                exchange.drain()
            self._tell(error)

    def _tell(self, outcome: list[Any] | Exception) -> None:
        self.finished = True
        if isinstance(outcome, _LateError):
            return  # the caller has a clock of its own
        # A loop that has ended in the meantime waits for nothing.
        with contextlib.suppress(RuntimeError):
            self.future.get_loop().call_soon_threadsafe(_settle, self.future, outcome)


def _settle(future: asyncio.Future[list[Any]], outcome: list[Any] | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class _Exchange:
    """Sends and receives; of the thread alone."""

    def __init__(self, wire: Wire, bell: _Bell) -> None:
        self._wire = wire
        self._bell = bell
        self._sequence = 0
        self._poll = select.poll()
        self._poll.register(wire.fileno(), select.POLLIN)
        self._poll.register(bell.fileno(), select.POLLIN)

    def answers(self, job: _Job) -> list[Any]:
        if job.question is not None:
            return self._ask(job.question, job)
        return self._change(job.changes, job)

    def drain(self) -> None:
        """Read what is left of an exchange that was given up: a dump that still runs would
        keep the next one off (EBUSY), and after a loss the socket is congested until empty."""
        while True:
            try:
                self._wire.receive()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def _change(self, changes: Sequence[Change], job: _Job) -> list[Any]:
        """The refusals, in the order of the changes.

        The kernel acts on one after the other and tells of each refusal unasked
        (netlink_rcv_skb), so what it says of the last one is the end.
        """
        waiting = dict(self._send(changes))
        last = next(reversed(waiting))
        refusals: list[Any] = []
        try:
            while last in waiting:
                for message in self._receive(job):
                    change = waiting.pop(message.sequence, None) if _is_ack(message) else None
                    if change is None:
                        continue
                    refusal = _refusal(message, change)
                    if refusal is not None and refusal.errno not in change.fine:
                        refusals.append(refusal)
        except _LostError:
            self.drain()
            first = next(iter(waiting.values()))
            text = "the kernel's answer was lost, so whether it was done is unknown"
            refusals.append(NetlinkRefusal(errno.ENOBUFS, text, first))
        return refusals

    def _ask(self, question: Question, job: _Job) -> list[Any]:
        losses = 0
        while not (job.left or job.deadline.passed):
            try:
                answers = self._once(question, job)
            except _LostError:
                self.drain()
                losses += 1
                if losses == _TRIES_AFTER_LOSS:
                    text = "the kernel dropped its answers again and again"
                    raise NetlinkRefusal(errno.ENOBUFS, text, question) from None
                continue
            if answers is not None:
                return answers
            log.debug("%s: interrupted by a change, asking again", question.what)
        raise _LateError

    def _once(self, question: Question, job: _Job) -> list[Any] | None:
        """The answers, or None when the dump was interrupted."""
        ((sequence, _),) = self._send((question,))
        found: list[Any] = []
        interrupted = False
        while True:
            for message in self._receive(job):
                if message.sequence != sequence:
                    continue
                interrupted |= bool(message.flags & NLM_F_DUMP_INTR)
                if message.type in (NLMSG_ERROR, NLMSG_DONE):
                    refusal = _refusal(message, question)
                    if refusal is not None:
                        raise refusal
                    return None if interrupted else found
                found.append(question.decode(message))

    def _send(self, requests: Sequence[Change] | Sequence[Question]) -> list[tuple[int, Any]]:
        numbered = []
        frames = bytearray()
        for request in requests:
            self._sequence = self._sequence % 0xFFFFFFFF + 1
            numbered.append((self._sequence, request))
            frames += _frame(request, self._sequence, acknowledged=request is requests[-1])
        try:
            self._wire.send(bytes(frames))
        except OSError as error:
            text = "the request could not be sent"
            raise NetlinkRefusal(error.errno or errno.EIO, text, requests[0]) from error
        return numbered

    def _receive(self, job: _Job) -> list[Message]:
        """The messages of the next datagram; none where it is not the kernel's."""
        while True:
            self._bell.quiet()
            # The order matters: who leaves says so before the bell rings.
            if job.left or not self._poll.poll(job.deadline.left() * 1000):
                raise _LateError
            try:
                datagram = self._wire.receive()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    raise _LostError from error
                raise
            return self._sorted_out(datagram)

    def _sorted_out(self, datagram: Datagram) -> list[Message]:
        if datagram.sender_port != KERNEL_PORT:
            return []
        if datagram.truncated:
            raise _LostError
        found = list(messages(datagram.data))
        if any(message.type == NLMSG_OVERRUN for message in found):
            raise _LostError
        return [message for message in found if message.type != NLMSG_NOOP]


def _frame(request: Change | Question, sequence: int, *, acknowledged: bool) -> bytes:
    flags = request.flags | NLM_F_REQUEST
    if acknowledged and (isinstance(request, Change) or not request.dump):
        flags |= NLM_F_ACK
    length = HEADER.size + len(request.payload)
    padding = b"\0" * (-length % 4)
    return HEADER.pack(length, request.type, flags, sequence, 0) + request.payload + padding


def _is_ack(message: Message) -> bool:
    return message.type == NLMSG_ERROR


def _refusal(message: Message, request: Change | Question) -> NetlinkRefusal | None:
    """What an NLMSG_ERROR or NLMSG_DONE says; None for success."""
    if len(message) < HEADER.size + 4:
        return None
    (code,) = struct.unpack_from("=i", message, HEADER.size)
    if code >= 0:
        return None
    return NetlinkRefusal(-code, _text(message), request)


def _text(message: Message) -> str:
    """NLMSGERR_ATTR_MSG, and where in the request (NLMSGERR_ATTR_OFFS) without one."""
    if not message.flags & _NLM_F_ACK_TLVS:
        return ""
    offset = HEADER.size + 4
    if message.type == NLMSG_ERROR:
        (repeated,) = struct.unpack_from("=I", message, offset)
        capped = message.flags & _NLM_F_CAPPED
        offset += HEADER.size if capped else (repeated + 3) & ~3
    found = dict(_attributes(message, offset))
    if text := found.get(_ATTRIBUTE_TEXT, b"").rstrip(b"\0"):
        return text.decode(errors="backslashreplace")
    if len(place := found.get(_ATTRIBUTE_OFFSET, b"")) == 4:
        return f"at byte {int.from_bytes(place, sys.byteorder)} of the request"
    return ""


def _attributes(message: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, message[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3

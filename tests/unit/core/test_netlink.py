"""The exchange with the kernel by netlink, against a scripted kernel."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterable, Iterator

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.netlink import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    Change,
    KernelNetlink,
    Message,
    NetlinkRefusal,
    Question,
    messages,
    refused,
)
from agent.linux.netlinksocket import Datagram
from tests.fakes.netlink_wire import (
    Answer,
    FakeWire,
    ack,
    acknowledging,
    done,
    dropped,
    frame,
    part,
)

pytestmark = [pytest.mark.unit, pytest.mark.network]

LISTING = Question(what="list the links", type=18, flags=NLM_F_DUMP, payload=b"\0" * 16)
LOOKUP = Question(what="look for eth0", type=18, flags=0, payload=b"\0" * 16)


def change(number: int = 1, **more: object) -> Change:
    payload = number.to_bytes(4, "little")
    return Change(what=f"change {number}", type=24, flags=0, payload=payload, **more)  # type: ignore[arg-type]


def number(message: Message) -> int:
    return int.from_bytes(message[16:20], "little")


def soon() -> Deadline:
    return Deadline.after(0.05)


def far() -> Deadline:
    return Deadline.after(60)


class Kernel:
    """Netlinks to scripted kernels, closed after the test."""

    def __init__(self) -> None:
        self._open: list[tuple[KernelNetlink, FakeWire]] = []

    def __call__(self, script: object) -> tuple[KernelNetlink, FakeWire]:
        wire = FakeWire(script)  # type: ignore[arg-type]
        netlink = KernelNetlink(wire)
        self._open.append((netlink, wire))
        return netlink, wire

    def close(self) -> None:
        for netlink, wire in self._open:
            wire.held.set()
            netlink.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


async def test_a_change_is_a_request_that_wants_an_acknowledgement(kernel: Kernel) -> None:
    netlink, wire = kernel(acknowledging)
    wanted = Change(what="x", type=24, flags=NLM_F_CREATE | NLM_F_EXCL, payload=b"abcde")
    await netlink.change(wanted, deadline=far())
    (sent,) = wire.sent
    # NLM_F_REQUEST 1, NLM_F_ACK 4, NLM_F_EXCL 0x200, NLM_F_CREATE 0x400; the length is that
    # of the message without its padding.
    assert (sent.type, sent.flags, sent.port) == (24, 0x605, 0)
    assert sent[:4] == (21).to_bytes(4, "little")
    assert sent[16:] == b"abcde"


async def test_no_change_sends_nothing(kernel: Kernel) -> None:
    netlink, wire = kernel(acknowledging)
    await netlink.change(deadline=far())
    assert wire.sent == []


async def test_many_changes_go_in_order_and_in_windows(kernel: Kernel) -> None:
    netlink, wire = kernel(acknowledging)
    await netlink.change(*map(change, range(1000)), deadline=far())
    assert [number(message) for message in wire.sent] == list(range(1000))
    assert len({message.sequence for message in wire.sent}) == 1000
    # rmem_default holds 256 acknowledgements (212,992 bytes of 832).
    assert max(map(len, wire.datagrams)) <= 256
    assert len(wire.datagrams) < 20


async def test_of_a_window_the_last_change_alone_is_acknowledged(kernel: Kernel) -> None:
    """NLM_F_ACK is for success: netlink_rcv_skb tells of a failure without it."""

    def script(message: Message) -> list[Answer]:
        refusal = errno.EEXIST if number(message) == 1 else 0
        return [ack(message, refusal)] if refusal or message.flags & 4 else []

    netlink, wire = kernel(script)
    with pytest.raises(NetlinkRefusal, match="change 1: File exists"):
        await netlink.change(*map(change, range(3)), deadline=far())
    assert [message.flags & 4 for message in wire.sent] == [0, 0, 4]
    await netlink.change(*(change(1, fine=frozenset({errno.EEXIST})),) * 3, deadline=far())


async def test_large_changes_make_small_windows(kernel: Kernel) -> None:
    netlink, wire = kernel(acknowledging)
    large = [Change(what="x", type=16, flags=0, payload=bytes(40_000)) for _ in range(3)]
    await netlink.change(*large, deadline=far())
    assert [len(datagram) for datagram in wire.datagrams] == [1, 1, 1]


async def test_a_refusal_tells_the_kernels_words(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [ack(message, 101, text="Nexthop has invalid gateway")])
    with pytest.raises(NetlinkRefusal) as caught:
        await netlink.change(change(), deadline=far())
    assert caught.value.errno == errno.ENETUNREACH
    assert caught.value.text == "Nexthop has invalid gateway"
    assert caught.value.change == change()
    assert str(caught.value) == "change 1: Network is unreachable: Nexthop has invalid gateway"


async def test_a_refusal_with_the_request_repeated(kernel: Kernel) -> None:
    """A kernel without NETLINK_CAP_ACK."""
    netlink, _ = kernel(lambda message: [ack(message, 17, text="it is there", capped=False)])
    with pytest.raises(NetlinkRefusal, match="change 1: File exists: it is there"):
        await netlink.change(change(), deadline=far())


async def test_a_refusal_without_words(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [ack(message, 1)])
    with pytest.raises(NetlinkRefusal) as caught:
        await netlink.change(change(), deadline=far())
    assert (caught.value.text, str(caught.value)) == ("", "change 1: Operation not permitted")


async def test_a_refusal_of_an_attribute_says_where(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [ack(message, 22, offset=36)])
    with pytest.raises(NetlinkRefusal, match="at byte 36 of the request"):
        await netlink.change(change(), deadline=far())


async def test_words_with_a_success_are_no_failure(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [ack(message, text="done, but slowly")])
    await netlink.change(change(), deadline=far())


async def test_an_errno_that_is_fine(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [ack(message, errno.EEXIST)])
    await netlink.change(change(fine=frozenset({errno.EEXIST})), deadline=far())
    with pytest.raises(NetlinkRefusal):
        await netlink.change(change(fine=frozenset({errno.ESRCH})), deadline=far())


async def test_the_first_refusal_is_told_and_later_windows_are_not_sent(kernel: Kernel) -> None:
    def script(message: Message) -> list[Answer]:
        return [ack(message, errno.EINVAL if number(message) in (3, 5) else 0)]

    netlink, wire = kernel(script)
    with pytest.raises(NetlinkRefusal, match="change 3"):
        await netlink.change(*map(change, range(1000)), deadline=far())
    assert len(wire.datagrams) == 1


def test_a_refusal_as_an_answer() -> None:
    error = NetlinkRefusal(errno.ENETUNREACH, "Nexthop has invalid gateway", change())
    answer = refused(error, "give a gateway on the link")
    assert (answer.code, answer.reason) == (Code.FAILED_PRECONDITION, Reason.KERNEL_REFUSED)
    assert answer.fields == {"errno": "ENETUNREACH", "text": "Nexthop has invalid gateway"}
    assert answer.hint == "give a gateway on the link"
    assert "change 1: Network is unreachable: Nexthop has invalid gateway" in answer.message


async def test_a_dump_is_all_its_parts(kernel: Kernel) -> None:
    def script(message: Message) -> list[Answer]:
        return [
            part(message, b"aaaa") + part(message, b"bbbb"),
            part(message, b"cccc"),
            done(message),
        ]

    netlink, wire = kernel(script)
    assert [answer[16:] for answer in await netlink.ask(LISTING, far())] == [
        b"aaaa",
        b"bbbb",
        b"cccc",
    ]
    assert wire.sent[0].flags == 0x301  # NLM_F_REQUEST | NLM_F_DUMP


async def test_an_interrupted_dump_is_made_again(kernel: Kernel) -> None:
    tries = iter(range(3))

    def script(message: Message) -> list[Answer]:
        match next(tries):
            case 0:
                return [part(message, b"old1", interrupted=True), done(message)]
            case 1:
                return [part(message, b"old2"), done(message, interrupted=True)]
            case _:
                return [part(message, b"good"), done(message)]

    netlink, wire = kernel(script)
    assert [answer[16:] for answer in await netlink.ask(LISTING, far())] == [b"good"]
    assert len(wire.sent) == 3


async def test_a_dump_that_is_always_interrupted_ends_with_the_deadline(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [done(message, interrupted=True)])
    with pytest.raises(AgentError) as caught:
        await netlink.ask(LISTING, soon())
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT


async def test_a_dump_that_is_refused(kernel: Kernel) -> None:
    """Errors of a dump come in its end (NLMSG_DONE), with words as everywhere."""
    netlink, _ = kernel(
        lambda message: [done(message, errno.ENOENT, text="ipv4: FIB table does not exist")]
    )
    with pytest.raises(NetlinkRefusal, match="ipv4: FIB table does not exist") as caught:
        await netlink.ask(LISTING, far())
    assert caught.value.errno == errno.ENOENT
    assert caught.value.change is LISTING


async def test_a_dump_that_is_refused_before_it_begins(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [ack(message, errno.EOPNOTSUPP)])
    with pytest.raises(NetlinkRefusal):
        await netlink.ask(LISTING, far())


async def test_one_answer_ends_with_the_acknowledgement(kernel: Kernel) -> None:
    def script(message: Message) -> list[Answer]:
        return [frame(16, b"eth0", sequence=message.sequence), ack(message)]

    netlink, wire = kernel(script)
    assert [answer[16:] for answer in await netlink.ask(LOOKUP, far())] == [b"eth0"]
    assert wire.sent[0].flags == 0x5


async def test_two_questions_at_once(kernel: Kernel) -> None:
    """The kernel runs one dump of a socket at a time (EBUSY)."""

    def script(message: Message) -> list[Answer]:
        return [part(message, bytes(message[16:20])), done(message)]

    netlink, _ = kernel(script)
    questions = [
        Question(what=name, type=18, flags=NLM_F_DUMP, payload=name.encode())
        for name in ("aaaa", "bbbb", "cccc")
    ]
    answers = await asyncio.gather(*(netlink.ask(question, far()) for question in questions))
    assert [answer[0][16:] for answer in answers] == [b"aaaa", b"bbbb", b"cccc"]


async def test_what_is_not_the_kernels_is_ignored(kernel: Kernel) -> None:
    def script(message: Message) -> list[Answer]:
        forged = Datagram(ack(message, errno.EPERM), 1234, False)
        stale = ack(Message(frame(24, b"", sequence=message.sequence + 7)), errno.EPERM)
        return [forged, stale, ack(message)]

    netlink, _ = kernel(script)
    await netlink.change(change(), deadline=far())
    assert await netlink.ask(LOOKUP, far()) == []


async def test_a_dropped_answer_is_asked_for_again(kernel: Kernel) -> None:
    tries = iter(range(2))

    def script(message: Message) -> list[Answer]:
        if next(tries) == 0:
            return [part(message, b"half"), dropped(), part(message, b"more")]
        return [part(message, b"good"), done(message)]

    netlink, _ = kernel(script)
    assert [answer[16:] for answer in await netlink.ask(LISTING, far())] == [b"good"]


async def test_an_answer_that_did_not_fit_is_asked_for_again(kernel: Kernel) -> None:
    tries = iter(range(2))

    def script(message: Message) -> list[Answer]:
        if next(tries) == 0:
            return [Datagram(part(message, b"a lot")[:16], 0, True)]
        return [part(message, b"good"), done(message)]

    netlink, _ = kernel(script)
    assert [answer[16:] for answer in await netlink.ask(LISTING, far())] == [b"good"]


async def test_answers_that_are_dropped_again_and_again_are_a_failure(kernel: Kernel) -> None:
    netlink, _ = kernel(lambda message: [dropped()])
    with pytest.raises(NetlinkRefusal) as caught:
        await netlink.ask(LISTING, far())
    assert caught.value.errno == errno.ENOBUFS


async def test_a_change_whose_answer_is_dropped_is_told_as_unknown(kernel: Kernel) -> None:
    def script(message: Message) -> list[Answer]:
        return [dropped()] if number(message) == 2 else [ack(message)]

    netlink, wire = kernel(script)
    with pytest.raises(NetlinkRefusal, match=r"change 2.*unknown") as caught:
        await netlink.change(*map(change, range(5)), deadline=far())
    assert caught.value.errno == errno.ENOBUFS
    wire.script = acknowledging
    await netlink.change(change(), deadline=far())


async def test_the_deadline_holds_and_names_what_was_asked(kernel: Kernel) -> None:
    netlink, wire = kernel(lambda message: [])
    with pytest.raises(AgentError) as caught:
        await netlink.change(change(1), change(2), deadline=soon())
    assert caught.value.code is Code.DEADLINE_EXCEEDED
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert caught.value.message.startswith("change 1 (and 1 more): no answer")
    # What comes too late is no answer to the next question.
    wire.put(ack(wire.sent[0], errno.EPERM))
    wire.script = acknowledging
    await netlink.change(change(), deadline=far())


async def test_the_loop_goes_on_while_the_kernel_holds_a_call(kernel: Kernel) -> None:
    """rtnl_mutex: whoever holds it holds up everybody's send(2)."""
    netlink, wire = kernel(acknowledging)
    wire.held.clear()
    with pytest.raises(AgentError, match="change 1: no answer from the kernel"):
        await netlink.change(change(1), deadline=soon())
    with pytest.raises(AgentError, match="change 2: not begun until the deadline"):
        await netlink.change(change(2), deadline=soon())
    wire.held.set()
    await netlink.change(change(3), deadline=far())
    assert [number(message) for message in wire.sent] == [1, 3]


async def test_a_cancelled_question_leaves_the_socket_usable(kernel: Kernel) -> None:
    asked = threading.Event()

    def script(message: Message) -> Iterable[Answer]:
        asked.set()
        return []

    netlink, wire = kernel(script)
    waiting = asyncio.create_task(netlink.ask(LISTING, far()))
    assert await asyncio.to_thread(asked.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wire.script = lambda message: [part(message, b"good"), done(message)]
    assert [answer[16:] for answer in await netlink.ask(LISTING, far())] == [b"good"]


async def test_an_answer_that_cannot_be_read_leaves_the_socket_usable(kernel: Kernel) -> None:
    def unreadable(data: bytes) -> object:
        raise ValueError("what is this")

    def script(message: Message) -> list[Answer]:
        return [part(message, b"good"), done(message)]

    netlink, _ = kernel(script)
    odd = Question(what="x", type=18, flags=NLM_F_DUMP, payload=b"", decode=unreadable)
    with pytest.raises(ValueError, match="what is this"):
        await netlink.ask(odd, far())
    assert len(await netlink.ask(LISTING, far())) == 1


async def test_what_cannot_be_sent_is_a_refusal(kernel: Kernel) -> None:
    netlink, wire = kernel(acknowledging)

    def too_long(data: bytes) -> None:
        raise OSError(errno.EMSGSIZE, "Message too long")

    wire.send = too_long  # type: ignore[method-assign]
    with pytest.raises(NetlinkRefusal, match="could not be sent") as caught:
        await netlink.change(change(), deadline=far())
    assert caught.value.errno == errno.EMSGSIZE


async def test_after_close_nothing_is_asked() -> None:
    wire = FakeWire(acknowledging)
    netlink = KernelNetlink(wire)
    netlink.close()
    netlink.close()
    assert wire.closed
    with pytest.raises(OSError, match="closed") as caught:
        await netlink.ask(LOOKUP, far())
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize(
    "broken",
    [b"", b"\x10", b"\0" * 64, (15).to_bytes(4, "little") + bytes(40), b"\xff" * 40],
    ids=["empty", "short", "no length", "length below a header", "length past the end"],
)
def test_what_is_malformed_ends_a_datagram(broken: bytes) -> None:
    good = frame(16, b"eth0!", sequence=1)
    assert [message[16:] for message in messages(good + broken)] == [b"eth0!"]

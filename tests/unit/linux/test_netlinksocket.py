"""NETLINK sockets. Asking the kernel for its links needs no rights."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct

import pytest

from agent.linux.netlinksocket import NetlinkSocket, open_socket

pytestmark = [pytest.mark.unit, pytest.mark.network]

# struct nlmsghdr of RTM_GETLINK with NLM_F_REQUEST | NLM_F_DUMP, and struct ifinfomsg.
LIST_LINKS = struct.pack("=IHHII", 32, 18, 0x301, 7, 0) + bytes(16)
# The same with an index in the header, which strict checking refuses.
ODD_LIST = struct.pack("=IHHII", 32, 18, 0x301, 8, 0) + struct.pack("=BxHiII", 0, 0, 1, 0, 0)


def _datagrams(sock: NetlinkSocket) -> list[bytes]:
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    assert poll.poll(30_000)
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            datagram = sock.receive()
            assert datagram.sender_port == 0
            assert not datagram.truncated
            found.append(datagram.data)
    return found


def test_the_kernel_answers() -> None:
    with contextlib.closing(open_socket()) as sock:
        sock.send(LIST_LINKS)
        data = b"".join(_datagrams(sock))
    assert b"lo\0" in data
    # NLMSG_DONE ends it, with the number of the question and our port.
    length, kind, _, sequence, _ = struct.unpack_from("=IHHII", data, len(data) - 20)
    assert (length, kind, sequence) == (20, 3, 7)


def test_a_dump_is_checked_strictly_and_refused_in_words() -> None:
    with contextlib.closing(open_socket()) as sock:
        sock.send(ODD_LIST)
        (data,) = _datagrams(sock)
    _, _, flags, sequence, _ = struct.unpack_from("=IHHII", data)
    assert (flags & 0x200, sequence) == (0x200, 8)  # NLM_F_ACK_TLVS
    # net/core/rtnetlink.c, rtnl_valid_dump_ifinfo_req()
    assert b"Filter by device index not supported for link dumps" in data


def test_it_does_not_wait_and_has_a_port_and_is_closed_on_exec() -> None:
    with contextlib.closing(open_socket()) as sock:
        assert sock.port > 0
        assert not os.get_inheritable(sock.fileno())
        with pytest.raises(BlockingIOError):
            sock.receive()


def test_what_did_not_fit_is_told_and_fits_the_next_time() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    right.setblocking(False)

    class Unaddressed(NetlinkSocket):
        """Unix sockets have no ports."""

    with left, right:
        sock = Unaddressed(_Addressed(right), message_size=10)  # type: ignore[arg-type]
        for _ in range(2):
            left.send(b"x" * 100)
        first, second = sock.receive(), sock.receive()
    assert (len(first.data), first.truncated) == (10, True)
    assert (len(second.data), second.truncated) == (100, False)


class _Addressed:
    """A unix socket that tells a netlink address."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def recvmsg_into(
        self, buffers: list[bytearray], space: int, flags: int
    ) -> tuple[int, list[object], int, tuple[int, int]]:
        size, data, told, _ = self._socket.recvmsg_into(buffers, space, flags)
        return size, list(data), told, (0, 0)


def test_a_descriptor_that_is_no_namespace_is_named() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with pytest.raises(OSError, match="setns") as caught:
            open_socket(namespace=descriptor)
    finally:
        os.close(descriptor)
    assert caught.value.filename == "/dev/null"
    with pytest.raises(OSError, match="setns") as caught:
        open_socket(namespace=9999)
    assert caught.value.filename == "descriptor 9999"


def test_an_unknown_family_is_refused_and_leaves_nothing_open() -> None:
    with pytest.raises(OSError, match="not supported"):
        open_socket(99)
    with pytest.raises(OSError, match="nvalid argument"):
        open_socket(groups=[100_000])

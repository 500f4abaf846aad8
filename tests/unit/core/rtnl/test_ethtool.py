"""Features and channels by generic netlink, against layouts by hand.

Documentation/networking/ethtool-netlink.rst; include/uapi/linux/{genetlink,ethtool_netlink}.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable

import pytest

from agent.core.deadlines import Deadline
from agent.core.netlink import NetlinkRefusal, Question
from agent.core.network import Queues
from agent.core.rtnl.ethtool import Channels, Ethtool, Features
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute, frame

pytestmark = [pytest.mark.unit, pytest.mark.network]

HEADER = "=BBH"
FAMILY = 0x15
FEATURES_GET, FEATURES_SET, CHANNELS_GET, CHANNELS_SET = 11, 12, 17, 18
HW, WANTED, ACTIVE, NOCHANGE = 2, 3, 4, 5
NOMASK, SIZE, BITS = 1, 2, 3


def far() -> Deadline:
    return Deadline.after(60)


def bit(index: int, name: str, *, value: bool = False) -> bytes:
    inside = raw.number(1, index), attribute(2, name.encode() + b"\0")
    return raw.nested(1, *inside, *([attribute(3, b"")] if value else []))


def bitset(kind: int, *bits: bytes, mask: bool) -> bytes:
    head = [] if mask else [attribute(NOMASK, b"")]
    return raw.nested(kind, *head, raw.number(SIZE, 64), raw.nested(BITS, *bits))


def message(command: int, *attributes: bytes) -> bytes:
    payload = struct.pack(HEADER, command, 1, 0) + b"".join(attributes)
    return frame(FAMILY, payload, sequence=1)


FAMILY_ANSWER = frame(
    16,
    struct.pack(HEADER, 1, 2, 0)
    + attribute(2, b"ethtool\0")
    + attribute(1, struct.pack("=H", FAMILY)),
    sequence=1,
)
# HW is told with a mask of everything that the kernel knows; the others are lists.
FEATURES = message(
    FEATURES_GET,
    raw.nested(1, raw.number(1, 3)),
    bitset(
        HW,
        bit(0, "tx-scatter-gather", value=True),
        bit(14, "rx-gro", value=True),
        bit(2, "loopback", value=True),
        bit(3, "highdma"),
        bit(40, ""),
        mask=True,
    ),
    bitset(WANTED, bit(14, "rx-gro"), mask=False),
    bitset(ACTIVE, bit(14, "rx-gro"), bit(3, "highdma"), mask=False),
    bitset(NOCHANGE, bit(2, "loopback"), mask=False),
)
CHANNELS = message(
    CHANNELS_GET,
    raw.nested(1, raw.number(1, 3)),
    raw.number(2, 8),  # ETHTOOL_A_CHANNELS_RX_MAX, and on by the order of the enumeration
    raw.number(3, 7),
    raw.number(5, 6),
    raw.number(6, 1),
    raw.number(7, 2),
    raw.number(9, 3),
)


def kernel(*answers: bytes | int) -> raw.AnsweringNetlink:
    """Answers after that about the family; a number is an errno."""
    left = iter((FAMILY_ANSWER, *answers))

    def answer(question: Question) -> Iterable[bytes]:
        item = next(left)
        if isinstance(item, int):
            raise NetlinkRefusal(item, "", question)
        return [item]

    return raw.AnsweringNetlink(answer)


async def test_features() -> None:
    netlink = kernel(FEATURES)
    assert await Ethtool(netlink).features(3, far()) == Features(
        active=frozenset({"rx-gro", "highdma"}),
        wanted=frozenset({"rx-gro"}),
        changeable=frozenset({"tx-scatter-gather", "rx-gro"}),
        fixed=frozenset({"loopback", "highdma"}),
    )
    family, features = netlink.questions
    assert family.type == 16  # GENL_ID_CTRL
    fields, attributes = raw.parts(family.payload, HEADER)
    assert (fields[0], attributes) == (3, [(2, b"ethtool\0")])  # CTRL_CMD_GETFAMILY
    assert features.type == FAMILY
    fields, attributes = raw.parts(features.payload, HEADER)
    assert fields == (FEATURES_GET, 1, 0)
    ((kind, header),) = attributes
    assert (kind, raw.inside(header)) == (1, [(1, struct.pack("=I", 3))])


async def test_the_family_is_asked_for_once() -> None:
    netlink = kernel(FEATURES, FEATURES)
    ethtool = Ethtool(netlink)
    await ethtool.features(3, far())
    await ethtool.features(3, far())
    assert [question.type for question in netlink.questions] == [16, FAMILY, FAMILY]


async def test_features_are_set_by_name() -> None:
    netlink = kernel()
    await Ethtool(netlink).set_features(3, {"rx-gro": True, "tso": False}, "set them", far())
    (change,) = netlink.changes
    assert (change.what, change.type, change.flags) == ("set them", FAMILY, 0)
    fields, attributes = raw.parts(change.payload, HEADER)
    assert fields[0] == FEATURES_SET
    wanted = dict(attributes)[WANTED]
    # Without NOMASK only what is listed changes; a bit is on with ETHTOOL_A_BITSET_BIT_VALUE.
    ((kind, bits),) = raw.inside(wanted)
    assert kind == BITS
    assert [raw.inside(each) for _, each in raw.inside(bits)] == [
        [(2, b"rx-gro\0"), (3, b"")],
        [(2, b"tso\0")],
    ]


async def test_channels() -> None:
    assert await Ethtool(kernel(CHANNELS)).channels(3, far()) == Channels(
        now=Queues(receive=1, transmit=2, combined=3),
        most=Queues(receive=8, transmit=7, combined=6),
    )


async def test_channels_that_are_not_named_stay() -> None:
    netlink = kernel()
    await Ethtool(netlink).set_channels(3, Queues(combined=4), "x", far())
    fields, attributes = raw.parts(netlink.changes[0].payload, HEADER)
    assert fields[0] == CHANNELS_SET
    assert [kind for kind, _ in attributes] == [1, 9]
    assert dict(attributes)[9] == struct.pack("=I", 4)


async def test_a_driver_without() -> None:
    netlink = kernel(errno.EOPNOTSUPP, errno.EOPNOTSUPP, errno.ENODEV)
    ethtool = Ethtool(netlink)
    assert await ethtool.channels(3, far()) is None
    assert await ethtool.features(3, far()) is None
    with pytest.raises(NetlinkRefusal, match="No such device"):
        await ethtool.channels(3, far())


async def test_a_kernel_without() -> None:
    def answer(question: Question) -> list[bytes]:
        raise NetlinkRefusal(errno.ENOENT, "", question)

    netlink = raw.AnsweringNetlink(answer)
    ethtool = Ethtool(netlink)
    assert await ethtool.features(3, far()) is None
    assert await ethtool.channels(3, far()) is None
    with pytest.raises(NetlinkRefusal, match=r"set them: .*no ethtool netlink") as caught:
        await ethtool.set_features(3, {"rx-gro": True}, "set them", far())
    assert caught.value.errno == errno.EOPNOTSUPP
    assert netlink.changes == []

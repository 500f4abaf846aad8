"""Features (offloads) and channels (queues), by the generic netlink family "ethtool".

Features go by the names that `ethtool -k` shows, as the kernel spells them
(net/ethtool/common.c). Facts: Documentation/networking/ethtool-netlink.rst.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.netlink import Change, NetlinkRefusal, Question, open_netlink
from agent.core.network import Queues
from agent.core.rtnl.messages import Attributes, body, decoded, nested, netlink
from agent.linux.netlinksocket import NETLINK_GENERIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.deadlines import Deadline
    from agent.core.netlink import Decode, Netlink

_CONTROLLER = 16  # GENL_ID_CTRL
_GET_FAMILY = 3  # CTRL_CMD_GETFAMILY
_VERSION = 1
# <linux/ethtool_netlink_generated.h>, ETHTOOL_MSG_*
_FEATURES_GET = 11
_FEATURES_SET = 12
_CHANNELS_GET = 17
_CHANNELS_SET = 18


class _Header(netlink.nla):  # type: ignore[misc] # pyroute2 has no types
    nla_flags = netlink.NLA_F_NESTED
    nla_map = (
        ("UNSPEC", "none"),
        ("DEV_INDEX", "uint32"),
        ("DEV_NAME", "asciiz"),
        ("FLAGS", "uint32"),
    )


class _Bit(netlink.nla):  # type: ignore[misc]
    nla_flags = netlink.NLA_F_NESTED
    nla_map = (
        ("UNSPEC", "none"),
        ("INDEX", "uint32"),
        ("NAME", "asciiz"),
        ("VALUE", "flag"),
    )


class _Bits(netlink.nla):  # type: ignore[misc]
    nla_flags = netlink.NLA_F_NESTED
    nla_map = (("UNSPEC", "none"), ("BIT", "bit"))
    bit = _Bit


class _Bitset(netlink.nla):  # type: ignore[misc]
    nla_flags = netlink.NLA_F_NESTED
    nla_map = (
        ("UNSPEC", "none"),
        ("NOMASK", "flag"),
        ("SIZE", "uint32"),
        ("BITS", "bits"),
        ("VALUE", "hex"),
        ("MASK", "hex"),
    )
    bits = _Bits


class _FeaturesMessage(netlink.genlmsg):  # type: ignore[misc]
    nla_map = (
        ("UNSPEC", "none"),
        ("HEADER", "header_of"),
        ("HW", "bitset"),
        ("WANTED", "bitset"),
        ("ACTIVE", "bitset"),
        ("NOCHANGE", "bitset"),
    )
    header_of = _Header
    bitset = _Bitset


class _ChannelsMessage(netlink.genlmsg):  # type: ignore[misc]
    nla_map = (
        ("UNSPEC", "none"),
        ("HEADER", "header_of"),
        ("RX_MAX", "uint32"),
        ("TX_MAX", "uint32"),
        ("OTHER_MAX", "uint32"),
        ("COMBINED_MAX", "uint32"),
        ("RX_COUNT", "uint32"),
        ("TX_COUNT", "uint32"),
        ("OTHER_COUNT", "uint32"),
        ("COMBINED_COUNT", "uint32"),
    )
    header_of = _Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of an interface, by the kernel's names."""

    active: frozenset[str]
    wanted: frozenset[str]
    changeable: frozenset[str]
    fixed: frozenset[str]
    """Every other one that the kernel knows, active or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Queues of an interface: those it has, and the most that it may have."""

    now: Queues
    most: Queues


@dataclass(frozen=True, slots=True)
class _Subject:
    """A pair of commands, and the class of their messages."""

    word: str
    get: int
    set: int
    message: Any


_FEATURES = _Subject("features", _FEATURES_GET, _FEATURES_SET, _FeaturesMessage)
_CHANNELS = _Subject("channels", _CHANNELS_GET, _CHANNELS_SET, _ChannelsMessage)


def open_ethtool(namespace: int | None = None) -> Ethtool:
    """For the interfaces of a network namespace by its descriptor, or of our own.

    Raises OSError. `close` it.
    """
    return Ethtool(open_netlink(namespace, family=NETLINK_GENERIC))


class Ethtool:
    """What ethtool(8) shows and changes. `wire` is a Netlink of NETLINK_GENERIC."""

    def __init__(self, wire: Netlink) -> None:
        self._wire = wire
        self._family = 0

    def close(self) -> None:
        self._wire.close()

    async def features(self, index: int, deadline: Deadline) -> Features | None:
        """None where the kernel or the driver has no such thing. Raises NetlinkRefusal."""
        found = await self._get(_FEATURES, index, deadline)
        if found is None:
            return None
        known = _bits(found, "HW")
        changeable = _on(known) - _on(_bits(found, "NOCHANGE"))
        return Features(
            active=_on(_bits(found, "ACTIVE")),
            wanted=_on(_bits(found, "WANTED")),
            changeable=changeable,
            fixed=frozenset(known) - changeable,
        )

    async def set_features(
        self, index: int, wanted: Mapping[str, bool], what: str, deadline: Deadline
    ) -> None:
        """Ask for features. Raises NetlinkRefusal (EOPNOTSUPP where there are none).

        A driver may do other than it was asked without a word: look again.
        """
        bits = [nested(("NAME", name), ("VALUE", on or None)) for name, on in wanted.items()]
        bitset = nested(("BITS", nested(*(("BIT", bit) for bit in bits))))
        payload = _payload(_FEATURES.message, _FEATURES.set, index, ("WANTED", bitset))
        await self._set(payload, what, deadline)

    async def channels(self, index: int, deadline: Deadline) -> Channels | None:
        """None where the kernel or the driver has no such thing. Raises NetlinkRefusal."""
        found = await self._get(_CHANNELS, index, deadline)
        if found is None:
            return None
        return Channels(now=_queues(found, "COUNT"), most=_queues(found, "MAX"))

    async def set_channels(self, index: int, queues: Queues, what: str, deadline: Deadline) -> None:
        """0 means unchanged. Raises NetlinkRefusal (EOPNOTSUPP where there are none)."""
        payload = _payload(
            _CHANNELS.message,
            _CHANNELS.set,
            index,
            ("RX_COUNT", queues.receive or None),
            ("TX_COUNT", queues.transmit or None),
            ("COMBINED_COUNT", queues.combined or None),
        )
        await self._set(payload, what, deadline)

    async def _get(self, subject: _Subject, index: int, deadline: Deadline) -> Attributes | None:
        question = Question(
            what=f"ask for the {subject.word} of interface {index}",
            type=await self._family_id(deadline),
            flags=0,
            payload=_payload(subject.message, subject.get, index),
            decode=_reader(subject.message),
        )
        if not question.type:
            return None
        try:
            found = await self._wire.ask(question, deadline)
        except NetlinkRefusal as error:
            if error.errno == errno.EOPNOTSUPP:
                return None
            raise
        return found[0] if found else None

    async def _set(self, payload: bytes, what: str, deadline: Deadline) -> None:
        family = await self._family_id(deadline)
        change = Change(what=what, type=family, flags=0, payload=payload)
        if not family:
            raise NetlinkRefusal(errno.EOPNOTSUPP, "this kernel has no ethtool netlink", change)
        await self._wire.change(change, deadline=deadline)

    async def _family_id(self, deadline: Deadline) -> int:
        """The family's message type, which is the kernel's to choose; 0 without one."""
        if not self._family:
            question = Question(
                what="look for the ethtool family",
                type=_CONTROLLER,
                flags=0,
                payload=body(
                    netlink.ctrlmsg,
                    {"cmd": _GET_FAMILY, "version": _VERSION},
                    ("CTRL_ATTR_FAMILY_NAME", "ethtool"),
                ),
                decode=_reader(netlink.ctrlmsg),
            )
            try:
                found = await self._wire.ask(question, deadline)
            except NetlinkRefusal as error:
                if error.errno == errno.ENOENT:
                    return 0
                raise
            self._family = found[0].number("CTRL_ATTR_FAMILY_ID") if found else 0
        return self._family


def _payload(message: Any, command: int, index: int, *attributes: tuple[str, Any]) -> bytes:
    """An index of 0 is for questions about no interface."""
    header = nested(("DEV_INDEX", index or None))
    fields = {"cmd": command, "version": _VERSION}
    return body(message, fields, ("HEADER", header), *attributes)


def _reader(message: Any) -> Decode:
    return lambda data: Attributes(decoded(message, data))


def _bits(found: Attributes, name: str) -> dict[str, bool]:
    """The bits that a bitset lists. One without a mask lists those that are on; one with a
    mask all that it is about, as HW does, whose mask is everything that the kernel knows."""
    bitset = found.within(name)
    bits = bitset.inside("BITS")
    listed = [Attributes(slot.value) for slot in bits["attrs"]] if bits is not None else []
    bare = "NOMASK" in bitset
    # Numbers that were given back have an empty name.
    return {name: bare or "VALUE" in bit for bit in listed if (name := bit.text("NAME"))}


def _on(bits: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(name for name, on in bits.items() if on)


def _queues(found: Attributes, what: str) -> Queues:
    return Queues(
        receive=found.number(f"RX_{what}"),
        transmit=found.number(f"TX_{what}"),
        combined=found.number(f"COMBINED_{what}"),
    )

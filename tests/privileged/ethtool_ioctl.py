"""What ethtool's ioctl tells: the witness of its netlink family (<linux/ethtool.h>)."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from typing import NamedTuple

_SIOCETHTOOL = 0x8946
_GSTRINGS = 0x1B
_GSSET_INFO = 0x37
_GFEATURES = 0x3A
_GCHANNELS = 0x3C
_ETH_SS_FEATURES = 4
_STRING = 32


class Feature(NamedTuple):
    """struct ethtool_get_features_block, one bit of each word."""

    available: bool
    requested: bool
    active: bool
    never_changed: bool


def features(interface: str) -> dict[str, Feature]:
    """All that the kernel knows, by name."""
    names = _names(interface)
    blocks = (len(names) + 31) // 32
    answer = _ask(interface, struct.pack("=II", _GFEATURES, blocks) + bytes(16 * blocks))
    found = {}
    for bit, name in enumerate(names):
        words = struct.unpack_from("=IIII", answer, 8 + 16 * (bit // 32))
        if name:
            found[name] = Feature(*(bool(word >> (bit % 32) & 1) for word in words))
    return found


def channels(interface: str) -> dict[str, int]:
    """struct ethtool_channels."""
    answer = _ask(interface, struct.pack("=I", _GCHANNELS) + bytes(32))
    keys = ("max_rx", "max_tx", "max_other", "max_combined", "rx", "tx", "other", "combined")
    return dict(zip(keys, struct.unpack_from("=8I", answer, 4), strict=True))


def _names(interface: str) -> list[str]:
    asked = struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _ETH_SS_FEATURES, 0)
    (count,) = struct.unpack_from("=I", _ask(interface, asked), 16)
    header = struct.pack("=III", _GSTRINGS, _ETH_SS_FEATURES, count)
    answer = _ask(interface, header + bytes(_STRING * count))
    parts = (answer[12 + _STRING * n : 12 + _STRING * (n + 1)] for n in range(count))
    return [part.split(b"\0", 1)[0].decode() for part in parts]


def _ask(interface: str, request: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(request, len(request))
    argument = struct.pack("16sQ16x", interface.encode(), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, argument)
    return buffer.raw

"""Tap interfaces of the host: whether one is there, and how it was made."""

from __future__ import annotations

import os
import re
from pathlib import Path

from innkeeper.shim.errors import Reason, ShimError

# dev_valid_name() of the kernel; what goes to QEMU is plainer still.
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,15}")

# include/uapi/linux/if_tun.h; sysfs shows what the interface was made with.
_IFF_TAP = 0x2
_IFF_MULTI_QUEUE = 0x100

_VHOST = Path("/dev/vhost-net")


def check(name: str, queue_pairs: int, sys: Path = Path("/sys")) -> str:
    """Raises BAD_FIELD, and HOST_LACKS for what is not there or of another make."""
    if not _NAME.fullmatch(name):
        raise ShimError(
            Reason.BAD_FIELD,
            f"tap {name!r}: not an interface's name",
            hint="1 to 15 letters, digits, '_', '.', '-'",
            fields={"field": "tap"},
        )
    making = f"mode tap{' multi_queue' if queue_pairs > 1 else ''} user $USER"
    another = f"make a tap with: ip tuntap add NAME {making}"
    flags = _flags(name, sys)
    if flags is None:
        hint = f"make it with: ip tuntap add {name} {making}; ip link set {name} up"
        raise _lacking(name, f"tap {name}: no such interface on this host", hint)
    if not flags & _IFF_TAP:
        raise _lacking(name, f"interface {name} of this host: is no tap", another)
    if bool(flags & _IFF_MULTI_QUEUE) != (queue_pairs > 1):
        made = "with" if flags & _IFF_MULTI_QUEUE else "without"
        wanted = "several queues" if queue_pairs > 1 else "one queue"
        text = f"tap {name}: was made {made} multi_queue, and the NIC has {wanted}"
        raise _lacking(name, text, another)
    return name


def has_vhost() -> bool:
    """Whether the host's kernel can move frames itself, for this user."""
    return os.access(_VHOST, os.R_OK | os.W_OK)


def _flags(name: str, sys: Path) -> int | None:
    """0 for what is no tap nor tun; None for what is not there."""
    interface = sys / "class/net" / name
    try:
        return int((interface / "tun_flags").read_text(), 16)
    except FileNotFoundError:
        return 0 if interface.exists() else None


def _lacking(name: str, text: str, hint: str) -> ShimError:
    return ShimError(Reason.HOST_LACKS, text, hint=hint, fields={"tap": name})

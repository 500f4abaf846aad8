"""The loopback interface, set up by two ioctls: PID 1 has no netlink."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct

from agent.linux.libc import failure

# <linux/sockios.h>, <linux/if.h>
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
# struct ifreq with its union read as flags.
_IFREQ = struct.Struct("16sh22x")


def raise_loopback() -> None:
    """Set `lo` up. Raises OSError as the ioctls do."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
            _, flags = _IFREQ.unpack(answer)
            fcntl.ioctl(sock, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))
        except OSError as error:
            raise failure(error.errno or errno.EIO, "ioctl(SIOCSIFFLAGS)", "lo") from error

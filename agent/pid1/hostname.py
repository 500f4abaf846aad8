"""The guest's host name."""

from __future__ import annotations

import socket

from agent.linux import pseudo

_DEFAULT = "innkeeper"
# __NEW_UTS_LEN of the kernel.
_LIMIT = 64


def choose(chosen: str | None, etc_hostname: str) -> str:
    """The name to set: the chosen one, else the first word of that file, else ours."""
    if chosen:
        return chosen
    words = (pseudo.read_optional(etc_hostname) or "").split()
    return words[0] if words else _DEFAULT


def set_host_name(name: str) -> None:
    """Raises ValueError when the kernel could not hold it, OSError when it refuses."""
    if not 0 < len(name.encode()) <= _LIMIT:
        raise ValueError(f"a host name has 1 to {_LIMIT} bytes, not {len(name.encode())}: {name}")
    socket.sethostname(name)

"""The agent's options, from the kernel command line.

Names are Kata's (`agent.log=`, `agent.hotplug_timeout=` ...). The last word of
a name decides. A bad value is a warning and the default, an unknown `agent.*`
word a warning: a wrong option never stops a boot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from agent.linux import cmdline

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIX = "agent."
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|)", re.ASCII)
_LONGEST = 24 * 3600.0
_LARGEST_PORT = 0xFFFF_FFFF
_VSOCK = re.compile(r"vsock://(?:-1|[0-9]{1,10})?:([0-9]{1,10})", re.ASCII)
_UNIX = re.compile(r"unix:///[^\0]+")


class LogLevel(StrEnum):
    """How much the agent says; each level includes those before it."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"


_LEVEL_ALIASES = {
    "fatal": LogLevel.CRITICAL,
    "panic": LogLevel.CRITICAL,
    "warn": LogLevel.WARNING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What the host chose at boot; each member is the word `agent.MEMBER=`, the level `agent.log=`.

    Times are seconds, sizes bytes; a port or pipe size of 0 means none or the kernel's default.
    """

    log_level: LogLevel = LogLevel.INFO
    log_vport: int = 0
    hotplug_timeout: float = 10.0
    server_addr: str = "vsock://-1:1024"
    container_pipe_size: int = 0
    spool_size: int = 64 << 20
    debug_console: bool = False
    debug_console_vport: int = 0

    @classmethod
    def from_cmdline(cls, text: str) -> tuple[Self, tuple[str, ...]]:
        """The options in a kernel command line, and what was wrong with it."""
        words = dict(word for word in cmdline.parse(text) if word[0].startswith(_PREFIX))
        values: dict[str, Any] = {}
        warnings: list[str] = []
        for name, value in words.items():
            if name not in _OPTIONS:
                warnings.append(f"kernel command line: {name} is not known and ignored")
                continue
            member, parse = _OPTIONS[name]
            try:
                values[member] = parse(value)
            except ValueError as error:
                warnings.append(f"kernel command line: {name}: {error}; the default is used")
        return cls(**values), tuple(warnings)


def parse_duration(text: str) -> float:
    """Seconds of `3`, `3s`, `1.5s` or `500ms`.

    Raises ValueError when it is something else, zero, or longer than a day.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else 0.0
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"{text!r} is not a duration above 0 and up to a day (3, 3s, 500ms)")
    return seconds


def _valued(parse: Callable[[str], object]) -> Callable[[str | None], object]:
    def parse_word(value: str | None) -> object:
        if not value:
            raise ValueError("a value is missing")
        return parse(value)

    return parse_word


def _level(text: str) -> LogLevel:
    try:
        return _LEVEL_ALIASES.get(text) or LogLevel(text)
    except ValueError:
        known = ", ".join([*LogLevel, *_LEVEL_ALIASES])
        raise ValueError(f"{text!r} is not a log level ({known})") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ValueError(f"{text!r} is not a port number")
    port = int(text)
    if not 0 < port < _LARGEST_PORT:
        raise ValueError(f"{text!r} is not a vsock port (1 to {_LARGEST_PORT - 1})")
    return port


def _pipe_size(text: str) -> int:
    # F_SETPIPE_SZ takes an int; 0 keeps the kernel's default.
    size = 0 if text == "0" else cmdline.parse_size(text)
    if size >= 1 << 31:
        raise ValueError(f"{text!r} is more than a pipe can hold")
    return size


def _server_address(text: str) -> str:
    vsock = _VSOCK.fullmatch(text)
    if vsock:
        _port(vsock[1])
    elif not _UNIX.fullmatch(text):
        raise ValueError(f"{text!r} is not an address (vsock://-1:PORT or unix:///PATH)")
    return text


def _flag(value: str | None) -> bool:
    match value:
        case None | "1" | "true":
            return True
        case "0" | "false":
            return False
        case _:
            raise ValueError(f"{value!r} is neither true nor false")


_OPTIONS: dict[str, tuple[str, Callable[[str | None], object]]] = {
    "agent.log": ("log_level", _valued(_level)),
    "agent.log_vport": ("log_vport", _valued(_port)),
    "agent.hotplug_timeout": ("hotplug_timeout", _valued(parse_duration)),
    "agent.server_addr": ("server_addr", _valued(_server_address)),
    "agent.container_pipe_size": ("container_pipe_size", _valued(_pipe_size)),
    "agent.spool_size": ("spool_size", _valued(cmdline.parse_size)),
    "agent.debug_console": ("debug_console", _flag),
    "agent.debug_console_vport": ("debug_console_vport", _valued(_port)),
}

"""Where a guest listens, as text.

    vsock://CID:PORT         the kernel's vsock
    hvsock:///PATH:PORT      hybrid vsock: a unix socket that takes `CONNECT PORT`
    unix:///PATH             the unix socket of a virtio-serial port

Parsing is strict, and what is parsed prints as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PATH_LIMIT = 107
"""sun_path less its closing NUL (unix(7))."""
_FIRST_GUEST_CID = 3
_LAST_NUMBER = 0xFFFFFFFE
"""The all-ones number means `any` for CIDs and ports (vsock(7))."""


class AddressError(ValueError):
    """The text is no address; the message says which part is wrong and what is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VsockAddress:
    """A port of a guest, reached through the host's kernel."""

    cid: int
    port: int

    def __str__(self) -> str:
        return f"vsock://{self.cid}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridAddress:
    """A port of the guest whose device listens on this unix socket."""

    path: Path
    port: int

    def __str__(self) -> str:
        return f"hvsock://{self.path}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialAddress:
    """A virtio-serial port whose host side is this unix socket."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


Address = VsockAddress | HybridAddress | SerialAddress


def parse(text: str) -> Address:
    """Raises AddressError."""
    scheme, found, rest = text.partition("://")
    match scheme if found else "":
        case "vsock":
            cid, port = _split_port(text, rest)
            return VsockAddress(
                cid=_number(text, "CID", cid, _FIRST_GUEST_CID), port=_number(text, "port", port, 1)
            )
        case "hvsock":
            path, port = _split_port(text, rest)
            return HybridAddress(path=_path(text, path), port=_number(text, "port", port, 1))
        case "unix":
            return SerialAddress(path=_path(text, rest))
        case _:
            raise AddressError(
                f"address {text!r}: must start with vsock://, hvsock:// or unix://"
                " (vsock://3:1024, hvsock:///run/vm.sock:1024, unix:///run/port.sock)"
            )


def _split_port(text: str, rest: str) -> tuple[str, str]:
    before, found, port = rest.rpartition(":")
    if not found:
        raise AddressError(f"address {text!r}: has no :PORT at its end")
    return before, port


def _number(text: str, what: str, digits: str, least: int) -> int:
    if not (digits.isascii() and digits.isdecimal()) or str(int(digits)) != digits:
        raise AddressError(f"address {text!r}: the {what} {digits!r} is not a plain decimal number")
    if not least <= int(digits) <= _LAST_NUMBER:
        raise AddressError(
            f"address {text!r}: the {what} {digits} is not between {least} and {_LAST_NUMBER}"
        )
    return int(digits)


def _path(text: str, path: str) -> Path:
    if not path.startswith("/"):
        raise AddressError(f"address {text!r}: the path {path!r} is not absolute")
    if "\0" in path or path.endswith("/") or str(Path(path)) != path:
        raise AddressError(f"address {text!r}: the path {path!r} is not in its plain form")
    if len(path.encode()) > _PATH_LIMIT:
        raise AddressError(
            f"address {text!r}: the path is longer than the {_PATH_LIMIT} bytes of a unix socket's"
        )
    return Path(path)

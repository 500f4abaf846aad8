"""The sandbox's identity: its id and the guest's host name. One per VM.

It is kept in the state directory, so a restarted agent still refuses a second
sandbox.
"""

from __future__ import annotations

import re
import socket
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from agent.core.errors import Reason, already_exists, invalid, kernel_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.core.state import StateStore

_KIND, _KEY = "sandbox", "sandbox"

# RFC 1123 section 2.1: labels of letters, digits and inner hyphens, at most 63.
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_HOSTNAME: Final = 64  # __NEW_UTS_LEN in include/uapi/linux/utsname.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What Sandbox.Create said; an empty host name left the guest's as it was."""

    id: str
    hostname: str = ""


class Sandbox:
    """Holds the identity; `current` is None before Create and after Destroy."""

    def __init__(
        self, state: StateStore, *, set_hostname: Callable[[str], None] = socket.sethostname
    ) -> None:
        self._state = state
        self._set_hostname = set_hostname
        self.current = _restored(state)

    def create(self, identity: Identity) -> None:
        """Name the sandbox. Raises BAD_FIELD for the host name and ID_IN_USE for a second one."""
        check_hostname(identity.hostname)
        if self.current == identity:
            return
        if self.current is not None:
            raise already_exists(
                f"this guest is sandbox {self.current.id} already, with the host name"
                f" {self.current.hostname or 'it booted with'!r}",
                reason=Reason.ID_IN_USE,
                hint="Sandbox.Destroy comes first",
                id=self.current.id,
            )
        self._state.save(_KIND, _KEY, asdict(identity))
        try:
            self._apply(identity.hostname)
        except BaseException:
            self._state.delete(_KIND, _KEY)
            raise
        self.current = identity

    def destroy(self) -> None:
        """Forget the identity; another sandbox may be created then."""
        self._state.delete(_KIND, _KEY)
        self.current = None

    def _apply(self, hostname: str) -> None:
        if not hostname:
            return
        try:
            self._set_hostname(hostname)
        except OSError as error:
            raise kernel_refused(error, doing=f"set the host name {hostname}") from error


def check_hostname(name: str) -> str:
    """An RFC 1123 name of at most 64 bytes, or nothing; raises BAD_FIELD.

    It gets into files (resolv.conf, hosts) and prompts, so nothing else may.
    """
    if name and (len(name) > _LONGEST_HOSTNAME or not _HOSTNAME.fullmatch(name)):
        raise invalid(
            f"hostname: {name[:80]!r} is not an RFC 1123 name of at most {_LONGEST_HOSTNAME} bytes",
            field="hostname",
        )
    return name


def _restored(state: StateStore) -> Identity | None:
    saved = state.load(_KIND, _KEY)
    if saved is None:
        return None
    return Identity(id=str(saved.get("id", "")), hostname=str(saved.get("hostname", "")))

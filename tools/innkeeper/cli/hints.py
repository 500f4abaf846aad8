"""Ways out of refusals, as commands: the guest names its calls, for any kind of client."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_VM: ContextVar[str] = ContextVar("vm", default="")

_COMMANDS = {
    "UNKNOWN_CONTAINER": "innkeeper ps -a {vm} shows those that are",
    "UNKNOWN_PROCESS": "innkeeper ps {vm} {container} shows those that are",
    "UNKNOWN_DEVICE": "innkeeper device list {vm} shows those that are",
    "UNKNOWN_STORAGE": "innkeeper storage list {vm} shows those that are",
}
_UNPAUSE = "innkeeper unpause {vm} {container} lets it go on"


def about(vm: str) -> str:
    """The VM that this command is for, from now on: the callback of its argument."""
    _VM.set(vm)
    return vm


def known_vm() -> str:
    """Empty for a command that is for none, or for a new one."""
    return _VM.get()


def hint(reason: str, fields: Mapping[str, str], told: str) -> str:
    """What to do about a refusal; `told`, the guest's own words, where we know nothing better."""
    vm, reason = known_vm(), fields.get("guest_reason") or reason
    words = _COMMANDS.get(reason, "")
    if reason == "WRONG_STATE" and fields.get("state") == "paused":
        words = _UNPAUSE
    container = fields.get("container") or fields.get("id", "")
    if not (vm and words) or ("{container}" in words and not container):
        return told
    return words.format(vm=vm, container=container)

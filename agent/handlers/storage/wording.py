"""A mount in words, for errors: without what is secret in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.fileops import BindMount, FsMount, OverlayMount

if TYPE_CHECKING:
    from agent.core.fileops import MountCall
    from agent.linux.mounting import MountFlag


def told(call: MountCall) -> str:
    """What is mounted, with its flags and options."""
    match call:
        case FsMount():
            kind = f"{call.fs_type}, {_flags(call.flags)}, options {_options(call)!r}"
            return f"{call.source} ({kind})"
        case BindMount():
            deep = "recursively, " if call.recursive else ""
            return f"{call.source} (bind, {deep}{_flags(call.flags)})"
        case OverlayMount():
            upper = f" below {call.upper}" if call.upper else ""
            kind = f"overlay, {_flags(call.flags)}, options {_options(call)!r}"
            return f"{len(call.lowers)} layers{upper} ({kind})"


def shown(call: MountCall) -> dict[str, str]:
    """The same as fields of an error."""
    match call:
        case FsMount():
            return {
                "source": call.source,
                "fs_type": call.fs_type,
                "options": _options(call),
            }
        case BindMount():
            return {"source": str(call.source), "fs_type": "bind"}
        case OverlayMount():
            return {"fs_type": "overlay", "options": _options(call)}


def _options(call: FsMount | OverlayMount) -> str:
    return ",".join(map(str, call.options))


def _flags(flags: MountFlag) -> str:
    return f"flags {flags.name or 'none'}"

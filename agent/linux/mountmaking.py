"""Makes a mount of any kind; what the kernel refuses comes back with its reasons."""

from __future__ import annotations

import errno

from agent.linux import binding, fscontext, overlaying
from agent.linux.mountapi import Kernel
from agent.linux.mountcalls import (
    SECRET,
    BindMount,
    FileRefusal,
    FsMount,
    MountCall,
    OverlayMount,
)


def make(call: MountCall, target: str, kernel: Kernel | None = None) -> None:
    """Mount on `target`, an absolute path without links.

    Raises FileRefusal, whose object is the target where the call has none of its own. Then
    nothing is mounted.
    """
    try:
        _make(kernel or Kernel(), call, target)
    except OSError as error:
        raise _refusal(error, call, target) from error


def _make(kernel: Kernel, call: MountCall, target: str) -> None:
    match call:
        case FsMount():
            fscontext.make(kernel, call, target)
        case BindMount():
            binding.make(kernel, call, target)
        case OverlayMount():
            overlaying.make(kernel, call, target)


def _refusal(error: OSError, call: MountCall, target: str) -> FileRefusal:
    log = error.log if isinstance(error, FileRefusal) else ()
    log = tuple(_without_secrets(line, call) for line in log)
    text = error.strerror or str(error)
    return FileRefusal(error.errno or errno.EIO, text, str(error.filename or target), log=log)


def _without_secrets(line: str, call: MountCall) -> str:
    options = () if isinstance(call, BindMount) else call.options
    for option in options:
        if option.secret and option.value:
            line = line.replace(option.value, SECRET)
    return line

"""Overlay mounts of any number of layers.

The layers go one by one as `lowerdir+`: all in one text would be over a page, or over what
one string of fsconfig(2) holds, and would need names with `,`, `:` and `\\` escaped. One
inside a storage is named by its descriptor (/proc/self/fd/N), which the kernel follows at
once: others write to storages, and a path that is resolved again may lead elsewhere by then.
https://docs.kernel.org/filesystems/overlayfs.html
"""

from __future__ import annotations

import contextlib
import errno
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from agent.linux import fscontext, mountdata, mountplaces
from agent.linux.mountcalls import MountOption
from agent.linux.mounting import MountFlag
from agent.linux.openat2 import Resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.linux.mountapi import Kernel
    from agent.linux.mountcalls import Location, OverlayMount

_TYPE = "overlay"
_ONE_LAYER = "lowerdir+"
_DESCRIPTORS = "/proc/self/fd"


def make(kernel: Kernel, call: OverlayMount, target: str) -> None:
    """Mount the layers on `target`.

    Without `upper` the kernel wants two lower layers: the empty directory that is mounted
    on becomes the second of one that is alone.
    """
    with mountplaces.place(kernel, target, directory=True) as place:
        fits = mountdata.fits_strings(mountdata.strings(call.options))
        if fits and _takes_single_layers(kernel):
            _make_by_context(kernel, call, place)
        else:
            _make_by_mount(kernel, call, place, target)


def _takes_single_layers(kernel: Kernel) -> bool:
    """Whether this kernel knows `lowerdir+`; it came with Linux 6.7.

    The word without its value is refused where it is known (and nothing gets into the
    kernel's log); before 6.5 the kernel takes any word until the file system is made.
    """
    try:
        context = kernel.fsopen(_TYPE)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return False
        raise
    with mountplaces.opened(kernel, context) as fd:
        try:
            kernel.set_flag(fd, _ONE_LAYER)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return not any("Unknown parameter" in line for line in kernel.read_log(fd))
    return False


def _make_by_context(kernel: Kernel, call: OverlayMount, place: int) -> None:
    with fscontext.context(kernel, _TYPE) as fd:
        kernel.set_string(fd, "source", _TYPE)
        for lower in call.lowers:
            with mountplaces.location(kernel, lower, directory=True) as layer:
                kernel.set_string(fd, _ONE_LAYER, _layer_name(lower, layer))
        if _alone(call):
            kernel.set_string(fd, _ONE_LAYER, mountplaces.name(place))
        for key, where in (("upperdir", call.upper), ("workdir", call.work)):
            if where is not None:
                with mountplaces.location(kernel, where, directory=True) as directory:
                    kernel.set_string(fd, key, mountplaces.name(directory))
        fscontext.configure(kernel, fd, call.options, _flags(call))
        fscontext.attach(kernel, fd, _flags(call), place)


def _layer_name(lower: Location, fd: int) -> str:
    # People read the table of mounts, and can make nothing of a descriptor. The way to a
    # storage's own root has just been walked without links, and lies in no other storage.
    plain = not lower.path and "\\" not in lower.root and mountdata.fits_strings([lower.root])
    return lower.root if plain else mountplaces.name(fd)


def _alone(call: OverlayMount) -> bool:
    return len(call.lowers) == 1 and call.upper is None


def _flags(call: OverlayMount) -> MountFlag:
    # Nothing can be written without an upper layer; so the table of mounts shows it too.
    return call.flags if call.upper else call.flags | MountFlag.RDONLY


def _make_by_mount(kernel: Kernel, call: OverlayMount, place: int, target: str) -> None:
    with ExitStack() as stack:

        def opened(where: Location) -> int:
            return stack.enter_context(mountplaces.location(kernel, where, directory=True))

        lowers = [opened(lower) for lower in call.lowers] + ([place] if _alone(call) else [])
        options = [MountOption(key="lowerdir", value=":".join(map(str, lowers)))]
        for key, where in (("upperdir", call.upper), ("workdir", call.work)):
            if where is not None:
                options.append(MountOption(key=key, value=str(opened(where))))
        data = mountdata.mount_data([*options, *call.options], target)
        stack.enter_context(_among_descriptors(kernel))
        kernel.mount(_TYPE, mountplaces.name(place), _TYPE, _flags(call), data)


@contextmanager
def _among_descriptors(kernel: Kernel) -> Iterator[None]:
    """Makes a descriptor's number its relative path: 500 layers fit in a page then."""
    with (
        mountplaces.opened(kernel, kernel.open_path("/", resolve=Resolve.NO_SYMLINKS)) as root,
        # Not without links: /proc/self is one.
        mountplaces.opened(
            kernel, kernel.open_path(_DESCRIPTORS, resolve=Resolve.NO_MAGICLINKS)
        ) as descriptors,
    ):
        kernel.fchdir(descriptors)
        try:
            yield
        finally:
            # The mount is made by then, and this process uses no relative path anywhere else.
            with contextlib.suppress(OSError):
                kernel.fchdir(root)

"""Kernels at the seam of `agent.linux.mountapi`: a recorded one, old ones, one that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from agent.linux.mountapi import Kernel, MountAttribute
from agent.linux.mounting import MountEntry, MountFlag, UnmountFlag
from agent.linux.openat2 import Resolve


class FakeKernel(Kernel):
    """Writes the calls down, and counts what is open; `errors` maps a call to its errno.

    A call is told as (name, arguments...); descriptors come as what was opened.
    """

    def __init__(self, **errors: int) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.errors = {name: number for name, number in errors.items() if number}
        self.open: dict[int, str] = {}
        self.log: tuple[str, ...] = ()
        self.table: tuple[MountEntry, ...] = ()
        self._next = 100

    def open_path(
        self, path: str, *, below: int | None = None, resolve: Resolve, directory: bool = False
    ) -> int:
        where = path if below is None else f"{self.open[below]}|{path}"
        return self._open(where, "open", resolve)

    def is_directory(self, fd: int) -> bool:
        return not self.open[fd].endswith("file")

    def close(self, fd: int) -> None:
        del self.open[fd]

    def fsopen(self, fs_type: str) -> int:
        return self._open(f"context of {fs_type}", "fsopen")

    def set_string(self, context: int, key: str, value: str) -> None:
        self._do("set", key, self._named(value))

    def set_flag(self, context: int, key: str) -> None:
        self._do("flag", key)

    def create(self, context: int) -> None:
        self._do("create")

    def read_log(self, context: int) -> tuple[str, ...]:
        return self.log

    def fsmount(self, context: int, attributes: MountAttribute) -> int:
        return self._open("mount", "fsmount", attributes)

    def clone_tree(self, fd: int, *, recursive: bool) -> int:
        return self._open(f"copy of {self.open[fd]}", "clone_tree", recursive)

    def set_attributes(
        self,
        fd: int,
        attributes: MountAttribute,
        *,
        clear: MountAttribute,
        propagation: MountFlag,
        recursive: bool,
    ) -> None:
        self._do("set_attributes", attributes, clear, propagation, recursive)

    def move_mount(self, fd: int, target: int) -> None:
        self._do("move_mount", self.open[fd], self.open[target])

    def mount(
        self, source: str | None, target: str, fs_type: str | None, flags: MountFlag, data: str
    ) -> None:
        self._do("mount", self._named(source), self._named(target), fs_type, flags, data)

    def unmount(self, target: str, flags: UnmountFlag) -> None:
        self._do("unmount", target, flags)

    def mounts(self) -> tuple[MountEntry, ...]:
        self._do("mounts")
        return self.table

    def fchdir(self, fd: int) -> None:
        self._do("fchdir", self.open[fd])

    def _open(self, what: str, name: str, *arguments: object) -> int:
        self._do(name, what, *arguments)
        self._next += 1
        self.open[self._next] = what
        return self._next

    def _do(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        number = self.errors.get(name)
        if number is not None:
            raise OSError(number, f"{name}: {os.strerror(number)}")

    def _named(self, text: str | None) -> str | None:
        head, _, number = (text or "").rpartition("/")
        return f"fd of {self.open[int(number)]}" if head == "/proc/self/fd" else text


class WithoutMountApi(Kernel):
    """As before Linux 5.2."""

    def fsopen(self, fs_type: str) -> int:
        raise OSError(errno.ENOSYS, "fsopen: Function not implemented")

    def clone_tree(self, fd: int, *, recursive: bool) -> int:
        raise OSError(errno.ENOSYS, "open_tree: Function not implemented")


class BeforeSingleLayers(Kernel):
    """Before Linux 6.5 overlay took any word until the file system was made; before 5.12
    there was no mount_setattr(2)."""

    def set_flag(self, context: int, key: str) -> None:
        if key != "lowerdir+":
            super().set_flag(context, key)

    def set_attributes(self, *arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSYS, "mount_setattr: Function not implemented")


# What cannot fail, or is itself what takes a failure back.
_SURE = {"close", "read_log", "unmount"}


class FailingKernel:
    """Another kernel whose call number `fails`, counted from 0, has this errno."""

    def __init__(self, kernel: Kernel, *, fails: int = -1, number: int = 0) -> None:
        self._kernel = kernel
        self._fails = fails
        self._number = number
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(self._kernel, name)
        if name in _SURE:
            return real

        def call(*arguments: object, **more: object) -> Any:
            self.names.append(name)
            if len(self.names) - 1 == self._fails:
                raise OSError(self._number, f"{name}: {os.strerror(self._number)}")
            return real(*arguments, **more)

        return call

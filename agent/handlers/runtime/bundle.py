"""The directory that a container is made from, and its writable layer.

    bundles/ID/config.json    what the runtime reads
    bundles/ID/pid            what it writes
    bundles/ID/exec-EXEC.json, exec-EXEC.pid
    bundles/ID/update.json    what the runtime reads for an update
    bundles/ID/layer/         a tmpfs with the overlay's upper and work directory
    bundles/ID/rootfs/        the overlay

Everything can be taken back from the id alone, whatever part of it is there.
"""

from __future__ import annotations

import errno
import json
import shutil
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.errors import Reason, invalid, kernel_refused
from agent.core.fileops import MountCall
from agent.linux.mounting import MountFlag, UnmountFlag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots

_NOT_THERE = {errno.EINVAL, errno.ENOENT}
"""umount2(2) on what is no mount point, or not there."""


_LONGEST_PATH = 4095
"""PATH_MAX without its NUL (include/uapi/linux/limits.h)."""


class Files(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def mount(self, call: MountCall, deadline: Deadline) -> None: ...
    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None: ...
    async def check_directory(self, path: str, deadline: Deadline) -> None: ...
    async def make_link_targets(
        self, root: str, paths: Sequence[str], deadline: Deadline
    ) -> None: ...


class Bundle:
    """One container's bundle, there or not."""

    def __init__(self, roots: Roots, container_id: str) -> None:
        self.path = roots.bundles / container_id
        self.pid_file = self.path / "pid"
        self._layer = self.path / "layer"
        self._rootfs = self.path / "rootfs"

    def make(self) -> None:
        """Raises AgentError."""
        try:
            self.path.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise kernel_refused(error, doing=f"make the bundle {self.path}") from error

    def write_config(self, text: str) -> None:
        self._write(self.path / "config.json", text)

    def config(self) -> dict[str, Any]:
        """The specification, as the runtime got it."""
        return dict(json.loads((self.path / "config.json").read_text(encoding="utf-8")))

    def exec_pid_file(self, exec_id: str) -> Path:
        return self.path / f"exec-{exec_id}.pid"

    def exec_pid(self, exec_id: str) -> int:
        """The pid that the runtime wrote, 0 when it didn't come so far."""
        return read_pid(self.exec_pid_file(exec_id)) or 0

    def write_exec(self, exec_id: str, text: str) -> Path:
        path = self.path / f"exec-{exec_id}.json"
        self._write(path, text)
        return path

    def write_update(self, text: str) -> Path:
        path = self.path / "update.json"
        self._write(path, text)
        return path

    def remove_exec(self, exec_id: str) -> None:
        for path in (self.path / f"exec-{exec_id}.json", self.exec_pid_file(exec_id)):
            path.unlink(missing_ok=True)

    async def mount_layer(self, files: Files, lower: str, size: int, deadline: Deadline) -> str:
        """Put a layer of at most `size` bytes over `lower`; returns the root to use."""
        upper, work = self._layer / "upper", self._layer / "work"
        tmpfs = MountCall(
            source="tmpfs",
            target=str(self._layer),
            fs_type="tmpfs",
            flags=MountFlag.NODEV | MountFlag.NOSUID,
            data=f"size={size},mode=0700",
        )
        overlay = MountCall(
            source="overlay",
            target=str(self._rootfs),
            fs_type="overlay",
            data=f"lowerdir={_escaped(lower)},upperdir={upper},workdir={work}",
        )
        try:
            self._layer.mkdir(mode=0o700)
            self._rootfs.mkdir(mode=0o755)
            await files.mount(tmpfs, deadline)
            # The overlay's root takes its mode from here.
            upper.mkdir(mode=0o755)
            work.mkdir(mode=0o700)
            await files.mount(overlay, deadline)
        except OSError as error:
            raise kernel_refused(
                error, doing=f"put a writable layer over {lower}", reason=Reason.MOUNT_REFUSED
            ) from error
        return str(self._rootfs)

    async def unmount_layer(self, files: Files, deadline: Deadline) -> None:
        """Take the layer off again; fine when it is not there. Raises UNMOUNT_REFUSED."""
        for target in (self._rootfs, self._layer):
            try:
                await files.unmount(str(target), UnmountFlag.NOFOLLOW, deadline)
            except OSError as error:
                if error.errno not in _NOT_THERE:
                    doing = f"take the writable layer off {target}"
                    raise kernel_refused(
                        error, doing=doing, reason=Reason.UNMOUNT_REFUSED
                    ) from error

    def remove(self) -> None:
        """Only files of the agent's are in it by now: what was mounted there is not."""
        try:
            shutil.rmtree(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise kernel_refused(error, doing=f"remove the bundle {self.path}") from error

    def _write(self, path: Path, text: str) -> None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise kernel_refused(error, doing=f"write {path}", reason=Reason.NO_SPACE) from error


def read_pid(path: Path) -> int | None:
    """A pid file's number; None when it is not there or not whole."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


async def check_root_directory(files: Files, path: str, deadline: Deadline) -> None:
    """A container's root given as a path: absolute, without detours, a directory.

    The file system may be a served one, so a worker looks. Raises BAD_FIELD.
    """
    parts = path.split("/")
    detours = {"", ".", ".."} & set(parts[1:])
    if not path.startswith("/") or path == "/" or detours or len(path) > _LONGEST_PATH:
        raise invalid(
            f"the root {path[:200]!r} is not an absolute path without '.', '..' and '//'",
            field="path",
        )
    try:
        await files.check_directory(path, deadline)
    except OSError as error:
        raise invalid(
            f"the root {path} is not a directory that can be reached: {error.strerror}",
            field="path",
            hint="/usr/lib/innkeeper/rootfs is the small root in the image",
        ) from error


def _escaped(path: str) -> str:
    """Backslashes before what the overlay's options give a meaning to (overlayfs.rst)."""
    return "".join(f"\\{letter}" if letter in "\\,:" else letter for letter in path)

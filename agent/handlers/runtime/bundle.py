"""The directory that a container is made from, and its writable layer.

    bundles/ID/config.json    what the runtime reads
    bundles/ID/pid            what it writes
    bundles/ID/exec-EXEC.json, exec-EXEC.pid
    bundles/ID/update.json    what the runtime reads for an update
    bundles/ID/layer/         a tmpfs with the overlay's upper and work directory
    bundles/ID/sources/N      what lies in a storage and is bound somewhere in the container
    bundles/ID/rootfs/        the overlay, or a root that was given as a path
    bundles/ID/etc/           a tmpfs with the container's resolv.conf, hosts and hostname
    bundles/ID/etc-stamp      what they were last made of
    bundles/ID/hooks/NN.json  how its hooks ended

Everything can be taken back from the id alone, whatever part of it is there.
"""

from __future__ import annotations

import errno
import json
import shutil
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.errors import Reason, invalid, kernel_refused
from agent.core.fileops import BindMount, FsMount, Location, MountOption, OverlayMount
from agent.linux.mounting import MountFlag, UnmountFlag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.fileops import ContainerMount, MountCall
    from agent.core.roots import Roots
    from agent.linux.accounts import Found

_NOT_THERE = {errno.EINVAL, errno.ENOENT}
"""umount2(2) on what is no mount point, or not there."""


_LONGEST_PATH = 4095
"""PATH_MAX without its NUL (include/uapi/linux/limits.h)."""


class Files(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def mount(self, call: MountCall, target: str, deadline: Deadline) -> None: ...
    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None: ...
    async def check_directory(self, path: str, deadline: Deadline) -> None: ...
    async def is_directory(self, location: Location, deadline: Deadline) -> bool: ...
    async def make_targets(
        self, root: str, mounts: Sequence[ContainerMount], deadline: Deadline
    ) -> None: ...
    async def find_account(
        self, root: str, user: str, group: str | None, deadline: Deadline
    ) -> Found: ...
    async def find_home(self, root: str, uid: int, deadline: Deadline) -> str: ...
    async def list_processes(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> Sequence[dict[str, Any]]: ...


class Bundle:
    """One container's bundle, there or not."""

    def __init__(self, roots: Roots, container_id: str) -> None:
        self.path = roots.bundles / container_id
        self.pid_file = self.path / "pid"
        self._layer = self.path / "layer"
        self._rootfs = self.path / "rootfs"
        self._sources = self.path / "sources"
        self.etc = self.path / "etc"
        self._stamp = self.path / "etc-stamp"

    def make(self) -> None:
        """Raises AgentError."""
        try:
            # A container that is root only in a user namespace must get to its root.
            self.path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o711)
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
        tmpfs = FsMount(
            source="tmpfs",
            fs_type="tmpfs",
            flags=MountFlag.NODEV | MountFlag.NOSUID,
            options=(
                MountOption(key="size", value=str(size)),
                MountOption(key="mode", value="0700"),
            ),
        )
        overlay = OverlayMount(
            lowers=(Location(root=lower),),
            upper=Location(root=str(upper)),
            work=Location(root=str(work)),
        )
        try:
            self._layer.mkdir(mode=0o700)
            self._rootfs.mkdir(mode=0o755)
            await files.mount(tmpfs, str(self._layer), deadline)
            # The overlay's root takes its mode from here.
            upper.mkdir(mode=0o755)
            work.mkdir(mode=0o700)
            await files.mount(overlay, str(self._rootfs), deadline)
        except OSError as error:
            raise kernel_refused(
                error, doing=f"put a writable layer over {lower}", reason=Reason.MOUNT_REFUSED
            ) from error
        return str(self._rootfs)

    async def mount_root(self, files: Files, path: str, deadline: Deadline) -> str:
        """Show the directory `path` here too; returns the root to use.

        The runtime takes its root by a path. One in a storage could be led elsewhere by a
        container between a check and the runtime's use, so what it gets is this mount,
        made by descriptor of a path without links. Raises MOUNT_REFUSED.
        """
        bind = BindMount(source=Location(root=path), recursive=True)
        try:
            self._rootfs.mkdir(mode=0o755)
            await files.mount(bind, str(self._rootfs), deadline)
        except OSError as error:
            raise kernel_refused(
                error, doing=f"take {path} for a root", reason=Reason.MOUNT_REFUSED
            ) from error
        return str(self._rootfs)

    async def unmount_root(self, files: Files, deadline: Deadline) -> None:
        """Take the root off again; fine when it is not there. Raises UNMOUNT_REFUSED."""
        # What was mounted below it came along and goes along.
        flags = UnmountFlag.NOFOLLOW | UnmountFlag.DETACH
        await self._unmount(files, self._rootfs, flags, deadline)

    async def mount_source(
        self, files: Files, name: str, location: Location, deadline: Deadline
    ) -> str:
        """Show a file or directory here too; returns its path. Raises MOUNT_REFUSED."""
        target = self._sources / name
        try:
            self._sources.mkdir(mode=0o711, exist_ok=True)
            if await files.is_directory(location, deadline):
                target.mkdir(mode=0o755)
            else:
                target.touch(mode=0o600)
            await files.mount(BindMount(source=location, recursive=True), str(target), deadline)
        except OSError as error:
            raise kernel_refused(
                error, doing=f"take {location} for a mount", reason=Reason.MOUNT_REFUSED
            ) from error
        return str(target)

    async def unmount_sources(self, files: Files, deadline: Deadline) -> None:
        """Take all of them off again. Raises UNMOUNT_REFUSED."""
        flags = UnmountFlag.NOFOLLOW | UnmountFlag.DETACH
        for target in self._sources.iterdir() if self._sources.is_dir() else ():
            await self._unmount(files, target, flags, deadline)

    async def mount_etc(self, files: Files, size: int, deadline: Deadline) -> None:
        """An own tmpfs for a few files that the container may write. Raises MOUNT_REFUSED."""
        tmpfs = FsMount(
            source="tmpfs",
            fs_type="tmpfs",
            flags=MountFlag.NODEV | MountFlag.NOSUID | MountFlag.NOEXEC,
            options=(
                MountOption(key="size", value=str(size)),
                MountOption(key="nr_inodes", value="16"),
                MountOption(key="mode", value="0755"),
            ),
        )
        try:
            self.etc.mkdir(mode=0o755)
            await files.mount(tmpfs, str(self.etc), deadline)
        except OSError as error:
            raise kernel_refused(
                error, doing=f"mount {self.etc}", reason=Reason.MOUNT_REFUSED
            ) from error

    async def unmount_etc(self, files: Files, deadline: Deadline) -> None:
        """Take it off again; fine when it is not there. Raises UNMOUNT_REFUSED."""
        flags = UnmountFlag.NOFOLLOW | UnmountFlag.DETACH
        await self._unmount(files, self.etc, flags, deadline)

    @property
    def etc_stamp(self) -> str:
        """What the files there were last made of; empty when nobody knows."""
        try:
            return self._stamp.read_text(encoding="ascii")
        except (OSError, ValueError):
            return ""

    @etc_stamp.setter
    def etc_stamp(self, text: str) -> None:
        self._write(self._stamp, text)

    async def unmount_layer(self, files: Files, deadline: Deadline) -> None:
        """Take the layer off again; fine when it is not there. Raises UNMOUNT_REFUSED."""
        for target in (self._rootfs, self._layer):
            await self._unmount(files, target, UnmountFlag.NOFOLLOW, deadline)

    async def _unmount(
        self, files: Files, target: Path, flags: UnmountFlag, deadline: Deadline
    ) -> None:
        try:
            await files.unmount(str(target), flags, deadline)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise kernel_refused(
                    error, doing=f"unmount {target}", reason=Reason.UNMOUNT_REFUSED
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
            # It holds the environment, which may be secret.
            path.touch(mode=0o600)
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

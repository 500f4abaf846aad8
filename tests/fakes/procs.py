"""A proc in a directory, with the shapes that the kernel gives it.

What somebody has open is a link to a real file: device nodes need root to make, so
/dev/null stands for a device's node (character device 1:3, see DEVICES in the
kernel's admin guide).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ROOT_MOUNT = "20 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw"


class FakeProc:
    """Builds processes below `path`, which is what is given out as /proc."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        (path / "self").mkdir(exist_ok=True)

    def process(
        self,
        pid: int,
        name: str = "app",
        *,
        mounts: tuple[str, ...] = (ROOT_MOUNT,),
        namespace: str = "mnt:[4026531841]",
        root: str = "/",
        kernel: bool = False,
    ) -> Path:
        directory = self.path / str(pid)
        self._view(directory, name, mounts)
        self._link(directory / "ns/mnt", namespace)
        self._link(directory / "ns/net", "net:[4026531840]")
        self._link(directory / "root", root)
        if not kernel:
            self._link(directory / "exe", "/usr/bin/app")
        return directory

    def dead_leader(self, pid: int, thread: int, name: str = "app") -> Path:
        """A process whose first thread has ended; the directory of one that goes on."""
        (self.path / str(pid) / "fd").mkdir(parents=True)
        directory = self.path / f"{pid}/task/{thread}"
        self._view(directory, name, (ROOT_MOUNT,))
        self._link(directory / "ns/mnt", "mnt:[4026531841]")
        return directory

    def open(self, process: Path, number: int, target: str) -> None:
        self._link(process / f"fd/{number}", target)

    def map(self, process: Path, area: str, target: str) -> None:
        self._link(process / f"map_files/{area}", target)

    def swaps(self, *lines: str) -> None:
        head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority"
        (self.path / "swaps").write_text("\n".join([head, *lines, ""]))

    def _view(self, directory: Path, name: str, mounts: tuple[str, ...]) -> None:
        (directory / "fd").mkdir(parents=True)
        (directory / "comm").write_bytes(name.encode(errors="surrogateescape") + b"\n")
        (directory / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))

    def _link(self, path: Path, target: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

"""Disk images of every kind that a storage can hold, made by Debian 13's own programs.

They come out of the image's build root, so that the host needs none of them, and an
old host's mkfs does not decide what the guest's kernel is given.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from innkeeper.image.builder import debian_toolbox
from innkeeper.image.model import BuildOptions
from innkeeper.image.progress import Silent
from innkeeper.image.toolbox import Toolbox

MIB = 1 << 20
SECTOR = 512
GREETING = "hello from the disk\n"
BIG = hashlib.shake_256(b"big").digest(MIB)
"""Content that does not compress; with 4 KiB blocks its hashes have two levels."""
LEAST = {"ext4": 16 * MIB, "xfs": 320 * MIB, "btrfs": 128 * MIB, "vfat": 8 * MIB}
"""Bytes; mkfs.xfs 6.13 and mkfs.btrfs make none that are much smaller. All are sparse."""
# mkfs.xfs(8), -p: a boot file, blocks and inodes, then the tree, each level ended by `$`.
_XFS_TREE = "/\n0 0\nd--755 0 0\nhello ---644 0 0 {tree}/hello\nbig ---644 0 0 {tree}/big\n$\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verity:
    """What `veritysetup format` made; `hashes` is `data` where both are on one disk."""

    data: Path
    hashes: Path
    root_hash: str
    salt: str
    data_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes images in `place`."""

    toolbox: Toolbox
    place: Path

    @classmethod
    def in_place(cls, place: Path) -> Maker:
        return cls(toolbox=debian_toolbox(BuildOptions(), Silent()), place=place)

    def empty(self, name: str, size: int) -> Path:
        """A sparse file of zeros, as a new disk is."""
        path = self.place / f"{name}.img"
        path.write_bytes(b"")
        os.truncate(path, size)
        return path

    def tree(self, name: str) -> Path:
        """A directory with the files `hello` and `big`."""
        tree = self.place / f"{name}.tree"
        tree.mkdir()
        (tree / "hello").write_text(GREETING)
        (tree / "big").write_bytes(BIG)
        return tree

    def volume(self, fs_type: str, name: str = "", *, size: int = 0) -> Path:
        """A file system of that type with the tree in it (vfat: an empty one)."""
        name = name or fs_type
        tree = self.tree(name)
        match fs_type:
            case "ext4" | "xfs" | "btrfs" | "vfat":
                image = self.empty(name, size or LEAST[fs_type])
                self._fill(fs_type, image, tree)
            case "erofs":
                image = self.place / f"{name}.img"
                self.toolbox.run("usr/bin/mkfs.erofs", image, tree)
            case "squashfs":
                image = self.place / f"{name}.img"
                quiet = ("-quiet", "-no-progress", "-noappend")
                self.toolbox.run("usr/bin/mksquashfs", tree, image, *quiet)
            case "iso9660":
                image = self.place / f"{name}.img"
                as_mkisofs = ("-as", "mkisofs", "-quiet", "-R", "-V", "config-2", "-o")
                self.toolbox.run("usr/bin/xorriso", *as_mkisofs, image, tree)
            case _:
                raise AssertionError(f"nobody here makes {fs_type}")
        return image

    def _fill(self, fs_type: str, image: Path, tree: Path) -> None:
        match fs_type:
            case "ext4":
                # DAX wants blocks as big as pages; mke2fs takes smaller ones for small disks.
                self.toolbox.mke2fs("-q", "-F", "-t", "ext4", "-b", "4096", "-d", tree, image)
            case "xfs":
                plan = tree.with_suffix(".plan")
                plan.write_text(_XFS_TREE.format(tree=tree))
                self.toolbox.run("usr/sbin/mkfs.xfs", "-q", "-p", plan, image)
            case "btrfs":
                self.toolbox.run("usr/sbin/mkfs.btrfs", "-q", "--rootdir", tree, image)
            case _:
                # The file comes from the guest: no program here fills one without mounting it.
                self.toolbox.run("usr/sbin/mkfs.vfat", image)

    def partitioned(self, name: str, table: str, parts: dict[str, Path]) -> Path:
        """A disk with a table ("gpt" or "dos") and these images as partitions, in order.

        The keys are their labels, which "dos" has no room for.
        """
        sizes = [max(MIB, _whole(part.stat().st_size, MIB)) for part in parts.values()]
        disk = self.empty(name, sum(sizes) + 4 * MIB)
        start, lines = MIB, [f"label: {table}"]
        for (label, part), size in zip(parts.items(), sizes, strict=True):
            named = f', name="{label}"' if table == "gpt" else ""
            lines.append(f"start={start // SECTOR}, size={size // SECTOR}{named}")
            _copy(part, disk, start)
            start += size
        script = "\n".join(lines).encode() + b"\n"
        self.toolbox.run("usr/sbin/sfdisk", "-q", "--wipe", "never", disk, input=script)
        return disk

    def verity(
        self, data: Path, *, separate: bool = False, superblock: bool = True, salt: str = ""
    ) -> Verity:
        """Hashes behind the data, or on a disk of their own."""
        size = _whole(data.stat().st_size, 4096)
        os.truncate(data, size)
        hashes = data.with_suffix(".hashes") if separate else data
        options = ["--data-block-size=4096", f"--data-blocks={size // 4096}"]
        options += [] if separate else [f"--hash-offset={size}"]
        options += [] if superblock else ["--no-superblock"]
        options += [f"--salt={salt}"] if salt else []
        said = self.toolbox.run("usr/sbin/veritysetup", "format", *options, data, hashes).text
        facts = dict(re.findall(r"^(Root hash|Salt):\s+(\S+)$", said, flags=re.MULTILINE))
        os.truncate(hashes, _whole(hashes.stat().st_size, SECTOR))
        return Verity(
            data=data,
            hashes=hashes,
            root_hash=facts["Root hash"],
            salt=facts["Salt"],
            data_blocks=size // 4096,
        )


def flip(image: Path) -> None:
    """Changes one bit in the middle of the image's file `big`, on the disk itself."""
    content = bytearray(image.read_bytes())
    content[content.index(BIG[MIB // 2 :][:64])] ^= 1
    image.write_bytes(content)


def _copy(part: Path, disk: Path, start: int) -> None:
    with disk.open("r+b") as file:
        file.seek(start)
        file.write(part.read_bytes())


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit

"""An image in an OCI layout as one tree: its layers, one over the other.

https://github.com/opencontainers/image-spec: image-layout.md, descriptor.md, layer.md.
Every blob is proved by its digest before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from innkeeper.shim import commands
from innkeeper.shim.filling.sources import add_member, open_tar
from innkeeper.shim.filling.trees import Tree
from innkeeper.shim.guest_disk import DiskError

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack

    Descriptor = dict[str, Any]

_DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")
_PLATFORM = ("linux", "amd64")
_NAME = "org.opencontainers.image.ref.name"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_AUFS = ".wh..wh."
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20
_UNPACK = 600.0
# A manifest or configuration larger than this is none.
_LARGEST_JSON = 16 << 20


def is_layout(path: Path) -> bool:
    """False also for what may not be looked into: who reads it says so."""
    names = ("oci-layout", "index.json")
    return all(os.path.isfile(path / name) for name in names)  # noqa: PTH113 - that one raises


def split(text: str) -> tuple[Path, str]:
    """A path, and the image's name in LAYOUT:NAME, which is empty for any other path."""
    layout, _, name = text.rpartition(":")
    if not Path(text).exists() and layout and is_layout(Path(layout)):
        return Path(layout).absolute(), name
    return Path(text).absolute(), ""


class Layout:
    """One image of a layout: the only one, or the one of that name (tag)."""

    def __init__(self, root: Path, name: str = "") -> None:
        """Raises DiskError."""
        self._root = root
        self._manifest_descriptor = self._find(_json(root / "index.json"), name)

    @property
    def digest(self) -> str:
        """That of the manifest, from which everything follows."""
        return str(self._manifest_descriptor["digest"])

    def config(self) -> Descriptor:
        """The image's configuration, image-spec config.md. Raises DiskError."""
        manifest = self._blob_json(self._manifest_descriptor)
        if not isinstance(manifest.get("config"), dict):
            raise DiskError(f"{self._root}: the manifest names no configuration")
        return self._blob_json(manifest["config"])

    def tree(self, scratch: Path, stack: ExitStack) -> Tree:
        """Its layers, unpacked to files in `scratch`, which the tree reads.
        Raises DiskError."""
        manifest = self._blob_json(self._manifest_descriptor)
        config = self._blob_json(manifest["config"])
        layers = manifest["layers"]
        expected = config.get("rootfs", {}).get("diff_ids", [])
        if len(layers) != len(expected):
            raise DiskError(
                f"{self._root}: {len(layers)} layers, and the configuration has {len(expected)}"
            )
        tree = Tree()
        for number, (layer, diff_id) in enumerate(zip(layers, expected, strict=True)):
            plain = scratch / f"layer{number}.tar"
            self._unpack(layer, str(diff_id), plain)
            _apply(tree, open_tar(plain, stack))
        return tree

    def _find(self, index: Descriptor, name: str) -> Descriptor:
        found = list(self._manifests(index, depth=3))
        if name:
            found = [each for each in found if each.get("annotations", {}).get(_NAME) == name]
        fitting = [each for each in found if _platform(each) in (None, _PLATFORM)]
        if len(fitting) == 1:
            return dict(fitting[0])
        which = self._names(found or self._manifests(index, depth=3))
        if name and not found:
            raise DiskError(f"{self._root}: holds no image with the name {name!r}{which}")
        raise DiskError(f"{self._root}: holds {len(fitting)} images for linux/amd64{which}")

    def _names(self, manifests: Iterable[Descriptor]) -> str:
        names = sorted({each.get("annotations", {}).get(_NAME, "") for each in manifests} - {""})
        return f"; images: {', '.join(names)}; write {self._root}:NAME" if names else ""

    def _manifests(self, index: Descriptor, depth: int) -> Iterator[Descriptor]:
        """Nested indexes pass their own name on."""
        for each in index.get("manifests", []):
            if each.get("mediaType", "").endswith(("image.index.v1+json", "manifest.list.v2+json")):
                if not depth:
                    raise DiskError(f"{self._root}: indexes in indexes without end")
                for inner in self._manifests(self._blob_json(each), depth - 1):
                    named = inner.get("annotations") or each.get("annotations", {})
                    yield {**inner, "annotations": named}
            else:
                yield each

    def _blob(self, descriptor: Descriptor) -> Path:
        """Proved to be what its digest and size say."""
        digest = str(descriptor.get("digest", ""))
        if not _DIGEST.fullmatch(digest):
            raise DiskError(f"{self._root}: {digest!r} is no digest")
        algorithm, _, value = digest.partition(":")
        path = self._root / "blobs" / algorithm / value
        if not path.is_file():
            raise DiskError(f"{self._root}: blob {digest} is not there")
        size = descriptor.get("size")
        if path.stat().st_size != size or _hash_of(path, algorithm) != value:
            raise DiskError(f"{self._root}: blob {digest} is not what its digest and size say")
        return path

    def _blob_json(self, descriptor: Descriptor) -> Descriptor:
        return _json(self._blob(descriptor))

    def _unpack(self, layer: Descriptor, diff_id: str, target: Path) -> None:
        blob = self._blob(layer)
        if "encrypted" in layer.get("mediaType", ""):
            raise DiskError(f"{self._root}: layer {layer['digest']} is encrypted")
        _decompress(blob, target)
        algorithm, _, value = diff_id.partition(":")
        if not _DIGEST.fullmatch(diff_id) or _hash_of(target, algorithm) != value:
            raise DiskError(f"{self._root}: layer {layer['digest']} unpacked is not {diff_id}")


def _apply(tree: Tree, archive: tarfile.TarFile) -> None:
    """Whiteouts are about the layers below alone, wherever in the archive they stand."""
    members = archive.getmembers()
    for member in members:
        if PurePosixPath(member.name).name.startswith(_WHITEOUT):
            _white_out(tree, member.name)
    for member in members:
        if not PurePosixPath(member.name).name.startswith(_WHITEOUT):
            add_member(tree, archive, member)


def _white_out(tree: Tree, name: str) -> None:
    path = tree.real(name)
    parent, _, last = path.rpartition("/")
    if last == _OPAQUE:
        tree.clear(parent)
        return
    if last.startswith(_AUFS):
        # Notes of aufs to itself.
        return
    hidden = last.removeprefix(_WHITEOUT)
    if hidden in ("", ".", ".."):
        raise DiskError(f"{name!r}: hides nothing that can be")
    tree.remove("/".join(part for part in (parent, hidden) if part))


def _decompress(blob: Path, target: Path) -> None:
    """By what it begins with: media types are not always right."""
    with blob.open("rb") as file:
        head = file.read(len(_ZSTD))
    if head.startswith(_ZSTD):
        argv: list[str | Path] = ["zstd", "--decompress", "--quiet", "--force", "-o", target, blob]
        commands.run(argv, deadline=_UNPACK, hint="apt install zstd")
    elif head.startswith(_GZIP):
        try:
            with gzip.open(blob) as packed, target.open("wb") as plain:
                shutil.copyfileobj(packed, plain, _PIECE)
        except (OSError, EOFError) as error:
            raise DiskError(f"{blob}: {error}") from error
    else:
        shutil.copyfile(blob, target)


def _platform(descriptor: Descriptor) -> tuple[str, str] | None:
    platform = descriptor.get("platform")
    return (platform.get("os", ""), platform.get("architecture", "")) if platform else None


def _json(path: Path) -> Descriptor:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise DiskError(f"{path}: too large")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DiskError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise DiskError(f"{path}: holds no object")
    return found


def _hash_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()

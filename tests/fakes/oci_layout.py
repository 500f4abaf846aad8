"""An OCI layout, as image tools write one: blobs by digest, a manifest, an index."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
AMD64 = {"os": "linux", "architecture": "amd64"}


def member(name: str, content: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A file with its content, or, without any, a directory unless `type` says otherwise."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    info.mode = 0o755 if content is None else 0o644
    info.size = len(content or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content or b""


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


class FakeLayout:
    """Images are added; `write` makes it one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifests: list[dict[str, Any]] = []
        (root / "blobs/sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content: bytes) -> dict[str, Any]:
        """Its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs/sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def add(self, *layers: bytes, name: str = "", platform: Any = None, packed: Any = None) -> None:
        """An image of plain tars, which `packed` compresses (gzip unless said otherwise)."""
        packed = packed or gzip.compress
        ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        config = {"rootfs": {"type": "layers", "diff_ids": ids}}
        manifest = {
            "schemaVersion": 2,
            "config": self.blob(json.dumps(config).encode()),
            "layers": [
                {"mediaType": "application/vnd.oci.image.layer.v1.tar", **self.blob(packed(layer))}
                for layer in layers
            ],
        }
        self.describe(manifest, name=name, platform=platform)

    def describe(self, manifest: Any, *, name: str = "", platform: Any = None) -> None:
        found = {"mediaType": _MANIFEST, **self.blob(json.dumps(manifest).encode())}
        if name:
            found["annotations"] = {"org.opencontainers.image.ref.name": name}
        if platform:
            found["platform"] = platform
        self.manifests.append(found)

    def nest(self, name: str = "") -> None:
        """What was added so far becomes an index of its own in the index."""
        inner = {"schemaVersion": 2, "manifests": self.manifests}
        self.manifests = []
        self.describe(inner, name=name)
        self.manifests[0]["mediaType"] = _INDEX

    def write(self) -> Path:
        index = {"schemaVersion": 2, "manifests": self.manifests}
        (self.root / "index.json").write_text(json.dumps(index))
        return self.root

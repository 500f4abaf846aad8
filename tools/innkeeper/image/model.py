"""The words of the image builder: what is asked for, what comes out, what can go wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path

IMAGE_FORMAT = 1

# All time stamps in an image (seconds since 1970: the day Debian 13 came out). A time of
# build would say nothing that the manifest does not, and would make two builds differ.
EPOCH = 1754697600


class ImageError(Exception):
    """A build that cannot go on: what, on which object, why; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class Flavour(StrEnum):
    """Which of Debian's kernels an image has."""

    CLOUD = "cloud"
    GENERIC = "generic"

    @property
    def kernel_package(self) -> str:
        """The meta package that depends on the newest kernel of this flavour."""
        return "linux-image-cloud-amd64" if self is Flavour.CLOUD else "linux-image-amd64"

    @property
    def size_target(self) -> int | None:
        """Bytes of root file system above which the build warns."""
        return 128_000_000 if self is Flavour.CLOUD else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """One image, as asked for. Paths are the host's; the rest are names."""

    flavour: Flavour = Flavour.CLOUD
    out: Path | None = None
    """Where FLAVOUR/ is made; default: build/images of the checkout."""
    cache: Path | None = None
    """What is kept between builds; default: build/cache/image of the checkout."""
    kernel: Path | None = None
    """A vmlinuz (no modules) or a kernel .deb (with modules) instead of Debian's."""
    packages: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    firmware: tuple[Path, ...] = ()
    overlays: tuple[Path, ...] = ()
    """Directories copied over the root last, in this order."""
    mirror: str | None = None
    """URI of a Debian mirror instead of the host's own."""
    update_lock: bool = False
    """Resolve packages anew and write the checkout's lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image; `directory`/image.json says the same to other programs."""

    directory: Path
    flavour: Flavour
    kernel: str
    initrd: str
    root: str
    cmdline: str
    inputs_hash: str
    kernel_version: str
    size: int
    """Bytes of the root file system."""

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Raises `ImageError` where there is no image or one of another format.

        Links are followed here, once: a build that points OUT/FLAVOUR elsewhere
        meanwhile cannot mix the files of two images.
        """
        directory = directory.resolve()
        hint = "build it with: innkeeper image build"
        try:
            record: dict[str, Any] = json.loads((directory / "image.json").read_text())
        except FileNotFoundError:
            raise ImageError(f"{directory}: no image here", hint=hint) from None
        except ValueError as error:
            raise ImageError(f"{directory}/image.json: not JSON: {error}", hint=hint) from None
        if record.pop("format", None) != IMAGE_FORMAT:
            raise ImageError(f"{directory}/image.json: not of format {IMAGE_FORMAT}", hint=hint)
        try:
            return cls(directory=directory, **record | {"flavour": Flavour(record["flavour"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ImageError(f"{directory}/image.json: {error}", hint=hint) from None

    def save(self) -> None:
        record = {"format": IMAGE_FORMAT} | asdict(self)
        del record["directory"]
        (self.directory / "image.json").write_text(json.dumps(record, indent=2) + "\n")

    @property
    def kernel_path(self) -> Path:
        return self.directory / self.kernel

    @property
    def initrd_path(self) -> Path:
        return self.directory / self.initrd

    @property
    def root_path(self) -> Path:
        return self.directory / self.root

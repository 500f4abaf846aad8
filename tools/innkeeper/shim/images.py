"""Where built guest images are found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.image.model import Flavour, Image, ImageError
from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    from collections.abc import Mapping

_RECORD = "image.json"


def images_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`INNKEEPER_IMAGE_DIR`, else build/images of the checkout that this file
    lies in, else the user's cache."""
    if named := environ.get("INNKEEPER_IMAGE_DIR"):
        return Path(named)
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "guest-image").is_dir():
        return checkout / "build" / "images"
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "innkeeper" / "images"


def find_image(name: str, environ: Mapping[str, str] = os.environ) -> Image:
    """The image of a flavour, or the one in a directory when `name` has a slash.

    Raises IMAGE_NOT_FOUND also for an image that lacks one of its files.
    """
    images = images_dir(environ)
    directory = Path(name) if "/" in name else images / name
    try:
        image = Image.load(directory)
    except ImageError as error:
        raise _not_found(name, error.message, images) from None
    for part in (image.kernel_path, image.initrd_path, image.root_path):
        if not part.is_file():
            raise _not_found(name, f"{part} is missing", images)
    return image


def _not_found(name: str, why: str, images: Path) -> ShimError:
    return ShimError(
        Reason.IMAGE_NOT_FOUND,
        f"image {name}: {why}",
        hint=_way_out(name, images),
        fields={"image": name},
    )


def _way_out(name: str, images: Path) -> str:
    """An image lies in the directory of its flavour, which is easily left out."""
    if name in tuple(Flavour):
        return f"build it with: innkeeper image build --flavour {name}"
    below = [flavour for flavour in Flavour if (Path(name) / flavour / _RECORD).is_file()]
    if below:
        place = name if "/" in name else f"./{name}"
        return f"there is one at: {place.rstrip('/')}/{below[0]}"
    built = [flavour for flavour in Flavour if (images / flavour / _RECORD).is_file()]
    have = f"there is: {', '.join(built)}" if built else "build one with: innkeeper image build"
    return have if "/" not in name else f"{have}; a directory is that of image.json"

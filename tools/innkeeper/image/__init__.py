"""Builds guest images: Debian 13, our agent, a kernel, an initrd. See guest-image/README.md."""

from innkeeper.image.builder import build
from innkeeper.image.model import BuildOptions, Flavour, Image, ImageError
from innkeeper.image.progress import Progress, Shown, Silent

__all__ = [
    "BuildOptions",
    "Flavour",
    "Image",
    "ImageError",
    "Progress",
    "Shown",
    "Silent",
    "build",
]

"""Where the sources of an image lie; they are in a checkout only, never in the wheel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from innkeeper.image.model import Flavour, ImageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The repository's root and what the builder reads below it."""

    root: Path

    @property
    def guest_image(self) -> Path:
        return self.root / "guest-image"

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def protocol(self) -> Path:
        return self.root / "protocol" / "innkeeper" / "v1"

    @property
    def builder(self) -> Path:
        return self.root / "tools" / "innkeeper" / "image"

    @property
    def images(self) -> Path:
        return self.root / "build" / "images"

    @property
    def cache(self) -> Path:
        return self.root / "build" / "cache" / "image"

    @property
    def wheels_lock(self) -> Path:
        return self.guest_image / "wheels.lock"

    def packages_lock(self, flavour: Flavour) -> Path:
        return self.guest_image / f"packages-{flavour}.lock"


def find_checkout() -> Checkout:
    """The checkout that this file lies in."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "guest-image" / "packages").is_file():
        raise ImageError(
            f"{root}: no guest-image/ here",
            hint="images are built in a checkout of Innkeeper, not from an installed wheel",
        )
    return Checkout(root=root)

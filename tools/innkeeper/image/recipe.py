"""Reads guest-image/: what goes into an image, each line with its reason.

The files are lines of `WORDS  # reason`. A line without a reason is an error:
an image stays small as long as somebody has to say why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from innkeeper.image.model import Flavour, ImageError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    words: tuple[str, ...]
    reason: str
    flavours: frozenset[Flavour]


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    path: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What one flavour is made of."""

    packages: tuple[str, ...]
    """Wanted in the image, with all that they depend on."""
    only: dict[str, tuple[str, ...]]
    """Of these packages, paths that match one of the patterns, and no others."""
    left_out: frozenset[str]
    """Packages that others depend on and the guest does without."""
    tools: tuple[str, ...]
    """In the build root only, whatever depends on them."""
    modules: tuple[str, ...]
    initrd_modules: tuple[str, ...]
    pruned: tuple[str, ...]
    """Patterns of paths (as `fnmatch` knows them) that are not copied."""
    directories: tuple[Directory, ...]

    @classmethod
    def read(cls, guest_image: Path, flavour: Flavour) -> Self:
        """Raises `ImageError` with file and line for anything it does not understand."""

        def words(name: str) -> list[tuple[str, ...]]:
            path = guest_image / name
            lines = parse_lines(path.read_text(), source=str(path))
            return [line.words for line in lines if flavour in line.flavours]

        packages = words("packages")
        return cls(
            packages=tuple(dict.fromkeys(name for name, *_ in packages if name[0] not in "-+")),
            only=_patterns(packages),
            left_out=frozenset(name[1:] for name, *_ in packages if name[0] == "-"),
            tools=tuple(name[1:] for name, *_ in packages if name[0] == "+"),
            modules=tuple(word for (word,) in words("modules")),
            initrd_modules=tuple(word for (word,) in words("initrd/modules")),
            pruned=tuple(word for (word,) in words("prune")),
            directories=tuple(
                Directory(path=path.strip("/"), mode=int(mode, 8))
                for path, mode in words("directories")
            ),
        )

    def also(self, packages: tuple[str, ...]) -> Self:
        """With these as well: whole, whatever the recipe says about them."""
        return replace(
            self,
            packages=tuple(dict.fromkeys((*self.packages, *packages))),
            only={name: paths for name, paths in self.only.items() if name not in packages},
            left_out=self.left_out.difference(packages),
            tools=tuple(name for name in self.tools if name not in packages),
        )


def _patterns(packages: list[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """By package; one may have several lines, each with the reason for its paths."""
    found: dict[str, tuple[str, ...]] = {}
    for name, *patterns in packages:
        if patterns:
            found[name] = (*found.get(name, ()), *patterns)
    return found


def parse_lines(text: str, *, source: str) -> list[Line]:
    """Lines of `[FLAVOUR:] WORD...  # reason`; blank and comment lines do not count."""
    lines = []
    for number, raw in enumerate(text.splitlines(), start=1):
        if not raw.strip() or raw.lstrip().startswith("#"):
            continue
        left, _, reason = raw.partition("#")
        words, flavours = _split(left.split(), source=f"{source}:{number}")
        if not reason.strip():
            raise ImageError(
                f"{source}:{number}: {' '.join(words)} has no reason",
                hint="write `NAME  # reason`",
            )
        lines.append(Line(words=words, reason=reason.strip(), flavours=flavours))
    return lines


def _split(words: list[str], *, source: str) -> tuple[tuple[str, ...], frozenset[Flavour]]:
    if not words[0].endswith(":"):
        return tuple(words), frozenset(Flavour)
    try:
        flavour = Flavour(words[0][:-1])
    except ValueError:
        known = ", ".join(Flavour)
        raise ImageError(f"{source}: no flavour {words[0][:-1]!r}; known: {known}") from None
    return tuple(words[1:]), frozenset({flavour})

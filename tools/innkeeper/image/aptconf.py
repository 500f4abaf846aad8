"""Turns the host's own apt configuration into one for Debian 13.

Mirror, proxies, time-outs, credentials and keys are the host's; only the suite
is ours. The host's hooks, preferences and package state are left out: they
are about the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.image.model import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUITE = "trixie"
DEBIAN_KEYRING = "usr/share/keyrings/debian-archive-keyring.gpg"
TARGET_FORMAT = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(SOURCESENTRY)"

_POCKETS = {"": "", "-updates": "-updates", "-security": "-security", "/updates": "-security"}
_ALIASES = frozenset({"stable", "oldstable", "oldoldstable", "testing", SUITE})
# IndexTargets and Languages would fetch what only people read.
_KEPT = re.compile(r"Acquire::(?!IndexTargets|Languages|cdrom)|Dir::Etc::(trusted|netrc)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Source:
    """One line of sources.list: always component main, always amd64."""

    uri: str
    suite: str
    signed_by: tuple[str, ...] = ()
    trusted: bool = False

    def format(self) -> str:
        options = ["arch=amd64"]
        if self.signed_by:
            options.append(f"signed-by={','.join(self.signed_by)}")
        if self.trusted:
            options.append("trusted=yes")
        return f"deb [{' '.join(options)}] {self.uri} {self.suite} main"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Target:
    """One index of the host's apt, as `apt-get indextargets` tells it."""

    uri: str
    release: str
    component: str
    origin: str
    entry_file: str


def parse_targets(text: str) -> list[Target]:
    """Lines of `TARGET_FORMAT`; apt leaves the name of a field it does not know as it is."""
    targets = []
    for line in text.splitlines():
        uri, release, component, origin, entry = line.split("|", 4)
        origin = "" if origin.startswith("$(") else origin
        targets.append(
            Target(
                uri=uri,
                release=release,
                component=component,
                origin=origin,
                entry_file=entry.rpartition(":")[0],
            )
        )
    return targets


def debian_sources(
    targets: Iterable[Target], *, codename: str, keys_of: dict[str, tuple[str, ...]]
) -> list[Source]:
    """The host's Debian mirrors with our suite instead of theirs.

    A source is Debian's when its suite is the host's own (or an alias such as
    stable) with a component main, and, where its Release file is known, that
    says so. `keys_of` gives the keyrings per file of sources.
    """
    known = _ALIASES | {codename}
    found = set()
    for target in targets:
        base = re.sub(r"(-updates|-security|/updates)$", "", target.release)
        pocket = target.release[len(base) :]
        if target.component != "main" or base not in known:
            continue
        if target.origin not in {"", "Debian"}:
            continue
        suite = SUITE + _POCKETS[pocket]
        keys = keys_of.get(target.entry_file, ())
        found.add(Source(uri=target.uri, suite=suite, signed_by=keys))
    if not any(source.suite == SUITE for source in found):
        raise ImageError(
            "apt of this host knows no Debian mirror",
            hint="give one: innkeeper image build --mirror URI",
        )
    return sorted(found)


def signing_keys(text: str, *, own: tuple[str, ...]) -> tuple[str, ...]:
    """The keyring files that a file of sources (either format) names, and `own`.

    Empty where it names none: apt's trusted keys are meant then. A key that is
    written out in the file itself is not followed.
    """
    named = re.findall(r"(?im)^signed-by:[ \t]*(/.*)$", text)
    named += re.findall(r"(?i)\bsigned-by=([^\s\]]+)", text)
    files = [file for value in named for file in re.split(r"[,\s]+", value.strip())]
    return tuple(dict.fromkeys([*files, *own])) if files else ()


def apt_conf(dump: str, *, state: Path) -> str:
    """A whole configuration: `dump` (of `apt-config dump`) filtered, and a private state."""
    kept = [line for line in dump.splitlines() if _KEPT.match(line)]
    nothing = ("main", "parts", "sourceparts", "preferences", "preferencesparts")
    own = [f'Dir::Etc::{name} "/dev/null";' for name in nothing]
    own += [
        f'Dir::Etc::sourcelist "{state}/sources.list";',
        f'Dir::State "{state}";',
        f'Dir::State::status "{state}/status";',
        f'Dir::Cache "{state}";',
        'Dir::Log "/dev/null";',
        'APT::Architecture "amd64";',
        'APT::Architectures { "amd64"; };',
        'APT::Install-Recommends "false";',
        # As root apt would fetch as the user _apt, who cannot write into a checkout.
        'APT::Sandbox::User "root";',
        'Acquire::Languages "none";',
        'Acquire::Retries "3";',
    ]
    return "\n".join(kept + own) + "\n"

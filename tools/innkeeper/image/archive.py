"""A Debian archive seen through apt with a state of its own.

Needs no root: apt is given other directories. Whatever is fetched has been
verified by apt against the archive's signatures, then by us against the lock.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from innkeeper.image.aptconf import (
    DEBIAN_KEYRING,
    SUITE,
    TARGET_FORMAT,
    Source,
    apt_conf,
    debian_sources,
    parse_targets,
    signing_keys,
)
from innkeeper.image.environment import fixed_environment
from innkeeper.image.model import ImageError
from innkeeper.shim.commands import CommandError, describe_status, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_QUERY = 60.0
_FETCH = 900.0
_INSTALLED = re.compile(r"^Inst (\S+) \((\S+) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """A package as the archive's index describes it."""

    name: str
    version: str
    architecture: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """`state` is apt's directory; call `update` before anything else."""

    state: Path

    @classmethod
    def of_host(cls, state: Path, *, mirror: str | None = None) -> Self:
        """Debian 13 from the host's own mirror, or from `mirror`."""
        keyring = Path("/") / DEBIAN_KEYRING
        own = (str(keyring),) if keyring.exists() else ()
        if mirror is not None:
            return cls.of_sources(state, [Source(uri=mirror, suite=SUITE, signed_by=own)])
        targets = parse_targets(_index_targets())
        files = {target.entry_file for target in targets}
        keys = {file: signing_keys(_read(Path(file)), own=own) for file in files}
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME", SUITE)
        return cls.of_sources(state, debian_sources(targets, codename=codename, keys_of=keys))

    @classmethod
    def of_sources(cls, state: Path, sources: Iterable[Source]) -> Self:
        for directory in ("lists/partial", "archives/partial"):
            (state / directory).mkdir(parents=True, exist_ok=True)
        dump = run(["apt-config", "dump"], deadline=_QUERY, env=fixed_environment()).text
        (state / "apt.conf").write_text(apt_conf(dump, state=state))
        lines = [source.format() for source in sources]
        (state / "sources.list").write_text("\n".join(lines) + "\n")
        (state / "status").write_text("")
        return cls(state=state)

    def update(self) -> None:
        """Fetches the indexes. Raises `CommandError`, also for a mirror that cannot be reached."""
        hint = "is the mirror reachable, and does it carry Debian 13? see sources.list in " + str(
            self.state
        )
        self._apt("apt-get", "-q", "update", "--error-on=any", deadline=_FETCH, hint=hint)

    def resolve(self, wanted: Sequence[str]) -> list[Deb]:
        """All packages that `wanted` (NAME or NAME=VERSION) need, in the newest versions allowed.

        Raises `CommandError` with apt's own words where it cannot.
        """
        text = self._apt("apt-get", "-q", "-y", "install", "--simulate", *wanted, deadline=_QUERY)
        pins = [f"{name}={version}" for name, version in parse_simulation(text)]
        return self.find(pins)

    def find(self, pins: Sequence[str]) -> list[Deb]:
        """Those of `pins` (NAME=VERSION) that the archive has."""
        if not pins:
            return []
        return parse_stanzas(self._apt("apt-cache", "show", *pins, deadline=_QUERY, check=False))

    def kernel_of(self, meta: str) -> Deb:
        """The one kernel package that a meta package such as linux-image-amd64 stands for.

        Only itself: its dependencies are tools that make an initramfs on a host.
        """
        text = self._apt("apt-cache", "depends", "--important", meta, deadline=_QUERY)
        names = re.findall(r"Depends: (linux-image-\S+)", text)
        if not names:
            raise ImageError(f"{meta} depends on no kernel package")
        shown = self._apt("apt-cache", "show", "--no-all-versions", names[0], deadline=_QUERY)
        return parse_stanzas(shown)[0]

    def fetch(self, pins: Sequence[str], into: Path) -> list[Path]:
        """Downloads packages (NAME=VERSION) into the empty directory `into`."""
        self._apt("apt-get", "-q", "download", *pins, deadline=_FETCH, cwd=into)
        return sorted(into.iterdir())

    def _apt(
        self,
        *argv: str,
        deadline: float,
        cwd: Path | None = None,
        hint: str = "",
        check: bool = True,
    ) -> str:
        env = fixed_environment(APT_CONFIG=str(self.state / "apt.conf"))
        result = run(argv, deadline=deadline, env=env, cwd=cwd, hint=hint, check=False)
        if result.status and check:
            # apt explains on stdout which package does not fit, and why.
            said = result.stdout + result.stderr
            raise CommandError(argv, describe_status(result.status), said, hint)
        return result.text


def parse_simulation(text: str) -> list[tuple[str, str]]:
    """(name, version) of each package that `apt-get install --simulate` would install."""
    matches = (_INSTALLED.match(line) for line in text.splitlines())
    return [(match[1], match[2]) for match in matches if match]


def parse_stanzas(text: str) -> list[Deb]:
    """The stanzas of a Packages index; the first wins where two describe one version."""
    debs: dict[tuple[str, str], Deb] = {}
    for stanza in re.split(r"\n\n+", text.strip()):
        fields = dict(re.findall(r"^(\S+): (.*)$", stanza, re.MULTILINE))
        if "SHA256" not in fields:
            continue
        deb = Deb(
            name=fields["Package"],
            version=fields["Version"],
            architecture=fields["Architecture"],
            sha256=fields["SHA256"],
        )
        debs.setdefault((deb.name, deb.version), deb)
    return list(debs.values())


def _index_targets() -> str:
    command = ["apt-get", "indextargets", "--format", TARGET_FORMAT, "Identifier: Packages"]
    text = run(command, deadline=_QUERY, env=fixed_environment()).text
    if text.strip():
        return text
    # A machine whose indexes were never fetched, or deleted to save space, lists none.
    return run([*command, "--no-release-info"], deadline=_QUERY, env=fixed_environment()).text


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

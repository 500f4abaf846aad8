"""virtiofsd: the program that serves a directory of the host to a guest.

There are two. QEMU brought one in C until 7.2 (Debian 12 has it among QEMU's own
files); the other is written in Rust and is a package of its own since. They differ in
their options, and tell which they are by what they call them.

Both shut themselves into the directory with namespaces, for which they want to be root.
An ordinary user is root in a user namespace of its own: the guest then has that user's
rights, and every file that it makes is the user's.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.shim import commands
from innkeeper.shim.errors import Reason, ShimError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "INNKEEPER_VIRTIOFSD"
PROGRAM = "virtiofsd"

# The package virtiofsd of Debian, and of others, and QEMU's own until 7.2. None is on PATH.
_PLACES = (
    Path("/usr/libexec/virtiofsd"),
    Path("/usr/lib/virtiofsd"),
    Path("/usr/lib/qemu/virtiofsd"),
)
_HELP_LIMIT = 10.0

# A server without an option for it gets the directory on a mount that can't be written.
# What is mounted below it does not come along, so nothing there can be written either.
_READ_ONLY_MOUNT = (
    'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 1; shift; exec "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Virtiofsd:
    """One program and what it can do."""

    program: Path
    is_of_qemu: bool
    """The one in C."""
    has_read_only: bool
    """It has an option to refuse all writes."""

    def argv(
        self, directory: Path, listener: int, *, read_only: bool, as_root: bool
    ) -> tuple[str, ...]:
        """`listener`: descriptor of the socket on which it waits for QEMU, which is its
        only client: it ends when QEMU hangs up."""
        by_mount = read_only and not self.has_read_only
        namespaces = self._namespaces(as_root=as_root, by_mount=by_mount)
        mount = ("sh", "-c", _READ_ONLY_MOUNT, "sh", str(directory)) if by_mount else ()
        prefix = ("unshare", *namespaces, "--", *mount) if namespaces else ()
        options = self._options(directory, listener, read_only=read_only)
        return (*prefix, str(self.program), *options)

    def _namespaces(self, *, as_root: bool, by_mount: bool) -> tuple[str, ...]:
        """The one in Rust makes its own user namespace; for a mount it has to be there before."""
        user = not as_root and (self.is_of_qemu or by_mount)
        return (
            *(("--user", "--map-root-user") if user else ()),
            *(("--mount", "--propagation", "private") if by_mount else ()),
        )

    def _options(self, directory: Path, listener: int, *, read_only: bool) -> tuple[str, ...]:
        if self.is_of_qemu:
            source = str(directory).replace("\\", "\\\\").replace(",", "\\,")
            options = f"source={source},sandbox=namespace,xattr,log_level=warn"
            return (f"--fd={listener}", "-f", "-o", options)
        return (
            *(f"--fd={listener}", f"--shared-dir={directory}", "--sandbox=namespace", "--xattr"),
            *(("--readonly",) if read_only and self.has_read_only else ()),
            "--log-level=warn",
        )


def find(environ: Mapping[str, str] = os.environ, places: Sequence[Path] = _PLACES) -> Path:
    """The program that `INNKEEPER_VIRTIOFSD` names, else a package's. Raises HOST_LACKS."""
    named = environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise _lacking(f"{named}: no such program", f"{VARIABLE} names it")
        return Path(found)
    by_path = shutil.which(PROGRAM, path=environ.get("PATH"))
    candidates = (places[0], *((Path(by_path),) if by_path else ()), *places[1:])
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return Path(candidate)
    raise _lacking(
        f"{PROGRAM}: not installed",
        "Debian 13: apt install virtiofsd; Debian 12: qemu-system-common",
    )


def look_at(program: Path) -> Virtiofsd:
    """Asks it what it can do. Raises HOST_LACKS for what is no virtiofsd."""
    try:
        done = commands.run([program, "--help"], deadline=_HELP_LIMIT, check=False)
    except commands.CommandError as error:
        raise _lacking(str(error), f"{VARIABLE} names another") from error
    text = (done.stdout + done.stderr).decode(errors="replace")
    is_of_qemu = "-o source=" in text
    if not (is_of_qemu or "--shared-dir" in text):
        raise _lacking(f"{program}: says nothing of sharing a directory", f"{VARIABLE} names one")
    return Virtiofsd(program=program, is_of_qemu=is_of_qemu, has_read_only="--readonly" in text)


def _lacking(message: str, hint: str) -> ShimError:
    return ShimError(Reason.HOST_LACKS, message, hint=hint, fields={"program": PROGRAM})

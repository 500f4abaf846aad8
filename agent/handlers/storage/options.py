"""Mount options in fstab's words, turned into mount(2)'s flags and data.

The words and their opposites are those of mount(8) and of the OCI runtime
specification; of a word and its opposite the last one wins. Words that only
user space understands (`defaults`, `nofail`, `_netdev`, `x-*`) end here. All
others are the file system's own and go to the kernel as they are, in order: an
option that it does not know is its EINVAL, never ours to guess.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.linux.mounting import MountFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

# mount(2) copies one page of data and cuts what is longer without a word.
DATA_LIMIT = 4095

_NONE = MountFlag(0)
_ATIME = MountFlag.NOATIME | MountFlag.RELATIME | MountFlag.STRICTATIME

# Word: (flags that it sets, flags that it clears).
_FLAGS: dict[str, tuple[MountFlag, MountFlag]] = {
    "ro": (MountFlag.RDONLY, _NONE),
    "rw": (_NONE, MountFlag.RDONLY),
    "nosuid": (MountFlag.NOSUID, _NONE),
    "suid": (_NONE, MountFlag.NOSUID),
    "nodev": (MountFlag.NODEV, _NONE),
    "dev": (_NONE, MountFlag.NODEV),
    "noexec": (MountFlag.NOEXEC, _NONE),
    "exec": (_NONE, MountFlag.NOEXEC),
    "sync": (MountFlag.SYNCHRONOUS, _NONE),
    "async": (_NONE, MountFlag.SYNCHRONOUS),
    "dirsync": (MountFlag.DIRSYNC, _NONE),
    "mand": (MountFlag.MANDLOCK, _NONE),
    "nomand": (_NONE, MountFlag.MANDLOCK),
    # The kernel lets strictatime beat the other two: the last word has to clear them.
    "noatime": (MountFlag.NOATIME, _ATIME),
    "atime": (_NONE, MountFlag.NOATIME),
    "relatime": (MountFlag.RELATIME, _ATIME),
    "norelatime": (_NONE, MountFlag.RELATIME),
    "strictatime": (MountFlag.STRICTATIME, _ATIME),
    "nostrictatime": (_NONE, MountFlag.STRICTATIME),
    "nodiratime": (MountFlag.NODIRATIME, _NONE),
    "diratime": (_NONE, MountFlag.NODIRATIME),
    "lazytime": (MountFlag.LAZYTIME, _NONE),
    "nolazytime": (_NONE, MountFlag.LAZYTIME),
    "iversion": (MountFlag.I_VERSION, _NONE),
    "noiversion": (_NONE, MountFlag.I_VERSION),
    "silent": (MountFlag.SILENT, _NONE),
    "loud": (_NONE, MountFlag.SILENT),
    "nosymfollow": (MountFlag.NOSYMFOLLOW, _NONE),
    "symfollow": (_NONE, MountFlag.NOSYMFOLLOW),
}

_USER_SPACE = frozenset(
    [
        "defaults",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "nofail",
        "_netdev",
        "_rnetdev",
    ]
)
_USER_SPACE_PREFIXES = ("x-", "X-", "comment=", "uhelper=", "helper=")

# What mount(8) does itself before or instead of a plain mount: not ours to drop in silence.
_REFUSED = frozenset(
    [
        "remount",
        "bind",
        "rbind",
        "move",
        "loop",
        "shared",
        "rshared",
        "private",
        "rprivate",
        "slave",
        "rslave",
        "unbindable",
        "runbindable",
    ]
)
_REFUSED_PREFIXES = ("loop=", "offset=", "sizelimit=")

_SELINUX = ("context=", "fscontext=", "defcontext=", "rootcontext=")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOptions:
    """`flags` and `data` as mount(2) takes them."""

    flags: MountFlag
    data: str


def parse_options(
    entries: Iterable[str], *, read_only: bool = False, selinux: bool = False
) -> MountOptions:
    """Options of a request; an entry may hold several, split at commas outside double quotes.

    `read_only` adds `ro` after all others. Without `selinux` in the guest its labels are
    dropped with a log line, because the kernel refuses them then. Raises BAD_FIELD for
    options that a mount of this kind cannot have, and for data over one page.
    """
    flags = _NONE
    data: list[str] = []
    for word in _words(entries):
        if word in _FLAGS:
            set_flags, cleared = _FLAGS[word]
            flags = (flags & ~cleared) | set_flags
        elif word in _REFUSED or word.startswith(_REFUSED_PREFIXES):
            raise invalid(f"the mount option {word!r} is not possible here", field="options")
        elif word.startswith(_SELINUX) and not selinux:
            log.warning("mount option %s dropped: this guest has no SELinux", word)
        elif word not in _USER_SPACE and not word.startswith(_USER_SPACE_PREFIXES):
            data.append(word)
    if read_only:
        flags |= MountFlag.RDONLY
    return MountOptions(flags=flags, data=_checked(",".join(data)))


def _words(entries: Iterable[str]) -> Iterator[str]:
    for entry in entries:
        if entry.startswith(_SELINUX) and '"' not in entry:
            # A label's categories hold commas: an entry of its own is one label.
            name, _, label = entry.partition("=")
            yield f'{name}="{label}"' if "," in label else entry
        else:
            yield from _split(entry)


def _split(entry: str) -> Iterator[str]:
    word, quoted = "", False
    for letter in entry:
        quoted ^= letter == '"'
        if letter == "," and not quoted:
            if word:
                yield word
            word = ""
        else:
            word += letter
    if quoted:
        raise invalid(f"the mount option {entry!r} has a quote that is not closed", field="options")
    if word:
        yield word


def _checked(data: str) -> str:
    if "\0" in data:
        raise invalid("a mount option holds a NUL byte", field="options")
    size = len(data.encode(errors="surrogateescape"))
    if size > DATA_LIMIT:
        raise invalid(
            f"the mount options are too long: {size} bytes, the kernel takes {DATA_LIMIT}",
            field="options",
        )
    return data

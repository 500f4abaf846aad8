"""Mount options in fstab's words, turned into flags and the file system's own options.

The words and their opposites are those of mount(8) and of the OCI runtime
specification; of a word and its opposite the last one wins. Words that only
user space understands (`defaults`, `nofail`, `_netdev`, `x-*`) end here. All
others are the file system's own and go to the kernel as they are, in order and also
twice: an option that it does not know is its EINVAL, never ours to guess.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.fileops import FileRefusal, MountOption
from agent.linux import mountdata
from agent.linux.mounting import MountFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

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

# For a bind mount these say only what it is.
_BIND = frozenset(["bind", "rbind"])

# Of CIFS and Ceph, for those who write them here and not in the fields that are meant for them.
_SECRET = frozenset(["password", "pass", "password2", "secret"])

_SELINUX = ("context=", "fscontext=", "defcontext=", "rootcontext=")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOptions:
    """`flags` of the mount and its super block, `options` of the file system's own."""

    flags: MountFlag
    options: tuple[MountOption, ...]


def parse_options(
    entries: Iterable[str], *, read_only: bool = False, selinux: bool = False, bind: bool = False
) -> MountOptions:
    """Options of a request; an entry may hold several, split at commas outside double quotes.

    A value in quotes is what is between them. `read_only` adds `ro` after all others. Without
    `selinux` in the guest its labels are dropped with a log line, because the kernel refuses
    them then. A `bind` mount takes the words "bind" and "rbind", and none of a file system's.
    Raises BAD_FIELD for options that a mount of this kind cannot have.
    """
    flags = _NONE
    options: list[MountOption] = []
    for word in _words(entries):
        if word in _FLAGS:
            set_flags, cleared = _FLAGS[word]
            flags = (flags & ~cleared) | set_flags
        elif not _dropped(word, selinux=selinux, bind=bind):
            options.append(_option(word))
    if read_only:
        flags |= MountFlag.RDONLY
    if bind and options:
        words = ",".join(map(str, options))
        raise invalid(f"a bind mount takes no options of a file system: {words}", field="options")
    return MountOptions(flags=flags, options=_checked(options))


def _dropped(word: str, *, selinux: bool, bind: bool) -> bool:
    if word in _REFUSED or word.startswith(_REFUSED_PREFIXES):
        if bind and word in _BIND:
            return True
        raise invalid(f"the mount option {word!r} is not possible here", field="options")
    if word.startswith(_SELINUX) and not selinux:
        log.warning("mount option %s dropped: this guest has no SELinux", word)
        return True
    return word in _USER_SPACE or word.startswith(_USER_SPACE_PREFIXES)


def _option(word: str) -> MountOption:
    key, equals, value = word.partition("=")
    if not key:
        raise invalid(f"the mount option {word!r} has no name", field="options")
    if len(value) > 1 and value[0] == value[-1] == '"' and value.count('"') == 2:
        value = value[1:-1]
    return MountOption(key=key, value=value if equals else None, secret=key in _SECRET)


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
        # Not the whole of it: it may be a password.
        key = word.partition("=")[0]
        raise invalid(f"the mount option {key!r} has a quote that is not closed", field="options")
    if word:
        yield word


def _checked(options: list[MountOption]) -> tuple[MountOption, ...]:
    texts = mountdata.strings(options)
    if any("\0" in text for text in texts):
        raise invalid("a mount option holds a NUL byte", field="options")
    if not mountdata.fits_strings(texts):
        # Then only mount(2) can take them, all in one.
        try:
            mountdata.mount_data(options, "")
        except FileRefusal as refusal:
            raise invalid(f"the mount {refusal.log[0]}", field="options") from refusal
    return tuple(options)

"""`-v`, `--mount`, `--tmpfs`: what a container has mounted, in the words of docker."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli.options import MountOption, existing_file, exists, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VOLUME = re.compile(r"(?P<what>.+?):(?P<mount>/[^:]*)(?::(?P<options>[^:/]+))?")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TMPFS_WORDS = frozenset(
    ("ro", "rw", "nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "relatime")
)
_TMPFS_VALUES = frozenset(["size", "mode", "uid", "gid", "nr_inodes", "nr_blocks"])
_KINDS = {"bind": "bind", "volume": "volume", "storage": "volume", "tmpfs": "tmpfs"}
_NAMES = {
    **dict.fromkeys(("type",), "type"),
    **dict.fromkeys(("source", "src"), "source"),
    **dict.fromkeys(("target", "dst", "destination"), "target"),
    **dict.fromkeys(("readonly", "ro"), "readonly"),
    **dict.fromkeys(("tmpfs-size",), "size"),
    **dict.fromkeys(("tmpfs-mode",), "mode"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tmpfs:
    """Memory of the container's own."""

    mount: str
    options: tuple[str, ...] = ()

    def to_oci(self) -> dict[str, Any]:
        return {
            "destination": self.mount,
            "type": "tmpfs",
            "source": "tmpfs",
            # As docker has it, unless said otherwise.
            "options": [*("nosuid", "nodev", "noexec"), *self._mode(), *self.options],
        }

    def _mode(self) -> tuple[str, ...]:
        """For everybody, as /tmp: the runtime's own is that of the directory below, 0755."""
        given = any(word.startswith("mode=") for word in self.options)
        return () if given else ("mode=1777",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Directories of this host, storages of the VM, and memory."""

    shares: tuple[MountOption, ...] = ()
    storages: tuple[MountOption, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = ()


def parse(
    volumes: Sequence[str], mounts: Sequence[str], tmpfs: Sequence[str], *, with_vm: bool
) -> Volumes:
    """Raises typer.BadParameter. `with_vm`: there is a VM that may have storages."""
    found = [_volume(text) for text in volumes] + [_mount(text) for text in mounts]
    found += [_tmpfs(text) for text in tmpfs]
    shares, storages, memory = [], [], []
    for option, each in found:
        if isinstance(each, Tmpfs):
            memory.append(each)
        elif _is_path(each.what):
            shares.append(_directory(option, each))
        else:
            storages.append(_storage(option, each, with_vm=with_vm))
    return Volumes(shares=tuple(shares), storages=tuple(storages), tmpfs=tuple(memory))


def _is_path(what: str) -> bool:
    """As docker has it: what has no slash is a name, and `.` and `..` are directories."""
    return "/" in what or what in (".", "..")


def _directory(option: str, each: MountOption) -> MountOption:
    if not exists(each.what):
        raise typer.BadParameter(f"{option} {each.what}: no such directory")
    path = existing_file(each.what)
    if not path.is_dir():
        raise typer.BadParameter(
            f"{option} {each.what}: is no directory, and only directories can be shared with a VM;"
            " share the one that it is in, or copy it: innkeeper cp"
        )
    return MountOption(what=str(path), mount=each.mount, read_only=each.read_only)


def _storage(option: str, each: MountOption, *, with_vm: bool) -> MountOption:
    if not _ID.fullmatch(each.what):
        raise typer.BadParameter(f"{option} {each.what}: is neither a path nor a storage's id")
    if not with_vm:
        raise typer.BadParameter(
            f"{option} {each.what}: is the id of a storage, which a new VM has not: those want"
            f" --vm; a directory here is ./{each.what}"
        )
    return each


def _volume(text: str) -> tuple[str, MountOption | Tmpfs]:
    option = f"-v {text!r}"
    match = _VOLUME.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{option}: write DIR:MOUNT[:ro] or STORAGE:MOUNT[:ro], as in .:/src:ro;"
            " memory is --tmpfs"
        )
    words = [word for word in (match["options"] or "").split(",") if word]
    # Labels of SELinux, which no guest has: z and Z say that a container may use it.
    if unknown := sorted(set(words) - {"ro", "rw", "z", "Z"}):
        raise typer.BadParameter(f"{option}: {unknown[0]!r} is none of ro, rw")
    return "-v", MountOption(what=match["what"], mount=match["mount"], read_only="ro" in words)


def _mount(text: str) -> tuple[str, MountOption | Tmpfs]:
    """Docker's form: fields of CSV, each NAME=VALUE or a flag."""
    fields = _fields(text)
    kind = _KINDS.get(fields.pop("type", "volume"))
    if kind is None:
        raise typer.BadParameter(f"--mount {text!r}: type is one of {', '.join(_KINDS)}")
    target = fields.pop("target", "")
    if not target.startswith("/"):
        raise typer.BadParameter(f"--mount {text!r}: target is an absolute path in the container")
    read_only = fields.pop("readonly", "false")
    if read_only not in ("true", "false", "1", "0"):
        raise typer.BadParameter(f"--mount {text!r}: readonly is true or false")
    is_read_only = read_only in ("true", "1")
    if kind == "tmpfs":
        words = ["ro"] if is_read_only else []
        words += [f"size={fields.pop('size')}"] if "size" in fields else []
        words += [f"mode={fields.pop('mode')}"] if "mode" in fields else []
        _nothing_left(text, kind, fields)
        return "--mount", _tmpfs(f"{target}:{','.join(words)}" if words else target)[1]
    source = fields.pop("source", "")
    _nothing_left(text, kind, fields)
    if not source:
        raise typer.BadParameter(f"--mount {text!r}: which source?")
    return "--mount", _of_kind(
        text, kind, MountOption(what=source, mount=target, read_only=is_read_only)
    )


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for field in next(csv.reader([text]), []):
        name, equals, value = field.partition("=")
        known = _NAMES.get(name)
        if known is None:
            raise typer.BadParameter(
                f"--mount {text!r}: {name!r} is none of {', '.join(sorted(_NAMES))}"
            )
        found[known] = value if equals else "true"
    return found


def _of_kind(text: str, kind: str, found: MountOption) -> MountOption:
    if (kind == "bind") == _is_path(found.what):
        return found
    if kind == "bind":
        raise typer.BadParameter(
            f"--mount {text!r}: a bind's source is a path, as in ./{found.what}"
        )
    raise typer.BadParameter(f"--mount {text!r}: a volume's source is a storage's id")


def _nothing_left(text: str, kind: str, fields: Mapping[str, str]) -> None:
    if fields:
        raise typer.BadParameter(f"--mount {text!r}: {', '.join(fields)} is nothing for {kind}")


def _tmpfs(text: str) -> tuple[str, Tmpfs]:
    """MOUNT[:size=SIZE,mode=MODE,...], tmpfs(5)."""
    mount, _, rest = text.partition(":")
    if not mount.startswith("/"):
        raise typer.BadParameter(f"--tmpfs {text!r}: write MOUNT[:OPTIONS], as in /tmp:size=64M")
    words = []
    for word in rest.split(",") if rest else ():
        name, equals, value = word.partition("=")
        if name not in (_TMPFS_VALUES if equals else _TMPFS_WORDS):
            known = ", ".join(
                [*(f"{each}=" for each in sorted(_TMPFS_VALUES)), *sorted(_TMPFS_WORDS)]
            )
            raise typer.BadParameter(f"--tmpfs {text!r}: {word!r} is none of {known}")
        words.append(f"size={_size(value)}" if name == "size" else word)
    return "--tmpfs", Tmpfs(mount=mount, options=tuple(words))


def _size(text: str) -> str:
    """The kernel's own percentages, and bytes as numbers: a bare number is bytes there."""
    if re.fullmatch(r"[0-9]{1,3}%", text) or text.isdecimal():
        return text
    return str(parse_size(text))

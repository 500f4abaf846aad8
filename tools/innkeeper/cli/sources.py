"""What is mounted, in the words of the command line: one option says the source, others
say more of it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli.options import check_seconds, existing_file, parse_size
from innkeeper.v1 import storages_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Words = Mapping[str, Any]
    """The options that were given, by the names of their parameters."""

# Larger than any key; a file that is no key is not read whole.
_LARGEST_SECRET = 1 << 16
_NFS = re.compile(r"(?P<server>\[[^\]]+\]|[^:/\[\]]+):(?P<path>/.*)")
_CIFS = re.compile(r"//(?P<server>[^/]+)/(?P<share>.+)")
_CEPH = re.compile(r"(?P<monitors>.+?):(?P<path>/.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One kind of source."""

    make: Callable[[storages_pb2.Storage, Words], None]
    """Fills in the storage's source."""
    options: frozenset[str] = frozenset()
    """Names of the options that are of its own, beside those that all have."""


def _block(storage: storages_pb2.Storage, words: Words) -> None:
    block = storage.block
    block.device_id = words.get("device") or ""
    block.fs_type = words.get("fs_type", "ext4")
    block.format_if_empty = words.get("format_", False)
    _partition(block, words.get("partition", ""))
    if _is_asked(words, "verity", _VERITY):
        block.verity.CopyFrom(_verity(words))
    if _is_asked(words, "key_file", _CRYPT):
        block.crypt.CopyFrom(_crypt(words))


def _is_asked(words: Words, first: str, more: frozenset[str]) -> bool:
    """Whether the option that the others belong to is there. Raises typer.BadParameter for
    those without it: nobody should read unproved what was to be proved."""
    if words.get(first):
        return True
    if lonely := sorted(as_option(name) for name in more & words.keys()):
        raise typer.BadParameter(f"{', '.join(lonely)}: means nothing without {as_option(first)}")
    return False


def _partition(block: storages_pb2.BlockSource, text: str) -> None:
    """A number, or a GPT label, which may not be a number therefore."""
    if text.isdecimal():
        block.partition = int(text[:9])
    else:
        block.partition_label = text


def _verity(words: Words) -> storages_pb2.Verity:
    return storages_pb2.Verity(
        root_hash=words["verity"],
        salt=words.get("verity_salt", ""),
        hash_offset=words.get("verity_offset", 0),
        hash_device_id=words.get("verity_device", ""),
        algorithm=words.get("verity_hash", ""),
        data_blocks=words.get("verity_blocks", 0),
        no_superblock=words.get("no_superblock", False),
    )


def _crypt(words: Words) -> storages_pb2.Crypt:
    return storages_pb2.Crypt(
        key=secret_bytes(words["key_file"]),
        cipher=words.get("cipher", ""),
        sector_size=words.get("sector_size", 0),
        offset=words.get("data_offset", 0),
    )


def _pmem(storage: storages_pb2.Storage, words: Words) -> None:
    storage.pmem.device_id = words["pmem"]
    storage.pmem.fs_type = words.get("fs_type", "ext4")
    storage.pmem.dax = words.get("dax", False)


def _virtiofs(storage: storages_pb2.Storage, words: Words) -> None:
    storage.virtiofs.tag = words["virtiofs"]


def _share(storage: storages_pb2.Storage, _words: Words) -> None:
    """The tag is that of the share, which is plugged first."""
    storage.virtiofs.SetInParent()


def _nine_p(storage: storages_pb2.Storage, words: Words) -> None:
    storage.nine_p.tag = words["nine_p"]
    storage.nine_p.msize = parse_size(words["msize"]) if words.get("msize") else 0


def _tmpfs(storage: storages_pb2.Storage, words: Words) -> None:
    storage.tmpfs.size = parse_size(words["tmpfs"])
    storage.tmpfs.mode = _mode(words)


def _hugetlb(storage: storages_pb2.Storage, words: Words) -> None:
    storage.hugetlb.size = parse_size(words["hugetlb"])
    page = words.get("page_size", "")
    storage.hugetlb.page_size = parse_size(page) if page else 0


def _bind(storage: storages_pb2.Storage, words: Words) -> None:
    storage.bind.recursive = words.get("recursive", False)
    text = words["bind"]
    if text.startswith("/"):
        storage.bind.path = text
    else:
        storage.bind.directory.CopyFrom(parse_directory("--bind", text))


def _overlay(storage: storages_pb2.Storage, words: Words) -> None:
    texts = [text for group in words["overlay"] for text in group.split(",")]
    storage.overlay.lower.extend(parse_directory("--overlay", text) for text in texts)
    for name, field in (("upper", storage.overlay.upper), ("work", storage.overlay.work)):
        if words.get(name):
            field.CopyFrom(parse_directory(f"--{name}", words[name]))


def _nfs(storage: storages_pb2.Storage, words: Words) -> None:
    found = _matched(_NFS, "--nfs", words["nfs"], "SERVER:/PATH")
    storage.nfs.server = found["server"].strip("[]")
    storage.nfs.path = found["path"]
    storage.nfs.version = words.get("protocol", "")


def _cifs(storage: storages_pb2.Storage, words: Words) -> None:
    found = _matched(_CIFS, "--cifs", words["cifs"], "//SERVER/SHARE")
    storage.cifs.server, storage.cifs.share = found["server"], found["share"]
    storage.cifs.user = words.get("user", "")
    storage.cifs.domain = words.get("domain", "")
    storage.cifs.version = words.get("protocol", "")
    if words.get("password_file"):
        storage.cifs.password = secret_text(words["password_file"])


def _ceph(storage: storages_pb2.Storage, words: Words) -> None:
    found = _matched(_CEPH, "--ceph", words["ceph"], "MONITOR[,MONITOR...]:/PATH")
    storage.ceph.monitors.extend(found["monitors"].split(","))
    storage.ceph.path = found["path"]
    storage.ceph.user = words.get("user", "")
    storage.ceph.file_system = words.get("file_system", "")
    if words.get("key_file"):
        storage.ceph.secret = secret_text(words["key_file"])


def _local(storage: storages_pb2.Storage, words: Words) -> None:
    storage.local.mode = _mode(words)
    storage.local.storage_id = words.get("inside", "")


def _watch(storage: storages_pb2.Storage, words: Words) -> None:
    storage.watched.interval_seconds = check_seconds("--interval", words.get("interval", 0))
    storage.watched.only_refresh = words.get("only_refresh", False)
    text = words["watch"]
    if text.startswith("/"):
        storage.watched.path = text
    else:
        storage.watched.directory.CopyFrom(parse_directory("--watch", text))


_VERITY = frozenset(
    {"verity", "verity_salt", "verity_offset", "verity_device", "verity_hash", "verity_blocks"}
    | {"no_superblock"}
)
_CRYPT = frozenset({"key_file", "cipher", "sector_size", "data_offset"})
_BLOCK = frozenset({"fs_type", "format_", "partition"}) | _VERITY | _CRYPT

SOURCES: Mapping[str, Source] = {
    "device": Source(make=_block, options=_BLOCK),
    "disk": Source(make=_block, options=_BLOCK | {"disk_format"}),
    "from_": Source(make=_block, options=frozenset({"fs_type"})),
    "share": Source(make=_share),
    "virtiofs": Source(make=_virtiofs),
    "nine_p": Source(make=_nine_p, options=frozenset({"msize"})),
    "tmpfs": Source(make=_tmpfs, options=frozenset({"mode"})),
    "hugetlb": Source(make=_hugetlb, options=frozenset({"page_size"})),
    "local": Source(make=_local, options=frozenset({"mode", "inside"})),
    "bind": Source(make=_bind, options=frozenset({"recursive"})),
    "overlay": Source(make=_overlay, options=frozenset({"upper", "work"})),
    "watch": Source(make=_watch, options=frozenset({"interval", "only_refresh"})),
    "nfs": Source(make=_nfs, options=frozenset({"protocol"})),
    "cifs": Source(make=_cifs, options=frozenset({"user", "password_file", "domain", "protocol"})),
    "ceph": Source(make=_ceph, options=frozenset({"user", "key_file", "file_system"})),
    "pmem": Source(make=_pmem, options=frozenset({"fs_type", "dax"})),
}
"""By the parameter of the option that says it."""

_OF_ALL = frozenset(
    {"mount_point", "read_only", "option", "fs_group", "fs_group_once", "timeout", "json"}
)
_SPELLED = {
    "nine_p": "--9p",
    "from_": "--from",
    "format_": "--format",
    "fs_type": "--type",
    "inside": "--in",
    "option": "-o",
}


def as_option(name: str) -> str:
    """A parameter as it is written."""
    return _SPELLED.get(name, "--" + name.replace("_", "-"))


def kind_of(words: Words) -> str:
    """The one source among the options given. Raises typer.BadParameter, also for an
    option that means nothing to it."""
    named = [name for name in SOURCES if name in words]
    if len(named) != 1:
        given = " and ".join(as_option(name) for name in named) or "none"
        every = ", ".join(as_option(name) for name in SOURCES)
        raise typer.BadParameter(f"one source is needed, and {given} given; one of {every}")
    known = SOURCES[named[0]].options | _OF_ALL | {named[0]}
    if strange := sorted(set(words) - known):
        texts = ", ".join(as_option(name) for name in strange)
        own = ", ".join(sorted(as_option(name) for name in known - {named[0]}))
        raise typer.BadParameter(f"{texts}: not for {as_option(named[0])}, which has {own}")
    return named[0]


def storage_of(storage_id: str, words: Words) -> storages_pb2.Storage:
    """Raises typer.BadParameter."""
    storage = storages_pb2.Storage(
        id=storage_id,
        mount_point=words.get("mount_point", ""),
        read_only=words.get("read_only", False),
        options=words.get("option", ()),
        fs_group=words.get("fs_group", 0),
        timeout_seconds=check_seconds("--timeout", words.get("timeout", 0)),
    )
    if words.get("fs_group_once"):
        storage.fs_group_policy = storages_pb2.FS_GROUP_POLICY_ON_ROOT_MISMATCH
    SOURCES[kind_of(words)].make(storage, words)
    return storage


def parse_directory(option: str, text: str) -> storages_pb2.StorageDirectory:
    """`ID[:PATH]`: a directory in another storage. Raises typer.BadParameter."""
    storage_id, _, path = text.partition(":")
    if not storage_id:
        raise typer.BadParameter(f"{option} {text!r}: write ID or ID:PATH, as in base:usr/share")
    return storages_pb2.StorageDirectory(storage_id=storage_id, path=path)


def secret_bytes(text: str) -> bytes:
    """A file's content, or what comes on stdin for `-`: an argument can be seen by others.
    Raises typer.BadParameter."""
    if text == "-":
        return sys.stdin.buffer.read(_LARGEST_SECRET)
    path = existing_file(text)
    try:
        return _read(path)
    except OSError as error:
        raise typer.BadParameter(f"{text}: {error.strerror}") from None


def secret_text(text: str) -> str:
    """The same, without the end of the line. Raises typer.BadParameter."""
    try:
        return secret_bytes(text).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{text}: holds no text") from None


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST_SECRET)


def _mode(words: Words) -> int:
    text = words.get("mode", "")
    if not text:
        return 0
    if not re.fullmatch(r"0?[0-7]{3,4}", text):
        raise typer.BadParameter(f"--mode {text}: write an octal number, as in 0750")
    return int(text, 8)


def _matched(pattern: re.Pattern[str], option: str, text: str, form: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{option} {text!r}: write {form}")
    return found

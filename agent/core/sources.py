"""What a storage can be made from, and how a source is saved.

A source is plain: texts, numbers, lists of them, and other such classes, so that one
pair of functions writes all of them to the state directory and reads them back.
Members made with `secret()` are the exception: they are not saved, not shown and not
compared, so the same request again is the same without its secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias, get_args, get_type_hints

from agent.core.addresses import Address, kind_of, parse

_SECRET = "secret"


def secret(*, default: Any) -> Any:
    """A member that goes to the kernel and nowhere else."""
    return field(default=default, repr=False, compare=False, metadata={_SECRET: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageDirectory:
    """A directory below the root of a storage; "" is the root."""

    storage_id: str
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VeritySetup:
    """dm-verity; hashes and salt in lower-case hex, offsets in bytes.

    Zeros and "" mean the superblock's values, or the defaults where there is none.
    """

    root_hash: str
    salt: str = ""
    hash_offset: int = 0
    hash_device_id: str = ""
    algorithm: str = ""
    data_block_size: int = 0
    hash_block_size: int = 0
    data_blocks: int = 0
    superblock: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CryptSetup:
    """dm-crypt without a header; sizes and offset in bytes."""

    key: bytes = secret(default=b"")
    cipher: str = "aes-xts-plain64"
    sector_size: int = 512
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSource:
    """A file system on a block device, which is attached (`device_id`) or at `address`.

    `partition` 0 and `partition_label` "" are the whole device.
    """

    device_id: str = ""
    fs_type: str
    address: Address | None = None
    partition: int = 0
    partition_label: str = ""
    format_if_empty: bool = False
    verity: VeritySetup | None = None
    crypt: CryptSetup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PmemSource:
    """A file system on persistent memory, mapped by programs without a page cache (`dax`)."""

    device_id: str
    fs_type: str
    dax: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtiofsSource:
    """A directory of the host, by the tag of its device."""

    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NinePSource:
    """A directory of the host by 9p; `msize` is the largest packet in bytes, 0 the default."""

    tag: str
    msize: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TmpfsSource:
    """Memory; `size` in bytes, 0 the kernel's default; `mode` of the root, 0 the kernel's."""

    size: int = 0
    mode: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HugetlbSource:
    """Huge pages; sizes in bytes, 0: the default page, nothing allocated."""

    page_size: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BindSource:
    """A directory or file: an absolute `path` in the guest, or one in a storage."""

    path: str = ""
    directory: StorageDirectory | None = None
    recursive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySource:
    """Layers, the topmost first; read-only without `upper`."""

    lower: tuple[StorageDirectory, ...]
    upper: StorageDirectory | None = None
    work: StorageDirectory | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsSource:
    """An export; `server` is a name or an address, `version` "" the kernel's choice."""

    server: str
    path: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CifsSource:
    """A share."""

    server: str
    share: str
    user: str = ""
    password: str = secret(default="")
    domain: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CephSource:
    """A path in a CephFS, by its monitors."""

    monitors: tuple[str, ...]
    path: str = "/"
    user: str = ""
    password: str = secret(default="")
    file_system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """A directory of the agent's making; in the guest's memory, or in a storage."""

    mode: int = 0o755
    storage_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSource:
    """A directory that is copied again when it has changed; `interval` in seconds, 0: when told."""

    path: str = ""
    directory: StorageDirectory | None = None
    interval: float = 2.0


Source: TypeAlias = (
    BlockSource
    | PmemSource
    | VirtiofsSource
    | NinePSource
    | TmpfsSource
    | HugetlbSource
    | BindSource
    | OverlaySource
    | NfsSource
    | CifsSource
    | CephSource
    | LocalSource
    | WatchedSource
)

_TYPES: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Source)}


def to_data(source: Source) -> dict[str, Any]:
    """The source as JSON has it, with its type's name, without its secrets."""
    return {"type": type(source).__name__, **_members(source)}


def from_data(data: Mapping[str, Any]) -> Source:
    """Raises KeyError, TypeError or ValueError on another shape."""
    members = dict(data)
    kind = _TYPES[members.pop("type")]
    source: Source = _build(kind, members)
    return source


def _members(value: Any) -> dict[str, Any]:
    shown = (each for each in fields(value) if not each.metadata.get(_SECRET))
    return {each.name: _plain(getattr(value, each.name)) for each in shown}


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_plain(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, get_args(Address)):
            return _members(value)
        case _:
            return [kind_of(value), str(value)]


def _build(kind: Any, members: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    if unknown := set(members) - {each.name for each in fields(kind)}:
        raise ValueError(f"{kind.__name__} has no {sorted(unknown)}")
    return kind(**{name: _typed(hints[name], value) for name, value in members.items()})


def _typed(hint: Any, value: Any) -> Any:
    choices = get_args(hint) or (hint,)
    if value is None:
        return None
    if set(choices) & set(get_args(Address)):
        return parse(*value)
    if isinstance(value, list):
        return tuple(_typed(choices[0], each) for each in value)
    if isinstance(value, Mapping):
        return _build(next(each for each in choices if is_dataclass(each)), value)
    return value

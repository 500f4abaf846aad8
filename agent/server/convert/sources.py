"""Sources of storages: the protocol's messages and ours, each way, without secrets back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from agent.core import sources as ours
from agent.core.errors import invalid
from agent.core.names import check_id
from agent.server.convert import fields
from agent.server.convert.addresses import address, as_asked
from innkeeper.v1 import storages_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_CIPHER: Final = "aes-xts-plain64"
_SECTORS: Final = (512, 1024, 2048, 4096)
_BLOCKS: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_MODES: Final = 0o7777
_INTERVAL: Final = 2.0
# OVL_MAX_STACK (fs/overlayfs/params.c) and, with room for names that nobody knows,
# CEPH_MAX_MON: a longer list is refused before each of it is looked at.
_LAYERS: Final = 500
_MONITORS: Final = 256


def source(told: pb.Storage, field: str) -> ours.Source:
    """What is mounted; raises BAD_FIELD, BAD_ID, BAD_ADDRESS."""
    name = fields.choice(told, "source", field)
    result: ours.Source = _PARSERS[name](getattr(told, name), f"{field}.{name}")
    return result


def as_told(value: ours.Source) -> dict[str, Any]:
    """The member of Storage.source that says it, by its name."""
    name, make = _WRITERS[type(value)]
    return {name: make(value)}


def _block(told: pb.BlockSource, field: str) -> ours.BlockSource:
    _one_of(field, device_id=bool(told.device_id), address=told.HasField("address"))
    if told.partition and told.partition_label:
        raise invalid(f"{field}: a partition has a number or a label, not both", field=field)
    return ours.BlockSource(
        device_id=_device(told.device_id) if told.device_id else "",
        address=address(told.address, f"{field}.address") if told.HasField("address") else None,
        fs_type=_fs_type(told.fs_type, field),
        partition=told.partition,
        partition_label=_text(told.partition_label, f"{field}.partition_label", most=72),
        format_if_empty=told.format_if_empty,
        verity=_verity(told.verity, f"{field}.verity") if told.HasField("verity") else None,
        crypt=_crypt(told.crypt, f"{field}.crypt") if told.HasField("crypt") else None,
    )


def _verity(told: pb.Verity, field: str) -> ours.VeritySetup:
    sizes = {"data_block_size": told.data_block_size, "hash_block_size": told.hash_block_size}
    for name, size in sizes.items():
        if size and size not in _BLOCKS:
            raise invalid(f"{field}.{name}: {size} is no size of a block", field=f"{field}.{name}")
    if not told.root_hash:
        raise invalid(f"{field}.root_hash: it is what everything is checked by", field=field)
    return ours.VeritySetup(
        root_hash=_hex(told.root_hash, f"{field}.root_hash"),
        salt=_hex(told.salt, f"{field}.salt"),
        hash_offset=told.hash_offset,
        hash_device_id=_device(told.hash_device_id) if told.hash_device_id else "",
        algorithm=_word(told.algorithm, f"{field}.algorithm"),
        data_block_size=told.data_block_size,
        hash_block_size=told.hash_block_size,
        data_blocks=told.data_blocks,
        superblock=not told.no_superblock,
    )


def _crypt(told: pb.Crypt, field: str) -> ours.CryptSetup:
    # Without a key it may be the same request again.
    if len(told.key) > 256:
        raise invalid(f"{field}.key: at most 256 bytes", field=f"{field}.key")
    size = told.sector_size or 512
    if size not in _SECTORS:
        raise invalid(
            f"{field}.sector_size: {size} is none of {', '.join(map(str, _SECTORS))}",
            field=f"{field}.sector_size",
        )
    if told.offset % 512:
        raise invalid(f"{field}.offset: {told.offset} is not whole sectors of 512", field=field)
    return ours.CryptSetup(
        key=told.key,
        cipher=_word(told.cipher, f"{field}.cipher") or _CIPHER,
        sector_size=size,
        offset=told.offset,
    )


def _pmem(told: pb.PmemSource, field: str) -> ours.PmemSource:
    return ours.PmemSource(
        device_id=_device(told.device_id), fs_type=_fs_type(told.fs_type, field), dax=told.dax
    )


def _virtiofs(told: pb.VirtiofsSource, field: str) -> ours.VirtiofsSource:
    # virtio-v1.2 5.11.4: the tag's field has 36 bytes.
    return ours.VirtiofsSource(tag=_needed(told.tag, f"{field}.tag", most=36))


def _nine_p(told: pb.NinePSource, field: str) -> ours.NinePSource:
    return ours.NinePSource(tag=_needed(told.tag, f"{field}.tag", most=255), msize=told.msize)


def _tmpfs(told: pb.TmpfsSource, field: str) -> ours.TmpfsSource:
    return ours.TmpfsSource(size=told.size, mode=_mode(told.mode, field))


def _hugetlb(told: pb.HugetlbSource, _field: str) -> ours.HugetlbSource:
    return ours.HugetlbSource(page_size=told.page_size, size=told.size)


def _bind(told: pb.BindSource, field: str) -> ours.BindSource:
    path, directory = _place(told.path, told, field)
    return ours.BindSource(path=path, directory=directory, recursive=told.recursive)


def _overlay(told: pb.OverlaySource, field: str) -> ours.OverlaySource:
    if not told.lower:
        raise invalid(f"{field}.lower: at least one layer is needed", field=f"{field}.lower")
    _few(told.lower, _LAYERS, f"{field}.lower")
    if told.HasField("work") and not told.HasField("upper"):
        raise invalid(f"{field}.work: only with upper", field=f"{field}.work")
    return ours.OverlaySource(
        lower=tuple(_directory(each, f"{field}.lower") for each in told.lower),
        upper=_directory(told.upper, f"{field}.upper") if told.HasField("upper") else None,
        work=_directory(told.work, f"{field}.work") if told.HasField("work") else None,
    )


def _nfs(told: pb.NfsSource, field: str) -> ours.NfsSource:
    return ours.NfsSource(
        server=_needed(told.server, f"{field}.server", most=253),
        path=fields.absolute_path(told.path, f"{field}.path"),
        version=_word(told.version, f"{field}.version"),
    )


def _cifs(told: pb.CifsSource, field: str) -> ours.CifsSource:
    return ours.CifsSource(
        server=_needed(told.server, f"{field}.server", most=253),
        share=_needed(told.share, f"{field}.share", most=255),
        user=_text(told.user, f"{field}.user"),
        password=_secret(told.password, f"{field}.password"),
        domain=_text(told.domain, f"{field}.domain"),
        version=_word(told.version, f"{field}.version"),
    )


def _ceph(told: pb.CephSource, field: str) -> ours.CephSource:
    if not told.monitors:
        raise invalid(f"{field}.monitors: at least one is needed", field=f"{field}.monitors")
    _few(told.monitors, _MONITORS, f"{field}.monitors")
    return ours.CephSource(
        monitors=tuple(_needed(each, f"{field}.monitors", most=253) for each in told.monitors),
        path=fields.absolute_path(told.path or "/", f"{field}.path"),
        user=_text(told.user, f"{field}.user"),
        password=_secret(told.secret, f"{field}.secret"),
        file_system=_text(told.file_system, f"{field}.file_system"),
    )


def _local(told: pb.LocalSource, field: str) -> ours.LocalSource:
    return ours.LocalSource(
        mode=_mode(told.mode, field) or 0o755,
        storage_id=check_id("storage", told.storage_id) if told.storage_id else "",
    )


def _watched(told: pb.WatchedSource, field: str) -> ours.WatchedSource:
    path, directory = _place(told.path, told, field)
    name = f"{field}.interval_seconds"
    interval = fields.seconds(told.interval_seconds, name) or _INTERVAL
    if interval < 0.1:
        raise invalid(f"{name}: {interval} is below a tenth of a second", field=name)
    return ours.WatchedSource(
        path=path, directory=directory, interval=0.0 if told.only_refresh else interval
    )


def _place(
    path: str, told: pb.BindSource | pb.WatchedSource, field: str
) -> tuple[str, ours.StorageDirectory | None]:
    _one_of(field, path=bool(path), directory=told.HasField("directory"))
    if path:
        return fields.absolute_path(path, f"{field}.path"), None
    return "", _directory(told.directory, f"{field}.directory")


def _directory(told: pb.StorageDirectory, field: str) -> ours.StorageDirectory:
    path = _text(told.path, f"{field}.path", most=fields.PATH_BYTES)
    return ours.StorageDirectory(storage_id=check_id("storage", told.storage_id), path=path)


def _device(device_id: str) -> str:
    return check_id("device", device_id)


def _fs_type(value: str, field: str) -> str:
    if not value:
        raise invalid(f"{field}.fs_type: a file system is needed", field="fs_type")
    return _text(value, f"{field}.fs_type")


def _mode(value: int, field: str) -> int:
    if value & ~_MODES:
        raise invalid(f"{field}.mode: {value:o} has more than permission bits", field="mode")
    return value


def _hex(value: str, field: str) -> str:
    if not _HEX.fullmatch(value) or len(value) > 512:
        raise invalid(f"{field}: {value[:80]!r} is not hexadecimal", field=field)
    return value.lower()


def _word(value: str, field: str) -> str:
    """A name that becomes one word of a kernel's table or option."""
    if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:()+-]{0,63}", value):
        raise invalid(f"{field}: {value[:80]!r} is not a name", field=field)
    return value


def _text(value: str, field: str, *, most: int = 255) -> str:
    if len(value.encode()) > most:
        raise invalid(f"{field}: longer than {most} bytes", field=field)
    return fields.plain_text(value, field)


def _few(values: Sized, most: int, field: str) -> None:
    if len(values) > most:
        raise invalid(f"{field}: {len(values)} are more than {most}", field=field, limit=most)


def _needed(value: str, field: str, *, most: int) -> str:
    if not value:
        raise invalid(f"{field}: it is needed", field=field)
    return _text(value, field, most=most)


def _secret(value: str, field: str) -> str:
    """Checked like any text, and never shown."""
    if "\0" in value or len(value.encode()) > 255:
        raise invalid(f"{field}: it has a NUL character or more than 255 bytes", field=field)
    return value


def _one_of(field: str, **given: bool) -> None:
    if sum(given.values()) != 1:
        names = " and ".join(given)
        raise invalid(f"{field}: exactly one of {names} must be set", field=field)


_PARSERS: Mapping[str, Callable[[Any, str], ours.Source]] = {
    "block": _block,
    "virtiofs": _virtiofs,
    "nine_p": _nine_p,
    "tmpfs": _tmpfs,
    "hugetlb": _hugetlb,
    "bind": _bind,
    "overlay": _overlay,
    "nfs": _nfs,
    "cifs": _cifs,
    "ceph": _ceph,
    "pmem": _pmem,
    "local": _local,
    "watched": _watched,
}


def _as_block(value: ours.BlockSource) -> pb.BlockSource:
    return pb.BlockSource(
        device_id=value.device_id,
        address=as_asked(value.address) if value.address else None,
        fs_type=value.fs_type,
        partition=value.partition,
        partition_label=value.partition_label,
        format_if_empty=value.format_if_empty,
        verity=_as_verity(value.verity) if value.verity else None,
        crypt=_as_crypt(value.crypt) if value.crypt else None,
    )


def _as_verity(value: ours.VeritySetup) -> pb.Verity:
    return pb.Verity(
        root_hash=value.root_hash,
        salt=value.salt,
        hash_offset=value.hash_offset,
        hash_device_id=value.hash_device_id,
        algorithm=value.algorithm,
        data_block_size=value.data_block_size,
        hash_block_size=value.hash_block_size,
        data_blocks=value.data_blocks,
        no_superblock=not value.superblock,
    )


def _as_crypt(value: ours.CryptSetup) -> pb.Crypt:
    return pb.Crypt(cipher=value.cipher, sector_size=value.sector_size, offset=value.offset)


def _as_directory(value: ours.StorageDirectory | None) -> pb.StorageDirectory | None:
    if value is None:
        return None
    return pb.StorageDirectory(storage_id=value.storage_id, path=value.path)


def _as_overlay(value: ours.OverlaySource) -> pb.OverlaySource:
    return pb.OverlaySource(
        lower=[
            pb.StorageDirectory(storage_id=each.storage_id, path=each.path) for each in value.lower
        ],
        upper=_as_directory(value.upper),
        work=_as_directory(value.work),
    )


def _as_watched(value: ours.WatchedSource) -> pb.WatchedSource:
    return pb.WatchedSource(
        path=value.path,
        directory=_as_directory(value.directory),
        interval_seconds=value.interval,
        only_refresh=not value.interval,
    )


def _as_ceph(value: ours.CephSource) -> pb.CephSource:
    return pb.CephSource(
        monitors=value.monitors,
        path=value.path,
        user=value.user,
        file_system=value.file_system,
    )


_WRITERS: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    ours.BlockSource: ("block", _as_block),
    ours.PmemSource: (
        "pmem",
        lambda v: pb.PmemSource(device_id=v.device_id, fs_type=v.fs_type, dax=v.dax),
    ),
    ours.VirtiofsSource: ("virtiofs", lambda v: pb.VirtiofsSource(tag=v.tag)),
    ours.NinePSource: ("nine_p", lambda v: pb.NinePSource(tag=v.tag, msize=v.msize)),
    ours.TmpfsSource: ("tmpfs", lambda v: pb.TmpfsSource(size=v.size, mode=v.mode)),
    ours.HugetlbSource: (
        "hugetlb",
        lambda v: pb.HugetlbSource(page_size=v.page_size, size=v.size),
    ),
    ours.BindSource: (
        "bind",
        lambda v: pb.BindSource(
            path=v.path, directory=_as_directory(v.directory), recursive=v.recursive
        ),
    ),
    ours.OverlaySource: ("overlay", _as_overlay),
    ours.NfsSource: (
        "nfs",
        lambda v: pb.NfsSource(server=v.server, path=v.path, version=v.version),
    ),
    ours.CifsSource: (
        "cifs",
        lambda v: pb.CifsSource(
            server=v.server, share=v.share, user=v.user, domain=v.domain, version=v.version
        ),
    ),
    ours.CephSource: ("ceph", _as_ceph),
    ours.LocalSource: (
        "local",
        lambda v: pb.LocalSource(mode=v.mode, storage_id=v.storage_id),
    ),
    ours.WatchedSource: ("watched", _as_watched),
}

"""Device-mapper: block devices that are made of others, by the ioctls of its control node.

Facts: <linux/dm-ioctl.h>, drivers/md/dm-ioctl.c. A device is made in three steps: create
(a name and a number, no disk), load (its table; the disk and its node appear), resume
(the table comes into force, the disk gets its size). Without udev nobody makes links
in /dev/mapper; the node is /dev/dm-N, made by devtmpfs.

`path` is the control node, /dev/mapper/control. Every call raises OSError with the name
of the ioctl and the name of the mapping: EBUSY for a name in use (create) or a device in
use (load, remove), ENXIO where there is no such mapping, EINVAL for a table that the
target refuses: why is in the kernel's log only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import NamedTuple

from agent.linux.libc import failure

SECTOR = 512

NAME_LIMIT = 127
"""DM_NAME_LEN without the NUL at its end."""


class Command(IntEnum):
    """The numbers of the ioctls, named as these but for their DM_."""

    LIST_DEVICES = 2
    DEV_CREATE = 3
    DEV_REMOVE = 4
    DEV_SUSPEND = 6
    DEV_STATUS = 7
    TABLE_LOAD = 9


class Flag(IntFlag):
    """DM_*_FLAG, and DM_DEFERRED_REMOVE."""

    READONLY = 1 << 0
    SUSPEND = 1 << 1
    ACTIVE_PRESENT = 1 << 5
    INACTIVE_PRESENT = 1 << 6
    BUFFER_FULL = 1 << 8
    SECURE_DATA = 1 << 15
    DEFERRED_REMOVE = 1 << 17


class MappingStatus(NamedTuple):
    """`open_count` counts opens, mounts and devices on top; `active`: it has a table in force."""

    major: int
    minor: int
    open_count: int
    active: bool
    read_only: bool
    leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingTable:
    """A table of one target: what it is, its size, and its own parameters as one line.

    With `secret` there is a key in the line, and the kernel is told so.
    """

    target: str
    sectors: int
    parameters: str = field(repr=False)
    read_only: bool = False
    secret: bool = False


# struct dm_ioctl: version[3], data_size, data_start, target_count, open_count, flags,
# event_nr, padding, dev, name, uuid, and 7 bytes that round it up.
_HEAD = struct.Struct("=3I2IIiIIIQ128s129s7x")
# struct dm_target_spec: sector_start, length, status, next, target_type.
_TARGET = struct.Struct("=QQiI16s")
# struct dm_name_list: dev, next; the name follows, with a NUL at its end.
_NAME = struct.Struct("=QI")
_LIST_BYTES = 16 * 1024
# fcntl.ioctl passes a buffer of more than 1024 bytes as it is, and a copy of a smaller one.
_IN_PLACE = 1024

# The oldest interface that has it all: the kernel refuses a minor number above its own.
_VERSION = (4, 0, 0)
_IOWR, _DM = 3, 0xFD


class _Answer(NamedTuple):
    """What the kernel has put into struct dm_ioctl."""

    data_start: int
    open_count: int
    flags: Flag
    device: int


def create_mapping(*, path: str, name: str, uuid: str) -> list[int]:
    """A new device without a table; its major and minor number."""
    answer = _ask(path, Command.DEV_CREATE, _request(name, uuid=uuid), name)
    return [os.major(answer.device), os.minor(answer.device)]


def load_mapping(
    *,
    path: str,
    name: str,
    sectors: int,
    target: str,
    parameters: str,
    read_only: bool,
    secret: bool,
) -> None:
    """Give a device its table: one target from its first to its last sector.

    With `secret` nobody's copy of the parameters outlives the call: the kernel wipes its
    own, we wipe ours. (What Python made of the text before is not ours to wipe.)
    """
    text = parameters.encode()
    room = -(-(_TARGET.size + len(text) + 1) // 8) * 8
    flags = (Flag.READONLY if read_only else Flag(0)) | (Flag.SECURE_DATA if secret else Flag(0))
    request = _request(name, flags=flags, targets=1, room=max(room, _IN_PLACE) if secret else room)
    _TARGET.pack_into(request, _HEAD.size, 0, sectors, 0, room, target.encode())
    start = _HEAD.size + _TARGET.size
    request[start : start + len(text)] = text
    try:
        _ask(path, Command.TABLE_LOAD, request, name)
    finally:
        request[:] = bytes(len(request))


def resume_mapping(*, path: str, name: str) -> None:
    """Put the table that was loaded into force (the command is the one that suspends)."""
    _ask(path, Command.DEV_SUSPEND, _request(name), name)


def mapping_status(*, path: str, name: str) -> MappingStatus:
    answer = _ask(path, Command.DEV_STATUS, _request(name), name)
    return MappingStatus(
        major=os.major(answer.device),
        minor=os.minor(answer.device),
        open_count=answer.open_count,
        active=Flag.ACTIVE_PRESENT in answer.flags,
        read_only=Flag.READONLY in answer.flags,
        leaving=Flag.DEFERRED_REMOVE in answer.flags,
    )


def remove_mapping(*, path: str, name: str, deferred: bool) -> None:
    """Take a device away. `deferred`: one that is in use goes when its last user does."""
    flags = Flag.DEFERRED_REMOVE if deferred else Flag(0)
    _ask(path, Command.DEV_REMOVE, _request(name, flags=flags), name)


def mappings(path: str) -> dict[str, tuple[int, int]]:
    """All devices by name, with their numbers."""
    size = _LIST_BYTES
    while True:
        request = _request("", room=size)
        answer = _ask(path, Command.LIST_DEVICES, request, path)
        if Flag.BUFFER_FULL not in answer.flags:
            return _names(request, answer.data_start)
        size *= 2


def _names(data: bytearray, start: int) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    step = 0
    while True:
        start += step
        device, step = _NAME.unpack_from(data, start)
        first = start + _NAME.size
        name = data[first : data.index(0, first)].decode(errors="replace")
        if device:  # without any device there is one entry of zeros
            found[name] = (os.major(device), os.minor(device))
        if not step:
            return found


def _request(
    name: str,
    *,
    uuid: str = "",
    flags: Flag = Flag(0),  # noqa: B008 - an enum member is a constant
    targets: int = 0,
    room: int = 0,
) -> bytearray:
    for text in (name, uuid):
        if len(text.encode()) > NAME_LIMIT or "\0" in text:
            raise failure(errno.ENAMETOOLONG, "device-mapper", text)
    size = _HEAD.size + room
    sizes = (size, _HEAD.size, targets)
    request = bytearray(size)
    _HEAD.pack_into(request, 0, *_VERSION, *sizes, 0, flags, 0, 0, 0, name.encode(), uuid.encode())
    return request


def _ask(path: str, command: Command, request: bytearray, obj: str) -> _Answer:
    number = _IOWR << 30 | _HEAD.size << 16 | _DM << 8 | command
    call = "open"
    try:
        control = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        call = f"DM_{command.name}"
        try:
            fcntl.ioctl(control, number, request)
        finally:
            os.close(control)
    except OSError as error:
        named = path if call == "open" else obj
        raise failure(error.errno or errno.EIO, call, named) from error
    fields = _HEAD.unpack_from(request)
    return _Answer(fields[4], fields[6], Flag(fields[7]), fields[10])

"""The kernel's side of /dev/mapper/control: reads the bytes of each ioctl, and answers.

The structures are those of <linux/dm-ioctl.h>, written down a second time with ctypes.
A device shows in the fake sysfs when its table is loaded, and gets its size when it
is resumed, as with Linux since 5.15.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass, field

from tests.fakes.sysfs import FakeSysfs

MAJOR = 253
IOCTL_SIZE = 312
_IOWR = 0xC0000000 | IOCTL_SIZE << 16 | 0xFD << 8


class DmIoctl(ctypes.Structure):
    """struct dm_ioctl."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 3),
        ("data_size", ctypes.c_uint32),
        ("data_start", ctypes.c_uint32),
        ("target_count", ctypes.c_uint32),
        ("open_count", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("event_nr", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("dev", ctypes.c_uint64),
        ("name", ctypes.c_char * 128),
        ("uuid", ctypes.c_char * 129),
        ("data", ctypes.c_char * 7),
    )


class DmTargetSpec(ctypes.Structure):
    """struct dm_target_spec."""

    _fields_ = (
        ("sector_start", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("status", ctypes.c_int32),
        ("next", ctypes.c_uint32),
        ("target_type", ctypes.c_char * 16),
    )


def huge_encode_dev(minor: int) -> int:
    """As the kernel writes a device number (new_encode_dev of <linux/kdev_t.h>)."""
    return MAJOR << 8 | minor & 0xFF | (minor & ~0xFF) << 12


READONLY, ACTIVE, BUFFER_FULL, SECURE, DEFERRED = 1, 1 << 5, 1 << 8, 1 << 15, 1 << 17


@dataclass
class FakeMapping:
    """One device; `opened` is how often it is in use."""

    uuid: str
    minor: int
    target: str = ""
    sectors: int = 0
    parameters: str = ""
    flags: int = 0
    opened: int = 0
    active: bool = False
    leaving: bool = False


@dataclass
class FakeDeviceMapper:
    """`ioctl` stands for fcntl's. `refuse` maps the numbers of commands to errnos."""

    sysfs: FakeSysfs
    mappings: dict[str, FakeMapping] = field(default_factory=dict)
    refuse: dict[int, int] = field(default_factory=dict)
    commands: list[int] = field(default_factory=list)
    buffers: list[bytearray] = field(default_factory=list)
    makes_nodes: bool = True

    def __post_init__(self) -> None:
        assert ctypes.sizeof(DmIoctl) == IOCTL_SIZE
        self.sysfs.write(self.sysfs.roots.dev / "mapper/control", "")

    def ioctl(self, fd: int, request: int, buffer: bytearray) -> int:
        command = request & 0xFF
        assert request == _IOWR | command
        assert os.readlink(f"/proc/self/fd/{fd}").endswith("/dev/mapper/control")
        self.commands.append(command)
        self.buffers.append(buffer)
        if command in self.refuse:
            raise OSError(self.refuse[command], os.strerror(self.refuse[command]))
        head = DmIoctl.from_buffer(buffer)
        try:
            assert list(head.version) <= [4, 48, 0]
            assert head.version[0] == 4
            assert head.data_size == len(buffer)
            self._do(command, head, buffer)
        finally:
            del head
        return 0

    def _do(self, command: int, head: DmIoctl, buffer: bytearray) -> None:
        match command:
            case 2:
                self._list(head, buffer)
            case 3:
                self._create(head)
            case 4:
                self._remove(head)
            case 6:
                self._resume(head)
            case 7:
                self._tell(head)
            case 9:
                self._load(head, buffer)
            case other:
                raise OSError(errno.ENOTTY, f"command {other}")

    def _named(self, head: DmIoctl) -> FakeMapping:
        assert not head.uuid, "a name and a uuid are EINVAL"
        found = self.mappings.get(head.name.decode())
        if found is None:
            raise OSError(errno.ENXIO, "No such device or address")
        return found

    def _create(self, head: DmIoctl) -> None:
        name, uuid = head.name.decode(), head.uuid.decode()
        if name in self.mappings or any(uuid == each.uuid for each in self.mappings.values()):
            raise OSError(errno.EBUSY, "Device or resource busy")
        used = {each.minor for each in self.mappings.values()}
        made = FakeMapping(uuid=uuid, minor=next(i for i in range(999) if i not in used))
        self.mappings[name] = made
        head.dev = huge_encode_dev(made.minor)

    def _load(self, head: DmIoctl, buffer: bytearray) -> None:
        found = self._named(head)
        assert head.target_count == 1
        assert head.data_start % 8 == 0
        spec = DmTargetSpec.from_buffer_copy(buffer, head.data_start)
        assert spec.sector_start == 0
        text = bytes(buffer[head.data_start + ctypes.sizeof(spec) :])
        assert b"\0" in text
        found.target, found.sectors = spec.target_type.decode(), spec.length
        found.parameters, found.flags = text[: text.index(0)].decode(), head.flags
        self._appear(found)

    def _appear(self, found: FakeMapping) -> None:
        name, dev = f"dm-{found.minor}", f"{MAJOR}:{found.minor}"
        node = self.makes_nodes
        parent = self.sysfs.sys / "devices/virtual/block"
        disk = self.sysfs.disk(parent, name, dev=dev, size=0, node=node)
        self.sysfs.write(disk / "ro", str(found.flags & READONLY))
        self.sysfs.link(self.sysfs.sys / "dev/block" / dev, str(disk))

    def _resume(self, head: DmIoctl) -> None:
        found = self._named(head)
        assert not head.flags & 2, "the flag suspends"
        found.active = True
        size = self.sysfs.sys / f"devices/virtual/block/dm-{found.minor}/size"
        self.sysfs.write(size, str(found.sectors))

    def _tell(self, head: DmIoctl) -> None:
        found = self._named(head)
        head.dev, head.open_count = huge_encode_dev(found.minor), found.opened
        head.flags = ACTIVE * found.active | found.flags & READONLY | DEFERRED * found.leaving

    def _remove(self, head: DmIoctl) -> None:
        found = self._named(head)
        if found.opened:
            if not head.flags & DEFERRED:
                raise OSError(errno.EBUSY, "Device or resource busy")
            found.leaving = True
            return
        del self.mappings[head.name.decode()]
        disk = self.sysfs.sys / f"devices/virtual/block/dm-{found.minor}"
        if disk.exists():
            self.sysfs.remove(disk)
            (self.sysfs.sys / f"dev/block/{MAJOR}:{found.minor}").unlink()

    def _list(self, head: DmIoctl, buffer: bytearray) -> None:
        entries = []
        for name, each in self.mappings.items():
            text = name.encode() + b"\0"
            entries.append((huge_encode_dev(each.minor), text + b"\0" * (-(12 + len(text)) % 8)))
        needed = sum(12 + len(text) for _, text in entries)
        if head.data_start + max(needed, 16) > len(buffer):
            head.flags |= BUFFER_FULL
            return
        at = head.data_start
        for number, (device, text) in enumerate(entries, start=1):
            step = 0 if number == len(entries) else 12 + len(text)
            entry = device.to_bytes(8, "little") + step.to_bytes(4, "little") + text
            buffer[at : at + len(entry)] = entry
            at += len(entry)

"""A VM as asked for: what the starter writes down and the daemon reads."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.forwarding.words import Forward
from innkeeper.shim.sizes import in_words
from innkeeper.shim.statedir import check_name

MIB = 1 << 20
MOST_PORTS = 64
# With less, kernel and agent have too little beside a small container: the agent
# is killed for memory, again and again.
LEAST_MEMORY = 192 * MIB
MOST_CPUS = 64
# MAX_TAG_LEN of QEMU's hw/9pfs/virtio-9p.h is 32 with its end.
_LONGEST_TAG = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdDisk:
    """A disk that is there from the start, on the root bus (a path of one level)."""

    file: Path
    serial: str
    format: str = "raw"
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdDevice:
    """Hardware that is in a port from the start, as if it had been plugged."""

    id: str
    hardware: str
    """`Hardware` of host.proto as JSON: `{"gpu": {"model": "GPU_MODEL_VIRTIO"}}`."""
    port: str = ""
    """Name of its port; empty: the first free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NinePShare:
    """A directory of the host that QEMU itself serves by 9p, from the start: it has no
    hot-plug for it. The guest's kernel needs 9p, which the image `generic` has."""

    tag: str
    directory: Path
    read_only: bool = False

    def check(self) -> None:
        """Raises BAD_FIELD."""
        good = 1 <= len(self.tag.encode()) <= _LONGEST_TAG and self.tag.isprintable()
        _require(good, "shares_9p", self.tag)
        _require(self.directory.is_absolute() and self.directory.is_dir(), "shares_9p", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class VmSpec:
    """One VM; the defaults are those of `innkeeper vm start`."""

    name: str
    image: str = "cloud"
    """A flavour below the image directory, or an image's own directory (with a slash)."""
    memory: int = 512 * MIB
    """Bytes, whole MiB."""
    cpus: int = 1
    accel: str = "auto"
    """auto, kvm or tcg; see accel.py."""
    transport: str = "auto"
    """auto, vsock, vhost-user-vsock or serial; auto takes the best that the host has."""
    ports: int = 16
    """Root ports for hot-plug; each takes one device."""
    bridge: bool = False
    """Adds a conventional PCI bridge behind a root port: ports of three levels."""
    switch: bool = False
    """Adds a PCI Express switch behind a root port: ports of four levels."""
    second_root: bool = False
    """Adds a second root complex, bus 80, with ports of its own."""
    iommu: bool = False
    """Adds an IOMMU with interrupt remapping, for VFIO in the guest."""
    max_memory: int = 0
    """Bytes to which the memory can grow by hot-plug, whole MiB; 0: it can't."""
    max_cpus: int = 0
    """CPUs to which the VM can grow; 0: as many as `cpus`."""
    nvdimm: bool = False
    """NVDIMMs can be plugged; needs `max_memory`."""
    private_memory: bool = False
    """No other process can have its memory: no directory can be shared with it."""
    shares_9p: tuple[NinePShare, ...] = ()
    boot_timeout: float = 0
    """Seconds to the agent's first answer; 0: 30 with KVM, 120 without."""
    cmdline: tuple[str, ...] = ()
    """Further words of the kernel's command line, quoted as the kernel wants them."""
    tied: bool = False
    """The VM stops when the process that started it ends."""
    cold_disks: tuple[ColdDisk, ...] = ()
    forwards: tuple[Forward, ...] = ()
    """Ports and sockets; this host's are listened on from before the boot."""
    cold: tuple[ColdDevice, ...] = ()
    """Further hardware that is there from the start, each in a port for hot-plug."""

    def check(self) -> None:
        """Raises BAD_FIELD, naming the field."""
        check_name(self.name)
        _require(self.memory >= LEAST_MEMORY and self.memory % MIB == 0, "memory", self.memory)
        _require(1 <= self.cpus <= MOST_CPUS, "cpus", self.cpus)
        _require(0 <= self.ports <= MOST_PORTS, "ports", self.ports)
        room = not self.max_memory or (self.max_memory > self.memory and self.max_memory % MIB == 0)
        _require(room, "max_memory", self.max_memory)
        _require(self.max_memory or not self.nvdimm, "nvdimm", self.nvdimm)
        many = not self.max_cpus or self.cpus <= self.max_cpus <= MOST_CPUS
        _require(many, "max_cpus", self.max_cpus)
        finite = math.isfinite(self.boot_timeout) and self.boot_timeout >= 0
        _require(finite, "boot_timeout", self.boot_timeout)
        tags = [share.tag for share in self.shares_9p]
        _require(len(set(tags)) == len(tags), "shares_9p", " ".join(tags))
        for share in self.shares_9p:
            share.check()
        for word in self.cmdline:
            _require(word.isprintable() and word.isascii(), "cmdline", word)

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> VmSpec:
        record: dict[str, Any] = json.loads(text)
        record["cmdline"] = tuple(record["cmdline"])
        record["cold_disks"] = tuple(
            ColdDisk(**disk | {"file": Path(disk["file"])}) for disk in record["cold_disks"]
        )
        record["shares_9p"] = tuple(
            NinePShare(**share | {"directory": Path(share["directory"])})
            for share in record["shares_9p"]
        )
        record["forwards"] = tuple(Forward.from_record(each) for each in record["forwards"])
        record["cold"] = tuple(ColdDevice(**device) for device in record["cold"])
        return cls(**record)


_RULES = {
    "memory": f"whole MiB, at least {LEAST_MEMORY // MIB} MiB",
    "cpus": f"1 to {MOST_CPUS}",
    "ports": f"0 to {MOST_PORTS}",
    "max_memory": "whole MiB, more than the memory",
    "max_cpus": f"as many as the CPUs or more, up to {MOST_CPUS}",
    "nvdimm": "only together with max_memory, as in: --nvdimm --max-memory 4G",
    "shares_9p": "a tag of 1 to 31 bytes, each once, and an absolute path of a directory",
    "boot_timeout": "seconds, 0 for the default",
    "cmdline": "printable ASCII",
}


def _shown(field: str, value: object) -> str:
    is_size = field.endswith("memory") and isinstance(value, int)
    return in_words(value) if is_size else repr(value)  # type: ignore[arg-type]


def _require(good: object, field: str, value: object) -> None:
    if not good:
        raise ShimError(
            Reason.BAD_FIELD,
            f"{field} {_shown(field, value)}: not possible",
            hint=_RULES[field],
            fields={"field": field},
        )

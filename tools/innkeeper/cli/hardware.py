"""Hardware in the words of the command line: `nic`, `nvme FILE`, `memory 256M`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from google.protobuf import json_format

from innkeeper.cli.options import check_number, existing_file, parse_number, parse_size
from innkeeper.shim.spec import MOST_CPUS, ColdDevice
from innkeeper.v1 import host_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_COLD = re.compile(r"(?:(?P<id>[^=:]+)=)?(?P<kind>[^=:]+)(?::(?P<source>.+))?")
_VIRTUAL = re.compile(r"(?P<source>.*?):vfs=(?P<count>[^:]*)")

# As host.proto has them; the daemon refuses what is not in them.
TARGETS = range(256)
LUNS = range(16384)
COUNTS = range(1, MOST_CPUS + 1)
VIRTUAL_FUNCTIONS = range(128)
BYTES_A_SECOND = range(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a kind can be told besides its name."""

    source: str = ""
    format: str = "raw"
    read_only: bool = False
    controller: str = ""
    target: int = 0
    lun: int = 0
    mac: str = ""
    user_network: bool = False
    rate: int = 0
    virtual_functions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One word for `device attach`."""

    help: str
    options: frozenset[str] = frozenset()
    """Names of the options that are of its own, beside those that all kinds have."""
    make: Callable[[Words], host_pb2.Hardware]
    source: str = ""
    """What has to follow it; empty: nothing does."""


def _file(words: Words) -> host_pb2.DiskFile:
    return host_pb2.DiskFile(
        file=str(existing_file(words.source)), format=words.format, read_only=words.read_only
    )


def _disk(words: Words) -> host_pb2.Hardware:
    return host_pb2.Hardware(disk=host_pb2.Disk(content=_file(words)))


def _nvme(words: Words) -> host_pb2.Hardware:
    disk = host_pb2.Disk(
        content=_file(words),
        model=host_pb2.DISK_MODEL_NVME,
        virtual_functions=words.virtual_functions,
    )
    return host_pb2.Hardware(disk=disk)


def _scsi_disk(words: Words) -> host_pb2.Hardware:
    if not words.controller:
        raise typer.BadParameter(
            "scsi-disk: --controller ID is missing; `scsi-controller` makes one"
        )
    disk = host_pb2.ScsiDisk(
        content=_file(words),
        controller=words.controller,
        target=check_number("--target", words.target, TARGETS),
        lun=check_number("--lun", words.lun, LUNS),
    )
    return host_pb2.Hardware(scsi_disk=disk)


def _scsi_controller(_words: Words) -> host_pb2.Hardware:
    return host_pb2.Hardware(scsi_controller=host_pb2.ScsiController())


def _nic(model: host_pb2.NicModel.ValueType) -> Callable[[Words], host_pb2.Hardware]:
    def make(words: Words) -> host_pb2.Hardware:
        user, isolated = host_pb2.NIC_BACKEND_USER, host_pb2.NIC_BACKEND_ISOLATED
        backend = user if words.user_network else isolated
        nic = host_pb2.Nic(model=model, mac=words.mac, backend=backend)
        return host_pb2.Hardware(nic=nic)

    return make


def _gpu(model: host_pb2.GpuModel.ValueType) -> Callable[[Words], host_pb2.Hardware]:
    return lambda _words: host_pb2.Hardware(gpu=host_pb2.Gpu(model=model))


def _rng(words: Words) -> host_pb2.Hardware:
    rate = check_number("--rate", words.rate, BYTES_A_SECOND)
    return host_pb2.Hardware(rng=host_pb2.Rng(bytes_per_second=rate))


def _pmem(model: host_pb2.PmemModel.ValueType) -> Callable[[Words], host_pb2.Hardware]:
    def make(words: Words) -> host_pb2.Hardware:
        file = str(existing_file(words.source))
        pmem = host_pb2.Pmem(file=file, model=model, read_only=words.read_only)
        return host_pb2.Hardware(pmem=pmem)

    return make


def _memory(model: host_pb2.MemoryModel.ValueType) -> Callable[[Words], host_pb2.Hardware]:
    def make(words: Words) -> host_pb2.Hardware:
        memory = host_pb2.Memory(size=parse_size(words.source), model=model)
        return host_pb2.Hardware(memory=memory)

    return make


def _cpus(words: Words) -> host_pb2.Hardware:
    count = parse_number("cpus", words.source, COUNTS)
    return host_pb2.Hardware(cpus=host_pb2.Cpus(count=count))


def _host_function(words: Words) -> host_pb2.Hardware:
    return host_pb2.Hardware(host_function=host_pb2.HostFunction(bdf=words.source))


def _share(words: Words) -> host_pb2.Hardware:
    path = existing_file(words.source)
    if not path.is_dir():
        raise typer.BadParameter(f"share {words.source}: is no directory")
    share = host_pb2.Share(directory=str(path.resolve()), read_only=words.read_only)
    return host_pb2.Hardware(share=share)


_FILE_OPTIONS = frozenset({"format", "read_only"})
_NIC_OPTIONS = frozenset({"mac", "user_network"})
_OF_ALL_KINDS = frozenset({"id", "port", "guest", "timeout", "json"})
# What is there already has an id and a place.
_OF_COLD = frozenset({"guest", "timeout", "json"})

_GENERIC = "needs vm start --image generic"

KINDS: Mapping[str, Kind] = {
    "disk": Kind(help="a virtio-blk disk", make=_disk, source="FILE", options=_FILE_OPTIONS),
    "nvme": Kind(help="an NVMe disk", make=_nvme, source="FILE", options=_FILE_OPTIONS),
    "scsi-controller": Kind(help="a virtio-scsi adapter for disks", make=_scsi_controller),
    "scsi-disk": Kind(
        help="a disk on one: --controller, --lun",
        make=_scsi_disk,
        source="FILE",
        options=_FILE_OPTIONS | {"controller", "target", "lun"},
    ),
    "nic": Kind(
        help="a virtio network interface",
        make=_nic(host_pb2.NIC_MODEL_VIRTIO),
        options=_NIC_OPTIONS,
    ),
    "e1000e": Kind(
        help=f"an Intel network interface; {_GENERIC}",
        make=_nic(host_pb2.NIC_MODEL_E1000E),
        options=_NIC_OPTIONS,
    ),
    "igb": Kind(
        help=f"the same with SR-IOV; QEMU 8.0; {_GENERIC}",
        make=_nic(host_pb2.NIC_MODEL_IGB),
        options=_NIC_OPTIONS,
    ),
    "gpu": Kind(
        help=f"a display with a card node; {_GENERIC}", make=_gpu(host_pb2.GPU_MODEL_BOCHS)
    ),
    "virtio-gpu": Kind(
        help=f"with a render node; --cold only; {_GENERIC}",
        make=_gpu(host_pb2.GPU_MODEL_VIRTIO),
    ),
    "rng": Kind(help="a random number generator", make=_rng, options=frozenset({"rate"})),
    "pmem": Kind(
        help="persistent memory, for good",
        make=_pmem(host_pb2.PMEM_MODEL_VIRTIO),
        source="FILE",
        options=frozenset({"read_only"}),
    ),
    "nvdimm": Kind(
        help="the same as an NVDIMM",
        make=_pmem(host_pb2.PMEM_MODEL_NVDIMM),
        source="FILE",
        options=frozenset({"read_only"}),
    ),
    "memory": Kind(
        help="more memory, as a DIMM", make=_memory(host_pb2.MEMORY_MODEL_DIMM), source="SIZE"
    ),
    "virtio-mem": Kind(
        help="more memory, for good", make=_memory(host_pb2.MEMORY_MODEL_VIRTIO), source="SIZE"
    ),
    "cpus": Kind(help="more CPUs", make=_cpus, source="N"),
    "vfio": Kind(help="a PCI function of the host", make=_host_function, source="BDF"),
    "share": Kind(
        help="a directory; mount it with storage attach --virtiofs ID",
        make=_share,
        source="DIR",
        options=frozenset({"read_only"}),
    ),
}

COLD = "cold"
"""The word for what is in the VM from the start."""


def require_fitting(what: str, options: Iterable[str]) -> None:
    """Raises typer.BadParameter for an option that means nothing to a kind."""
    own = KINDS[what].options if what in KINDS else _FILE_OPTIONS
    known = _OF_COLD if what == COLD else _OF_ALL_KINDS | own
    strange = sorted(set(options) - known)
    if not strange:
        return
    words = ", ".join(_as_option(name) for name in strange)
    kind = what if what == COLD or what in KINDS else "disk"
    rest = ", ".join(_as_option(name) for name in sorted(known))
    raise typer.BadParameter(f"{words}: not for {kind}, which has {rest}")


def _as_option(name: str) -> str:
    return "--" + name.replace("_", "-")


def parse(what: str, words: Words) -> host_pb2.Hardware:
    """`what` is a kind, or, as it is no kind, the file of a disk. Raises typer.BadParameter."""
    kind = KINDS.get(what)
    if kind is None:
        if words.source:
            raise typer.BadParameter(f"{what!r}: no kind of device; one of {', '.join(KINDS)}")
        if not Path(what).exists():
            raise typer.BadParameter(f"{what}: no kind and no file; kinds: {', '.join(KINDS)}")
        return _disk(Words(source=what, format=words.format, read_only=words.read_only))
    if bool(kind.source) != bool(words.source):
        wanted = f"{what} {kind.source}" if kind.source else f"{what} alone"
        raise typer.BadParameter(f"{what} {words.source}".strip() + f": write {wanted}")
    return kind.make(words)


def default_id(what: str, suffix: str) -> str:
    return f"{what if what in KINDS else 'disk'}-{suffix}"


def parse_cold(texts: list[str]) -> tuple[ColdDevice, ...]:
    """`[ID=]KIND[:SOURCE][:vfs=N]`, each. Raises typer.BadParameter."""
    return tuple(_cold(text, number) for number, text in enumerate(texts))


def _cold(text: str, number: int) -> ColdDevice:
    virtual = _VIRTUAL.fullmatch(text)
    match = _COLD.fullmatch(virtual["source"] if virtual else text)
    if match is None or match["kind"] not in KINDS:
        raise typer.BadParameter(
            f"--cold {text!r}: write [ID=]KIND[:FILE][:vfs=N], as in virtio-gpu or"
            f" data=nvme:data.img:vfs=2; kinds: {', '.join(KINDS)}"
        )
    count = parse_number("vfs", virtual["count"], VIRTUAL_FUNCTIONS) if virtual else 0
    hardware = parse(match["kind"], Words(source=match["source"] or "", virtual_functions=count))
    return ColdDevice(
        id=match["id"] or f"cold{number}",
        hardware=json_format.MessageToJson(hardware, indent=None),
    )


def table() -> str:
    """The kinds for a help text, one a line."""
    rows = [(f"{name} {kind.source}".strip(), kind.help) for name, kind in KINDS.items()]
    rows.append((f"{COLD} ID", "what is there from the start (vm start --cold)"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)

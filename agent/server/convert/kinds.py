"""What a device must be and what it became: the protocol's words and ours, each way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agent.core import kinds
from agent.core.addresses import MacAddress
from agent.core.errors import invalid
from agent.core.names import check_id
from agent.server.convert import fields
from innkeeper.v1 import devices_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

_PCI_ID = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}")
_AFU_ID = re.compile(r"[0-9a-fA-F]{32}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# "1g.10gb", "1g.5gb+me", or the profile's number; several with commas.
_MIG_PROFILE = re.compile(r"[0-9a-z][0-9a-z.+,]{0,99}")
_LISTED = 64

_MODES = {
    pb.VFIO_MODE_UNSPECIFIED: kinds.VfioMode.VFIO,
    pb.VFIO_MODE_VFIO: kinds.VfioMode.VFIO,
    pb.VFIO_MODE_GUEST_KERNEL: kinds.VfioMode.GUEST_KERNEL,
}
_MODES_BACK: dict[object, int] = {
    kinds.VfioMode.VFIO: pb.VFIO_MODE_VFIO,
    kinds.VfioMode.GUEST_KERNEL: pb.VFIO_MODE_GUEST_KERNEL,
}


def expectation(device: pb.Device, field: str) -> kinds.Expectation:
    """The kind of a device; raises BAD_FIELD when none is set or a member is malformed."""
    kind = fields.choice(device, "kind", field)
    return _EXPECTATIONS[kind](getattr(device, kind), f"{field}.{kind}")


def vfio_mode(mode: int, field: str) -> kinds.VfioMode:
    """Raises BAD_FIELD for a number that is no mode."""
    if mode not in _MODES:
        raise invalid(f"{field}: {mode} is no mode", field=field)
    return _MODES[pb.VfioMode.ValueType(mode)]


def mode(request: pb.ReconfigureDeviceRequest, field: str) -> kinds.Mode:
    """Raises BAD_FIELD when none is set, or for a malformed name."""
    match fields.choice(request, "mode", field):
        case "vfio":
            return vfio_mode(request.vfio, "vfio")
        case "driver":
            return kinds.DriverName(name(request.driver, "driver"))
        case _:
            if _MIG_PROFILE.fullmatch(request.mig_profile) is None:
                problem = f"mig_profile: {request.mig_profile[:80]!r} is not a profile's name"
                raise invalid(problem, field="mig_profile")
            return kinds.MigProfile(request.mig_profile)


def name(text: str, field: str) -> str:
    """A name of a driver or module, of letters, digits, `_` and `-`; raises BAD_FIELD."""
    if _NAME.fullmatch(text) is None or text.startswith("-"):
        raise invalid(f"{field}: {text[:80]!r} is not a name of a driver or module", field=field)
    return text


def names(texts: Iterable[str], field: str, most: int) -> tuple[str, ...]:
    """A list of such names; raises BAD_FIELD, also for more than `most`."""
    found = tuple(name(text, field) for text in texts)
    if len(found) > most:
        raise invalid(f"{field}: at most {most} are possible, not {len(found)}", field=field)
    return found


def kind_message(kind: kinds.Expectation) -> dict[str, Message]:
    """The member of Device's oneof that says what was asked for."""
    member, message = _KINDS[type(kind)]
    given = {
        _FIELDS.get(name, name): _MODES_BACK.get(value, value)
        for name, value in _members(kind).items()
        if value is not None
    }
    return {member: message(**given)}


def info_message(info: kinds.Info) -> dict[str, Message]:
    """The member of AttachedDevice's oneof that says what it became; none for Common."""
    if type(info) not in _INFOS:
        return {}
    member, message = _INFOS[type(info)]
    given = {name: _MODES_BACK.get(value, value) for name, value in _members(info).items()}
    if isinstance(info, kinds.VfioInfo):
        given["group"] = max(info.group, 0)
    return {member: message(**given)}


_KINDS: dict[type[kinds.Expectation], tuple[str, Callable[..., Message]]] = {
    kinds.BlockExpectation: ("block", pb.BlockDevice),
    kinds.VfioExpectation: ("vfio", pb.VfioDevice),
    kinds.NicExpectation: ("nic", pb.NicDevice),
    kinds.GpuExpectation: ("gpu", pb.GpuDevice),
    kinds.FpgaExpectation: ("fpga", pb.FpgaDevice),
    kinds.RngExpectation: ("rng", pb.RngDevice),
    kinds.PmemExpectation: ("pmem", pb.PmemDevice),
    kinds.CommonExpectation: ("common", pb.CommonDevice),
}

# Where the protocol says that a member is only checked.
_FIELDS = {
    "serial": "expect_serial",
    "size": "expect_size",
    "mac": "expect_mac",
    "pci_id": "expect_pci_id",
    "driver": "expect_driver",
    "render_node": "expect_render_node",
    "afu_ids": "expect_afu_ids",
    "nodes": "expect_nodes",
}

_INFOS: dict[type[kinds.Info], tuple[str, Callable[..., Message]]] = {
    kinds.BlockInfo: ("block", pb.BlockInfo),
    kinds.VfioInfo: ("vfio", pb.VfioInfo),
    kinds.NicInfo: ("nic", pb.NicInfo),
    kinds.GpuInfo: ("gpu", pb.GpuInfo),
    kinds.FpgaInfo: ("fpga", pb.FpgaInfo),
    kinds.RngInfo: ("rng", pb.RngInfo),
    kinds.PmemInfo: ("pmem", pb.PmemInfo),
}


def _members(value: kinds.Expectation | kinds.Info) -> dict[str, Any]:
    return {member: getattr(value, member) for member in type(value).__dataclass_fields__}


def _block(block: pb.BlockDevice, field: str) -> kinds.BlockExpectation:
    serial = fields.plain_text(block.expect_serial, f"{field}.expect_serial")
    return kinds.BlockExpectation(serial=serial or None, size=block.expect_size or None)


def _vfio(vfio: pb.VfioDevice, field: str) -> kinds.VfioExpectation:
    if len(vfio.same_group_as) > _LISTED:
        raise invalid(f"{field}.same_group_as: at most {_LISTED} are possible", field=field)
    return kinds.VfioExpectation(
        mode=vfio_mode(vfio.mode, f"{field}.mode"),
        same_group_as=tuple(check_id("device", each) for each in vfio.same_group_as),
        take_group=vfio.take_group,
    )


def _gpu(gpu: pb.GpuDevice, field: str) -> kinds.GpuExpectation:
    return kinds.GpuExpectation(
        pci_id=_pci_id(gpu.expect_pci_id, f"{field}.expect_pci_id"),
        driver=_driver(gpu.expect_driver, f"{field}.expect_driver"),
        render_node=gpu.expect_render_node,
    )


def _fpga(fpga: pb.FpgaDevice, field: str) -> kinds.FpgaExpectation:
    for text in fpga.expect_afu_ids:
        if _AFU_ID.fullmatch(text) is None:
            raise invalid(
                f"{field}.expect_afu_ids: {text[:80]!r} is not 32 hex digits", field=field
            )
    if len(fpga.expect_afu_ids) > _LISTED:
        raise invalid(f"{field}.expect_afu_ids: at most {_LISTED} are possible", field=field)
    return kinds.FpgaExpectation(
        pci_id=_pci_id(fpga.expect_pci_id, f"{field}.expect_pci_id"),
        afu_ids=tuple(text.lower() for text in fpga.expect_afu_ids),
    )


def _common(common: pb.CommonDevice, field: str) -> kinds.CommonExpectation:
    return kinds.CommonExpectation(
        pci_id=_pci_id(common.expect_pci_id, f"{field}.expect_pci_id"),
        driver=_driver(common.expect_driver, f"{field}.expect_driver"),
        nodes=common.expect_nodes,
    )


def _nic(nic: pb.NicDevice, _field: str) -> kinds.NicExpectation:
    mac = nic.expect_mac
    return kinds.NicExpectation(mac=str(MacAddress.parse(mac)) if mac else None)


def _rng(rng: pb.RngDevice, _field: str) -> kinds.RngExpectation:
    return kinds.RngExpectation(make_current=rng.make_current)


def _pmem(pmem: pb.PmemDevice, _field: str) -> kinds.PmemExpectation:
    return kinds.PmemExpectation(size=pmem.expect_size or None)


_EXPECTATIONS: dict[str, Callable[[Any, str], kinds.Expectation]] = {
    "block": _block,
    "vfio": _vfio,
    "nic": _nic,
    "gpu": _gpu,
    "fpga": _fpga,
    "rng": _rng,
    "pmem": _pmem,
    "common": _common,
}


def _pci_id(text: str, field: str) -> str | None:
    if text and _PCI_ID.fullmatch(text) is None:
        raise invalid(f"{field}: {text[:80]!r} is not VENDOR:DEVICE in hex", field=field)
    return text.lower() or None


def _driver(text: str, field: str) -> str | None:
    return name(text, field) if text else None

"""A PCI function of the host, given away."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import Hardware, Names, Setting, bad_field
from innkeeper.v1 import devices_pb2

if TYPE_CHECKING:
    from innkeeper.v1 import host_pb2

DEVICES = Path("/sys/bus/pci/devices")
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_DRIVER = "vfio-pci"


def parse(message: host_pb2.HostFunction, _device_id: str, _setting: Setting) -> Hardware:
    if not _BDF.fullmatch(message.bdf):
        text = f"bdf {message.bdf!r}: not an address"
        raise bad_field("bdf", text, "domain:bus:slot.function, as in 0000:3b:00.0")
    check_given(message.bdf, DEVICES)
    return HostFunction(bdf=message.bdf)


def check_given(bdf: str, devices: Path) -> None:
    """Raises UNKNOWN_HOST_FUNCTION, NOT_GIVEN_AWAY."""
    function = devices / bdf
    fields: dict[str, object] = {"bdf": bdf}
    if not function.exists():
        raise ShimError(
            Reason.UNKNOWN_HOST_FUNCTION,
            f"host function {bdf}: not there",
            hint="see: innkeeper devices",
            fields=fields,
        )
    driver = function / "driver"
    bound = driver.resolve().name if driver.exists() else ""
    if bound != _DRIVER:
        state = f"bound to {bound}" if bound else "bound to no driver"
        raise ShimError(
            Reason.NOT_GIVEN_AWAY,
            f"host function {bdf}: {state}, and not to {_DRIVER}",
            # The host may live on it (its disk, its network): what to do is not said
            # before that was looked at.
            hint=f"innkeeper devices {bdf} says what is in the way and how to give it away",
            fields=fields | {"driver": bound},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunction(Hardware):
    """vfio-pci."""

    bdf: str

    @property
    def driver(self) -> str:
        return _DRIVER

    @property
    def model(self) -> str:
        return _DRIVER

    @property
    def source(self) -> str:
        return self.bdf

    def properties(self, names: Names) -> dict[str, object]:  # noqa: ARG002 - it has no backend
        return {"host": self.bdf}

    def guest(self) -> devices_pb2.Device:
        """The guest's own driver takes it, unless the caller wants VFIO there too."""
        return devices_pb2.Device(
            host=[devices_pb2.HostTuple(type="pci", id=self.bdf)],
            vfio=devices_pb2.VfioDevice(mode=devices_pb2.VFIO_MODE_GUEST_KERNEL),
        )

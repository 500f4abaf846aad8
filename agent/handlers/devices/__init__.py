"""Devices by class: the list of classes is here, and only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.handlers.devices.block import BlockDevices
from agent.handlers.devices.common import CommonDevices
from agent.handlers.devices.fpga import FpgaDevices
from agent.handlers.devices.gpu import GpuDevices
from agent.handlers.devices.nic import NicDevices
from agent.handlers.devices.pmem import PmemDevices
from agent.handlers.devices.rng import RngDevices
from agent.handlers.devices.vfio import VfioDevices

if TYPE_CHECKING:
    from agent.handlers.devices.base import DeviceClass

CLASSES: tuple[DeviceClass[Any], ...] = (
    BlockDevices(),
    VfioDevices(),
    NicDevices(),
    GpuDevices(),
    FpgaDevices(),
    RngDevices(),
    PmemDevices(),
    CommonDevices(),
)

"""Devices by class: the list of classes is here, and only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.handlers.devices.block import BlockDevices

if TYPE_CHECKING:
    from agent.handlers.devices.base import DeviceClass

CLASSES: tuple[DeviceClass[Any], ...] = (BlockDevices(),)

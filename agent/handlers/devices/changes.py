"""What is being changed for a device, written down before it is changed.

An agent that dies in the middle of an attach or of a switch of mode leaves a driver
bound or a source chosen that no entry of the table knows of. So what `give_back` will
have to know is saved before the change, and forgotten once the entry has it or all is
taken back; the next agent finds what is left and takes it back before it serves anybody.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError
from agent.core.kinds import CommonInfo
from agent.core.model import AttachedDevice, DeviceRequest
from agent.handlers.devices.records import from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.core.state import StateStore

log = logging.getLogger(__name__)

_KIND = "device-changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an agent was in the middle of; of `device` only the request is known."""

    device: AttachedDevice
    served_by: str
    kept: Mapping[str, str]


class Changes:
    """Changes under way, by the ids of their devices."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._noted: dict[str, dict[str, str]] = {}

    def note(self, request: DeviceRequest, served_by: str, kept: Mapping[str, str]) -> None:
        """Remember one more thing that is about to be changed; raises NO_SPACE."""
        if not kept:
            return
        # What was noted first is how it was found.
        noted = {**kept, **self._noted.get(request.id, {})}
        record = {"device": to_record(_bare(request)), "served_by": served_by, "kept": noted}
        self._state.save(_KIND, request.id, record)
        self._noted[request.id] = noted

    def forget(self, device_id: str) -> None:
        """It is over, one way or the other; fine when nothing was noted."""
        if self._noted.pop(device_id, None) is not None:
            self._state.delete(_KIND, device_id)

    def take_over(self) -> Iterator[Change]:
        """What an earlier agent was in the middle of; each is forgotten afterwards."""
        for device_id, record in self._state.load_all(_KIND).items():
            change = _read(device_id, record)
            if change is not None:
                yield change
            self._state.delete(_KIND, device_id)


def _read(device_id: str, record: dict[str, Any]) -> Change | None:
    try:
        return Change(
            device=from_record(record["device"]),
            served_by=record["served_by"],
            kept=record["kept"],
        )
    except (KeyError, TypeError, ValueError, AgentError) as error:
        log.warning("the saved changes for device %s are of another shape: %r", device_id, error)
        return None


def _bare(request: DeviceRequest) -> AttachedDevice:
    return AttachedDevice(
        request=request,
        pci_path=None,
        bdf="",
        sysfs_path="",
        driver="",
        numa_node=None,
        iommu_group=None,
        nodes=(),
        info=CommonInfo(),
    )

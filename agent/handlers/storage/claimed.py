"""A device that a storage attaches itself, because the request names an address."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from agent.core.errors import Reason, already_exists
from agent.core.kinds import BlockExpectation
from agent.core.model import DeviceRequest
from agent.handlers.storage.pieces import Piece, PieceKind

if TYPE_CHECKING:
    from agent.core.addresses import Address
    from agent.core.deadlines import Deadline
    from agent.core.model import AttachedDevice
    from agent.handlers.storage.base import Tools
    from agent.handlers.storage.job import Job

# Of ids of devices, as of all others: `agent.core.names`.
_ID_LENGTH = 64


async def claim(job: Job[object], address: Address) -> AttachedDevice:
    """Attach the disk at `address` as "storage.ID", held as long as the storage is.

    Raises ID_IN_USE when a device is called that already: it is somebody's own, and taking
    the piece back would forget it.
    """
    device_id = _device_id(job.request.id)
    if any(device.request.id == device_id for device in job.tools.devices.list()):
        raise already_exists(
            f"a device is called {device_id}, as the one of storage {job.request.id} would be",
            reason=Reason.ID_IN_USE,
            hint="name it in source.block.device_id, or detach it first",
            id=device_id,
        )
    request = DeviceRequest(
        id=device_id,
        address=address,
        kind=BlockExpectation(),
        timeout=max(job.deadline.left() or 0.0, 0.001),
    )
    devices = job.tools.devices
    piece = Piece(kind=PieceKind.DEVICE, name=device_id)
    device = await job.make(piece, lambda: devices.attach(request))
    devices.hold(device_id, _user(piece))
    return device


async def take_back(tools: Tools, piece: Piece, deadline: Deadline) -> None:  # noqa: ARG001
    """Forget the device, which stays where it is."""
    tools.devices.release(piece.name, _user(piece))
    await tools.devices.forget(piece.name)


def hold_again(tools: Tools, piece: Piece) -> None:
    """After a restart; raises UNKNOWN_DEVICE, WRONG_STATE for one that is gone."""
    tools.devices.hold(piece.name, _user(piece))


def _device_id(storage_id: str) -> str:
    name = f"storage.{storage_id}"
    if len(name) <= _ID_LENGTH:
        return name
    digest = hashlib.sha256(storage_id.encode()).hexdigest()[:16]
    return f"{name[: _ID_LENGTH - 17]}-{digest}"


def _user(piece: Piece) -> str:
    return piece.name.replace(".", " ", 1)

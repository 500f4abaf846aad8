"""Memory that QEMU gives to a guest: backends, room for them, and QEMU's refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import MEMORY_BLOCK, Backend
from innkeeper.shim.sizes import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innkeeper.shim.hardware.base import Names, Setting
    from innkeeper.shim.qmp import Monitor, QemuRefusedError

# What QEMU says when the guest has no address or no slot left for more memory.
_NO_ROOM = ("not enough space", "no free slots", "no slots", "can't find free")


def backend(qom_type: str, names: Names, properties: Mapping[str, object]) -> Backend:
    return Backend(
        add="object-add",
        arguments={"qom-type": qom_type, "id": names.backend, **properties},
        remove="object-del",
        removal={"id": names.backend},
    )


def require_room(device_id: str, setting: Setting) -> None:
    """Raises NOT_PLUGGABLE for a VM whose memory can't grow."""
    if not setting.max_memory:
        raise ShimError(
            Reason.NOT_PLUGGABLE,
            f"device {device_id}: this VM was started without room for more memory",
            hint="start it with --max-memory, more than its memory",
            fields={"id": device_id},
        )


def require_fit(device_id: str, size: int, setting: Setting) -> None:
    """Raises MEMORY_EXHAUSTED for more than the VM can ever have.

    QEMU is not asked: there are sizes for which it does not refuse, but ends.
    """
    if size > setting.room:
        raise _exhausted(device_id, size, setting.room, " in all, with what is plugged already")


async def require_left(device_id: str, size: int, room: int, monitor: Monitor) -> None:
    """Raises MEMORY_EXHAUSTED. `room` are the bytes for all memory that comes; QEMU tells
    how much of it is taken. Asked for too much, it would first get it from the host."""
    taken = sum(_size(each["data"]) for each in await monitor.execute("query-memory-devices"))
    if size > room - taken:
        raise _exhausted(device_id, size, max(room - taken, 0))


def _exhausted(device_id: str, size: int, left: int, of_what: str = "") -> ShimError:
    fits = left // MEMORY_BLOCK * MEMORY_BLOCK
    return ShimError(
        Reason.MEMORY_EXHAUSTED,
        f"device {device_id}: no room for {in_words(size)} of memory, "
        + (f"only for {in_words(fits)}{of_what}" if fits else "nor for any more"),
        hint="plug less, unplug some, or start the VM with more --max-memory",
        fields={"id": device_id, "wanted": in_words(size), "room": in_words(fits)},
    )


def _size(told: Mapping[str, int]) -> int:
    """virtio-mem takes room for all that it can become."""
    return told.get("max-size", told["size"])


def explain(error: QemuRefusedError) -> ShimError:
    if not any(text in error.text for text in _NO_ROOM):
        return error
    return ShimError(
        Reason.MEMORY_EXHAUSTED,
        f"no room for more memory: {error.text}",
        hint="unplug some, or start the VM with more --max-memory",
        fields={"error": error.text},
    )

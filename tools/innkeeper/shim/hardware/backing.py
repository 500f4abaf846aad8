"""Memory that QEMU gives to a guest: backends, room for them, and QEMU's refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innkeeper.shim.hardware.base import Names, Setting
    from innkeeper.shim.qmp import QemuRefusedError

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


def explain(error: QemuRefusedError) -> ShimError:
    if not any(text in error.text for text in _NO_ROOM):
        return error
    return ShimError(
        Reason.MEMORY_EXHAUSTED,
        f"no room for more memory: {error.text}",
        hint="unplug some, or start the VM with more --max-memory",
        fields={"error": error.text},
    )

"""Every kind of hardware that can be plugged: one file each, one line each below.

To add a kind: a message in `Hardware` of host.proto, a file here with a frozen
dataclass and its `parse`, a line in `KINDS`, a unit test of its arguments and a
VM test that plugs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innkeeper.shim.hardware import (
    cpus,
    disk,
    gpu,
    host_function,
    memory,
    nic,
    pmem,
    rng,
    scsi,
    share,
)
from innkeeper.shim.hardware.base import (
    Backend,
    Growth,
    Hardware,
    Names,
    Place,
    Setting,
    bad_field,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innkeeper.v1 import host_pb2

__all__ = [
    "KINDS",
    "Backend",
    "Growth",
    "Hardware",
    "Names",
    "Place",
    "Setting",
    "parse",
]

KINDS: Mapping[str, Callable[[Any, str, Setting], Hardware]] = {
    "disk": disk.parse,
    "scsi_controller": scsi.parse_controller,
    "scsi_disk": scsi.parse_disk,
    "nic": nic.parse,
    "gpu": gpu.parse,
    "rng": rng.parse,
    "pmem": pmem.parse,
    "memory": memory.parse,
    "cpus": cpus.parse,
    "host_function": host_function.parse,
    "share": share.parse,
}
"""By the field of `Hardware`; each takes its message, the device's id and the VM's setting."""


def parse(message: host_pb2.Hardware, device_id: str, setting: Setting) -> Hardware:
    """Raises BAD_FIELD, and what a kind finds wrong on this host."""
    kind = message.WhichOneof("kind")
    if kind is None:
        raise bad_field("hardware", f"device {device_id}: of no kind", "one of " + ", ".join(KINDS))
    return KINDS[kind](getattr(message, kind), device_id, setting)

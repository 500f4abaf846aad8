"""Requests of Host.Plug, as tests write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from innkeeper.v1 import devices_pb2, host_pb2


def plug(
    device_id: str,
    guest: devices_pb2.Device | None = None,
    port: str = "",
    timeout_seconds: float = 0,
    **kind: Any,
) -> host_pb2.PlugRequest:
    """One function; `kind` is one field of `Hardware`, as in `rng=host_pb2.Rng()`."""
    function = host_pb2.PlugFunction(id=device_id, hardware=host_pb2.Hardware(**kind), guest=guest)
    return host_pb2.PlugRequest(functions=[function], port=port, timeout_seconds=timeout_seconds)


def disk_plug(
    device_id: str,
    file: Path | str,
    *,
    format: str = "",  # noqa: A002 - the field's name
    read_only: bool = False,
    timeout_seconds: float = 0,
) -> host_pb2.PlugRequest:
    """A virtio-blk disk in the first free port."""
    content = host_pb2.DiskFile(file=str(file), format=format, read_only=read_only)
    disk = host_pb2.Disk(content=content)
    return plug(device_id, timeout_seconds=timeout_seconds, disk=disk)

"""What the guest refuses of `innkeeper run`, in words of the command line."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc

from innkeeper.cli.errors import CliError
from innkeeper.shim.streams import error_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innkeeper.v1 import devices_pb2

_DEVICE_WAIT = 10
"""Seconds that the guest waits for a device when nobody says how long."""
_NO_NODE = "there is no device node"
"""What it has seen at the end (agent/core/places.py)."""


@contextlib.contextmanager
def missing_node(vm: str, device: devices_pb2.Device) -> Iterator[None]:
    """A node that did not come in time; raises CliError with the user's own word for it."""
    try:
        yield
    except grpc.RpcError as error:
        node, info = device.address.path, error_info(error)
        if not node or info is None or not info.metadata["evidence"].startswith(_NO_NODE):
            raise
        raise CliError(
            f"there is no {node} in VM {vm} (waited {_DEVICE_WAIT} s)\n  reason: {info.reason}",
            hint="its nodes are those of the guest, not of this host; see: innkeeper device"
            f" list {vm}, and plug in with: innkeeper device attach {vm}",
        ) from error


@contextlib.contextmanager
def taken_name(vm: str, container: str) -> Iterator[None]:
    """Another container of that id; raises CliError."""
    try:
        yield
    except grpc.RpcError as error:
        info = error_info(error)
        if info is None or info.reason != "ID_IN_USE" or info.metadata["id"] != container:
            raise
        raise CliError(
            f"a container {container} exists\n  reason: {info.reason}",
            hint=f"choose another --name, or: innkeeper rm {vm} {container}",
        ) from error

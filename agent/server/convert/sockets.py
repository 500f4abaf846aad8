"""Addresses of sockets, and the frames of their streams."""

from __future__ import annotations

from typing import Final

from agent.core.errors import invalid
from agent.core.names import check_id
from agent.handlers.sockets.addresses import SocketPlace, TcpAddress, UnixAddress
from agent.server.convert import fields
from innkeeper.v1 import sockets_pb2 as pb

FRAME_BYTES: Final = 256 << 10
"""Largest `data` of one frame."""


def place(message: pb.SocketAddress, field: str) -> SocketPlace:
    """Where to connect or to listen."""
    container_id = message.container_id
    if container_id:
        check_id("container", container_id)
    match fields.choice(message, "address", field):
        case "tcp":
            return SocketPlace(address=TcpAddress.parse(message.tcp), container_id=container_id)
        case _:
            path = fields.absolute_path(message.unix, f"{field}.unix")
            return SocketPlace(address=UnixAddress(path=path), container_id=container_id)


def target(message: pb.SocketAddress, field: str) -> SocketPlace:
    """Where to connect: a host and a port that there can be."""
    found = place(message, field)
    address = found.address
    if isinstance(address, TcpAddress) and not (address.host and address.port):
        raise invalid(
            f"{field}: {message.tcp!r}: to connect, a host and a port of 1 to 65535 are needed",
            field=field,
        )
    return found


def address(found: SocketPlace) -> pb.SocketAddress:
    match found.address:
        case TcpAddress():
            return pb.SocketAddress(tcp=str(found.address), container_id=found.container_id)
        case UnixAddress(path=path):
            return pb.SocketAddress(unix=path, container_id=found.container_id)


def frame_data(data: bytes) -> bytes:
    if not 1 <= len(data) <= FRAME_BYTES:
        raise invalid(f"data: a frame has 1 to {FRAME_BYTES} bytes, not {len(data)}", field="data")
    return data

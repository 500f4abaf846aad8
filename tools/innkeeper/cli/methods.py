"""The protocol's methods by name, with their messages: what `innkeeper call` calls.

Services that this program does not know (a vendor's own) are looked up in the
guest by gRPC reflection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from innkeeper.cli.errors import CliError
from innkeeper.v1 import (
    containers_pb2,
    devices_pb2,
    files_pb2,
    host_pb2,
    network_pb2,
    processes_pb2,
    sandbox_pb2,
    sockets_pb2,
    storages_pb2,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message
    from grpc import aio

_FILES = (
    sandbox_pb2,
    devices_pb2,
    storages_pb2,
    network_pb2,
    containers_pb2,
    processes_pb2,
    files_pb2,
    sockets_pb2,
    host_pb2,
    health_pb2,
)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of one service."""

    descriptor: MethodDescriptor

    @property
    def name(self) -> str:
        """Short, as in "Devices.List"."""
        return f"{self.descriptor.containing_service.name}.{self.descriptor.name}"

    @property
    def names(self) -> tuple[str, str]:
        """Short and full, with dots."""
        return (self.name, self.descriptor.full_name)

    @property
    def path(self) -> str:
        """As in "/innkeeper.v1.Devices/List"."""
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def request_type(self) -> type[Message]:
        return GetMessageClass(self.descriptor.input_type)

    def call(
        self, channel: aio.Channel, requests: list[Message], timeout: float | None
    ) -> AsyncIterator[Message]:
        """Sends the requests (exactly one unless the method takes a stream), gives the answers."""
        serialize = self.request_type.SerializeToString
        parse = GetMessageClass(self.descriptor.output_type).FromString
        if self.descriptor.client_streaming:
            many = channel.stream_stream(self.path, serialize, parse)
            return aiter(many(iter(requests), timeout=timeout))
        # On the wire a single answer is a stream of one.
        one = channel.unary_stream(self.path, serialize, parse)
        return aiter(one(requests[0], timeout=timeout))


Methods: TypeAlias = "Mapping[str, Method]"


def known_methods() -> Methods:
    """Every method of the protocol and of the standard health service, by short name."""
    return _methods_of(
        service for module in _FILES for service in module.DESCRIPTOR.services_by_name.values()
    )


def reflected_methods(target: str) -> Methods:
    """What the guest says it serves; raises grpc.RpcError."""
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in database.get_services()]
        return _methods_of(services)


def is_known(text: str) -> bool:
    wanted = _dotted(text)
    return any(wanted in method.names for method in known_methods().values())


def find_method(text: str, methods: Methods) -> Method:
    """Takes "Devices.List", "innkeeper.v1.Devices.List" and "/innkeeper.v1.Devices/List".

    Raises CliError that names what there is.
    """
    wanted = _dotted(text)
    for method in methods.values():
        if wanted in method.names:
            return method
    services = dict.fromkeys(name.partition(".")[0] for name in methods)
    # The last word when a service alone was written, else the one before.
    service = next((word for word in wanted.split(".")[:-3:-1] if word in services), "")
    near = [name for name in methods if name.partition(".")[0] == service]
    hint = f"methods of {service}: {', '.join(near)}"
    if not near:
        hint = f"all methods: innkeeper call --list; services: {', '.join(services)}"
    raise CliError(f"no method {text}", hint=hint)


def _dotted(text: str) -> str:
    return text.removeprefix("/").replace("/", ".")


def _methods_of(services: Iterable[ServiceDescriptor]) -> dict[str, Method]:
    found = [Method(method) for service in services for method in service.methods]
    return {method.name: method for method in found}

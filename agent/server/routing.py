"""Methods by name -> gRPC handlers, from a service's descriptor.

A service gives the methods that are built as a table; the descriptor knows all
of them, so one that is missing answers UNIMPLEMENTED with a reason and can't be
forgotten. The generated `*_pb2_grpc` modules are not needed in the guest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import grpc
from google.protobuf.message_factory import GetMessageClass

from agent.core.errors import AgentError, Code, Reason
from agent.server.calls import (
    BidiHandle,
    Call,
    Frames,
    Send,
    StreamHandle,
    UnaryHandle,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message

    from agent.server.calls import Context

    Handler: TypeAlias = grpc.RpcMethodHandler[bytes, bytes]
    UnaryBehaviour: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]
    StreamBehaviour: TypeAlias = Callable[[bytes, Context], Awaitable[None]]
    BidiBehaviour: TypeAlias = Callable[[object, Context], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Unary:
    """One request, one answer; `endless` when it waits for something that may never come."""

    handle: UnaryHandle
    endless: bool = False


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One request, any number of answers."""

    handle: StreamHandle


@dataclass(frozen=True, slots=True)
class Bidi:
    """Frames both ways."""

    handle: BidiHandle


Method: TypeAlias = Unary | ServerStream | Bidi
Methods: TypeAlias = "Mapping[str, Method]"


def service_handler(service: ServiceDescriptor, methods: Methods) -> grpc.GenericRpcHandler:
    """The handler of a whole service; raises ValueError for a method that it has not."""
    known = {method.name: method for method in service.methods}
    if strangers := set(methods) - set(known):
        raise ValueError(f"{service.full_name} has no {', '.join(sorted(strangers))}")
    handlers = {name: _handler(method, methods.get(name)) for name, method in known.items()}
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def endless_paths(service: ServiceDescriptor, methods: Methods) -> set[str]:
    """The paths of the methods that only end when somebody ends them."""
    return {
        path_of(service.methods_by_name[name])
        for name, method in methods.items()
        if not isinstance(method, Unary) or method.endless
    }


def path_of(method: MethodDescriptor) -> str:
    """`/innkeeper.v1.Devices/Attach`."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _handler(method: MethodDescriptor, built: Method | None) -> Handler:
    kind = GetMessageClass(method.input_type)
    match built:
        case Unary(handle=handle):
            return grpc.unary_unary_rpc_method_handler(_unary(kind, handle))
        case ServerStream(handle):
            return grpc.unary_stream_rpc_method_handler(_server_stream(kind, handle))
        case Bidi(handle):
            return grpc.stream_stream_rpc_method_handler(_bidi(kind, handle))
        case None:
            return refusing(not_built(path_of(method)))


def _unary(kind: type[Message], handle: UnaryHandle) -> UnaryBehaviour:
    async def behaviour(raw: bytes, context: Context) -> bytes:
        return encode(await handle(decode(kind, raw), Call(context)))

    return behaviour


# Coroutines that read and write, not generators: gRPC closes no generator when
# a call is cancelled while it writes, so what one holds open would stay open.
def _server_stream(kind: type[Message], handle: StreamHandle) -> StreamBehaviour:
    async def behaviour(raw: bytes, context: Context) -> None:
        # A stream may have nothing to say for long: the host learns by the
        # headers that it is open.
        await context.send_initial_metadata(())
        await handle(decode(kind, raw), Call(context), Send(context))

    return behaviour


def _bidi(kind: type[Message], handle: BidiHandle) -> BidiBehaviour:
    async def behaviour(_iterator: object, context: Context) -> None:
        await handle(Frames(context, kind), Call(context), Send(context))

    return behaviour


def refusing(error: AgentError) -> Handler:
    """A handler that refuses at once, without reading; works for every kind of method."""

    async def behaviour(_iterator: object, _context: Context) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(behaviour)


def not_built(subject: str) -> AgentError:
    """The answer for what the protocol has and this agent has not."""
    return AgentError(
        f"{subject} is not built yet",
        code=Code.UNIMPLEMENTED,
        reason=Reason.NOT_BUILT_YET,
        fields={"subject": subject},
        hint="Sandbox.Describe lists what this agent can do",
    )

"""A call whose connection broke: what is known of the reason.

The daemon's connection to the agent breaks under a call when the agent ends
(killed for memory, say), and all that gRPC then says is "Stream removed". The
relay in the guest knows more, and answers the next call with it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc
from grpc import aio

from innkeeper.cli.errors import CliError
from innkeeper.shim.errors import with_tail
from innkeeper.shim.logs import tail
from innkeeper.shim.statedir import VmPaths
from innkeeper.shim.streams import details_of, error_info
from innkeeper.v1 import sandbox_pb2, sandbox_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from innkeeper.shim.client import Vm

_ASK_LIMIT = 5.0


@contextlib.asynccontextmanager
async def explained(vm: Vm, channel: aio.Channel) -> AsyncIterator[None]:
    """A call inside that ends without a reason raises one that has it, where it is known."""
    try:
        yield
    except aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE or error_info(error) is not None:
            raise
        raise await _real_reason(vm, channel, error) from error


async def _real_reason(vm: Vm, channel: aio.Channel, error: aio.AioRpcError) -> Exception:
    stub = sandbox_pb2_grpc.SandboxStub(channel)
    try:
        await stub.Describe(sandbox_pb2.DescribeSandboxRequest(), timeout=_ASK_LIMIT)
    except aio.AioRpcError as told:
        away = told.code() is grpc.StatusCode.UNAVAILABLE
        if error_info(told) is not None and away:
            return told
    console = VmPaths(directory=vm.directory).console_log
    return CliError(
        with_tail(
            f"VM {vm.name}: the connection to the guest's agent broke: {details_of(error)}",
            f"{console} ends with",
            tail(console),
        )
    )

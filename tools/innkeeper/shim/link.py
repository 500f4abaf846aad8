"""The way to one VM's agent: which transport, what QEMU and a helper need for it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.shim import commands
from innkeeper.shim.errors import Reason, ShimError, with_tail
from innkeeper.shim.logs import tail
from innkeeper.shim.machine import GuestLink
from innkeeper.shim.transport import kernel_vsock, serial
from innkeeper.shim.transport.address import SerialAddress, VsockAddress
from innkeeper.shim.transport.choose import Choice, Host, Kind, choose
from innkeeper.shim.transport.hybrid_vsock import HybridVsock
from innkeeper.shim.transport.stream import TransportError
from innkeeper.shim.transport.vhost_user import VhostUserVsock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from innkeeper.shim.statedir import VmPaths
    from innkeeper.shim.transport.stream import Transport

AGENT_PORT = 1024
"""The vsock port of the agent's relay."""

_HELPER_LIMIT = 5.0
_HELPER_LOOK = 0.01
# The kernel's context ids below this are few and easily taken by other tools.
_FIRST_CID = 1 << 16
_CIDS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A transport that was chosen for one VM."""

    choice: Choice
    qemu: GuestLink
    transport: Transport
    helper: VhostUserVsock | None = None


def plan(wanted: str, paths: VmPaths, host: Host | None = None) -> Link:
    """`wanted` is a `Kind` or "auto"; raises BAD_FIELD or HOST_LACKS."""
    try:
        choice = choose(wanted, host or Host.look())
    except TransportError as error:
        known = wanted in ("auto", *Kind)
        reason = Reason.HOST_LACKS if known else Reason.BAD_FIELD
        raise ShimError(reason, str(error), fields={"field": "transport"}) from None
    match choice.kind:
        case Kind.VSOCK:
            return _kernel_vsock(choice)
        case Kind.VHOST_USER:
            return _vhost_user(choice, paths)
        case Kind.SERIAL:
            return _serial(choice, paths)


@contextlib.asynccontextmanager
async def running_helper(link: Link, paths: VmPaths) -> AsyncIterator[None]:
    """The process that a transport needs beside QEMU, from before QEMU starts."""
    if link.helper is None:
        yield
        return
    with paths.qemu_log.open("ab") as output:
        process = await commands.spawn_tied(link.helper.argv(), output=output.fileno())
    try:
        await _wait_until_serving(process, link.helper, paths)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _wait_until_serving(
    process: asyncio.subprocess.Process, helper: VhostUserVsock, paths: VmPaths
) -> None:
    """Its socket is all that tells; its end is an event, so that is what is waited for."""
    try:
        async with asyncio.timeout(_HELPER_LIMIT):
            while not helper.device_socket.exists():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _HELPER_LOOK)
                    raise _helper_failed(helper, "ended at once", paths)
    except TimeoutError:
        why = f"made no socket within {_HELPER_LIMIT:g} s"
        raise _helper_failed(helper, why, paths) from None


def _helper_failed(helper: VhostUserVsock, why: str, paths: VmPaths) -> ShimError:
    message = with_tail(f"{helper.program}: {why}", "it said", tail(paths.qemu_log))
    return ShimError(Reason.HOST_LACKS, message, hint="--transport serial needs no helper")


def _kernel_vsock(choice: Choice) -> Link:
    cid = _FIRST_CID + secrets.randbelow(_CIDS)
    return Link(
        choice=choice,
        qemu=GuestLink(arguments=kernel_vsock.qemu_arguments(cid)),
        transport=kernel_vsock.KernelVsock(VsockAddress(cid=cid, port=AGENT_PORT)),
    )


def _vhost_user(choice: Choice, paths: VmPaths) -> Link:
    if choice.program is None:
        raise AssertionError("vhost-user was chosen without its program")
    helper = VhostUserVsock(program=choice.program, directory=paths.directory)
    return Link(
        choice=choice,
        qemu=GuestLink(arguments=helper.qemu_arguments(), shared_memory=True),
        transport=HybridVsock(helper.address(AGENT_PORT)),
        helper=helper,
    )


def _serial(choice: Choice, paths: VmPaths) -> Link:
    arguments = (*serial.CONTROLLER, *serial.qemu_arguments(paths.guest))
    return Link(
        choice=choice,
        qemu=GuestLink(arguments=arguments),
        transport=serial.Serial(SerialAddress(path=paths.guest)),
    )

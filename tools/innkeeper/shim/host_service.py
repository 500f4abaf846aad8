"""`innkeeper.v1.Host`: what the daemon answers itself. Converts, calls, converts."""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from innkeeper.shim import hardware
from innkeeper.shim.errors import Reason, ShimError, clip
from innkeeper.shim.plug import check_timeout
from innkeeper.shim.plugged import DeviceState, Wanted
from innkeeper.shim.resizing import resize_disk
from innkeeper.shim.table import MOST_FUNCTIONS
from innkeeper.shim.vm import check_grace
from innkeeper.v1 import host_pb2, host_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from grpc import aio

    from innkeeper.shim.hardware import Setting
    from innkeeper.shim.plugged import Function, Plug
    from innkeeper.shim.vm import RunningVm

    Context = aio.ServicerContext[Any, Any]

_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_QUESTION = re.compile(r"query-[a-z0-9-]{1,60}")

_log = logging.getLogger(__name__)


class HostService(host_pb2_grpc.HostServicer):
    """One VM's host side."""

    def __init__(self, vm: RunningVm) -> None:
        self._vm = vm

    async def Describe(  # noqa: N802 - gRPC's spelling
        self, _request: host_pb2.DescribeVmRequest, _context: Context
    ) -> host_pb2.VmDescription:
        parts = self._vm.parts
        grown = parts.table.growth
        return host_pb2.VmDescription(
            name=parts.shape.name,
            state=self._vm.state,
            qemu_pid=parts.qemu.pid,
            daemon_pid=os.getpid(),
            accelerator=parts.shape.accel,
            transport=parts.link.choice.kind,
            console_log=str(parts.shape.console_log),
            image=str(parts.shape.image.directory),
            first_answer_micros=self._vm.first_answer_micros,
            free_ports=len(parts.table.ports.free),
            memory=parts.shape.memory + grown.memory,
            cpus=parts.shape.cpus + grown.cpus,
        )

    async def Plug(  # noqa: N802
        self, request: host_pb2.PlugRequest, context: Context
    ) -> host_pb2.PlugResponse:
        async with _answering(context):
            timeout = check_timeout(request.timeout_seconds)
            wanted = _wanted(request, self._vm.parts.shape.setting)
            self._vm.require_running()
            await self._vm.until_answered(timeout)
            try:
                usable = await self._vm.parts.plugger.plug(wanted, timeout, request.port)
            except ShimError as error:
                hint_at_flavour(error, wanted, self._vm.parts.shape.image.flavour)
                raise
            return host_pb2.PlugResponse(
                attached=usable.attached, usable_micros=usable.micros, online=usable.online
            )

    async def Unplug(  # noqa: N802
        self, request: host_pb2.UnplugRequest, context: Context
    ) -> host_pb2.UnplugResponse:
        async with _answering(context):
            check_id(request.id)
            timeout = check_timeout(request.timeout_seconds)
            self._vm.require_running()
            await self._vm.parts.plugger.unplug(request.id, timeout)
            return host_pb2.UnplugResponse()

    async def ListPlugged(  # noqa: N802
        self, _request: host_pb2.ListPluggedRequest, _context: Context
    ) -> host_pb2.ListPluggedResponse:
        found = self._vm.parts.plugger.list()
        return host_pb2.ListPluggedResponse(devices=[_told(*each) for each in found])

    async def ListPorts(  # noqa: N802
        self, _request: host_pb2.ListPortsRequest, _context: Context
    ) -> host_pb2.ListPortsResponse:
        table = self._vm.parts.table
        inside = {
            plug.port.name: [function.id for function in plug.functions]
            for plug in table.plugs
            if plug.port is not None
        }
        return host_pb2.ListPortsResponse(
            ports=[
                host_pb2.Port(
                    name=port.name,
                    pci_path=port.pci_path,
                    devices=inside.get(port.name, ()),
                    large_window=port.roomy,
                    used_up=table.ports.is_spent(port),
                )
                for port in table.ports.ports
            ]
        )

    async def ResizeDisk(  # noqa: N802
        self, request: host_pb2.ResizeDiskRequest, context: Context
    ) -> host_pb2.ResizeDiskResponse:
        async with _answering(context):
            check_id(request.id)
            self._vm.require_running()
            parts = self._vm.parts
            monitor = parts.qemu.monitor
            size = await resize_disk(parts.table, monitor, request.id, request.size)
            return host_pb2.ResizeDiskResponse(size=size)

    async def Query(  # noqa: N802
        self, request: host_pb2.QueryQemuRequest, context: Context
    ) -> host_pb2.QueryQemuResponse:
        async with _answering(context):
            question = _question(request.command)
            self._vm.require_running()
            answer = await self._vm.parts.qemu.monitor.execute(question)
            return host_pb2.QueryQemuResponse(answer=json.dumps(answer))

    async def Stop(  # noqa: N802
        self, request: host_pb2.StopVmRequest, context: Context
    ) -> host_pb2.StopVmResponse:
        async with _answering(context):
            clean = await self._vm.stop(check_grace(request.grace_seconds))
            why = "" if clean else self._vm.why_ended
            return host_pb2.StopVmResponse(clean=clean, ended_because=why)


def hint_at_flavour(error: ShimError, wanted: Sequence[Wanted], flavour: str) -> None:
    """A guest knows that it has no driver, and not which image of ours would have."""
    lacking = [
        f"{each.hardware.model} wants an image of flavour {each.hardware.flavour}, as in:"
        f" innkeeper vm start NAME --image {each.hardware.flavour}"
        for each in wanted
        if each.hardware.flavour not in ("", flavour)
    ]
    not_ready = error.fields.get("guest_reason") == "DEVICE_NOT_READY"
    if lacking and not_ready and "no driver" in error.message:
        error.hint = lacking[0]


def check_id(device_id: str) -> str:
    """Raises BAD_FIELD; the guest has the same rule."""
    if not _ID.fullmatch(device_id):
        raise ShimError(
            Reason.BAD_FIELD,
            f"device id {device_id!r}: not an id",
            hint="1 to 64 letters, digits, '_', '.', '-', the first a letter or digit, no '..'",
            fields={"field": "id"},
        )
    return device_id


def _wanted(request: host_pb2.PlugRequest, setting: Setting) -> tuple[Wanted, ...]:
    """Raises BAD_FIELD, and what the kinds find wrong on this host."""
    count = len(request.functions)
    if not 1 <= count <= MOST_FUNCTIONS:
        raise ShimError(
            Reason.BAD_FIELD,
            f"functions: {count}",
            hint=f"1 to {MOST_FUNCTIONS}",
            fields={"field": "functions"},
        )
    return tuple(
        Wanted(
            id=check_id(each.id),
            hardware=hardware.parse(each.hardware, each.id, setting),
            guest=each.guest if each.HasField("guest") else None,
        )
        for each in request.functions
    )


def _question(command: str) -> str:
    """Raises BAD_FIELD for what is not a plain question."""
    if not _QUESTION.fullmatch(command):
        raise ShimError(
            Reason.BAD_FIELD,
            f"command {command[:80]!r}: not a question to QEMU",
            hint="a QMP command that begins with query-, such as query-pci",
            fields={"field": "command"},
        )
    return command


def _told(function: Function, plug: Plug) -> host_pb2.PluggedDevice:
    # One word for both ways of leaving, of which only one was asked for.
    leaving = plug.state in (DeviceState.UNPLUGGING, DeviceState.LEAVING)
    return host_pb2.PluggedDevice(
        id=function.id,
        pci_path=function.pci_path,
        source=function.hardware.source,
        state="leaving" if leaving else f"failed: {plug.failure}" if plug.failure else plug.state,
        model=function.hardware.model,
        port=plug.port.name if plug.port is not None else "",
        not_removable=plug.not_removable,
    )


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Turns what is raised inside into the call's status."""
    try:
        yield
    except ShimError as error:
        await context.abort(error.code, clip(str(error)), error.trailers())
    except Exception as error:  # noqa: BLE001 - the one outermost net of a call
        _log.exception("a bug")
        told = ShimError(Reason.INTERNAL_ERROR, f"bug in the daemon: {error!r}")
        await context.abort(told.code, clip(str(told)), told.trailers())

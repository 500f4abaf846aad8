"""The daemon of one VM: owns QEMU, its monitor and the channel into the guest.

Everything runs in the main thread's event loop, for QEMU's sake: the parent
death signal that ties it to us fires when the thread that spawned it ends.
QEMU and its helper are spawned before gRPC starts its threads.

The parts come up in the order in which `_running` has them and go down in the
reverse, whatever ends the VM: Host.Stop, SIGTERM or SIGINT, the starter's end
(a tied VM), QEMU's own end, or a failed boot.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from grpc import aio

from innkeeper.shim import accel, cold, images, link, topology
from innkeeper.shim.decoding import TypedDecoding
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.forwarding import joining, record
from innkeeper.shim.forwarding.forwards import Forwards
from innkeeper.shim.guest import Guest
from innkeeper.shim.helpers import Helpers
from innkeeper.shim.host_service import HostService
from innkeeper.shim.machine import MachineShape
from innkeeper.shim.plug import Plugger
from innkeeper.shim.progress import Phase, Progress, Reporter
from innkeeper.shim.proxy import CHANNEL_OPTIONS, SERVER_OPTIONS, GuestProxy
from innkeeper.shim.qemu import Qemu
from innkeeper.shim.table import Table
from innkeeper.shim.topology import Layout, PortPool
from innkeeper.shim.transport.bridge import CHANNEL_OPTIONS as BRIDGE_OPTIONS
from innkeeper.shim.transport.bridge import Bridge
from innkeeper.shim.vm import DEFAULT_GRACE, Parts, RunningVm
from innkeeper.v1 import host_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from innkeeper.shim.link import Link
    from innkeeper.shim.spec import VmSpec
    from innkeeper.shim.statedir import StateDir

# What calls in progress get to end with their own status once the VM is down.
_LAST_CALLS = 2.0

_log = logging.getLogger(__name__)


class Daemon:
    """One VM, from its spec to its end."""

    def __init__(self, spec: VmSpec, state: StateDir, reporter: Reporter, leash: int) -> None:
        self._spec = spec
        self._state = state
        self._paths = state.paths(spec.name)
        self._reporter = reporter
        self._leash = leash
        self._asked_to_stop = asyncio.Event()
        self._forwards = Forwards((), patient=True)

    async def run(self) -> int:
        """The process's exit status.

        After a failure the pipe for progress stays open until the process ends:
        that is how its starter knows that the VM's name is free again.
        """
        self._listen_for_the_end()
        try:
            await self._serve()
        except ShimError as error:
            self._fail(error)
            return 1
        except Exception as error:  # noqa: BLE001 - its starter is told, whatever it is
            _log.exception("a bug")
            self._fail(ShimError(Reason.INTERNAL_ERROR, f"bug in the daemon: {error!r}"))
            return 1
        return 0

    async def _serve(self) -> None:
        shape, way, table = self._plan()
        # Before there is a VM: a port that is taken is the start's failure.
        with closing(Forwards(self._spec.forwards, patient=True)) as self._forwards:
            self._record_forwards()
            async with self._running(shape, way, table) as vm:
                try:
                    await self._until_over(vm)
                finally:
                    await vm.stop(DEFAULT_GRACE)

    async def _until_over(self, vm: RunningVm) -> None:
        """From boot to end; raises when the VM ended though nobody asked it to."""
        over = asyncio.create_task(self._asked_to_stop.wait())
        life = asyncio.create_task(self._live(vm))
        try:
            await asyncio.wait({over, life}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done() and not vm.is_stopping:
                await life
        finally:
            for task in (over, life):
                task.cancel()
            await asyncio.gather(over, life, return_exceptions=True)

    async def _live(self, vm: RunningVm) -> None:
        self._reporter.progress(Progress(phase=Phase.BOOTING, seconds=0, text="QEMU runs"))
        limit = self._spec.boot_timeout or vm.parts.shape.accel.boot_limit
        if not self._spec.tied:
            await vm.boot(limit, self._report_and_slip_leash)
        else:
            await vm.boot(limit, self._reporter.progress)
        self._reporter.close()
        forwarding = asyncio.create_task(self._forward(vm.parts.guest.channel))
        try:
            await vm.parts.qemu.gone.wait()
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
        if vm.parts.qemu.powered_off:
            _log.info("the guest has powered off")
            return
        raise vm.parts.qemu.explain(f"VM {self._spec.name}")

    async def _forward(self, channel: aio.Channel) -> None:
        try:
            await self._forwards.serve(channel, note=_log.info, changed=self._record_forwards)
        except Exception:  # noqa: BLE001 - they are not worth the VM
            _log.exception("a bug: the VM's forwards have ended")

    def _record_forwards(self) -> None:
        states = self._forwards.states
        if not states:
            return
        try:
            record.write(self._paths.directory, states)
        except OSError as error:
            _log.warning("what the VM's forwards do can't be shown: %s", error)

    def _report_and_slip_leash(self, step: Progress) -> None:
        """A VM that is up outlives its starter, unless it is tied to it."""
        if step.phase is Phase.AGENT:
            asyncio.get_running_loop().remove_reader(self._leash)
        self._reporter.progress(step)

    def _plan(self) -> tuple[MachineShape, Link, Table]:
        spec = self._spec
        way = link.plan(spec.transport, self._paths)
        _log.info("transport %s: %s", way.choice.kind, way.choice.why)
        shape = MachineShape(
            name=spec.name,
            image=images.find_image(spec.image),
            accel=accel.choose(spec.accel),
            memory=spec.memory,
            cpus=spec.cpus,
            topology=topology.build(_layout(spec)),
            link=way.qemu,
            console_log=self._paths.console_log,
            cold_disks=spec.cold_disks,
            cmdline=spec.cmdline,
            max_memory=spec.max_memory,
            max_cpus=spec.max_cpus,
            nvdimm=spec.nvdimm,
            iommu=spec.iommu,
            private_memory=spec.private_memory,
            shares_9p=spec.shares_9p,
        )
        table = Table(PortPool(ports=shape.topology.ports), iommu=spec.iommu)
        words = cold.place(spec.cold, table, shape.setting)
        return replace(shape, cold=words), way, table

    @asynccontextmanager
    async def _running(
        self, shape: MachineShape, way: Link, table: Table
    ) -> AsyncIterator[RunningVm]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(link.running_helper(way, self._paths))
            helpers = Helpers(self._paths.qemu_log)
            stack.callback(table.release)
            stack.push_async_callback(helpers.close)
            await cold.start_helpers(table, helpers)
            qemu = await Qemu.start(shape, self._paths.qemu_log)
            stack.push_async_callback(qemu.end)
            await stack.enter_async_context(Bridge(way.transport, self._paths.channel))
            channel = aio.insecure_channel(
                f"unix:{self._paths.channel}",
                options=(*CHANNEL_OPTIONS, *BRIDGE_OPTIONS, *joining.CHANNEL_OPTIONS),
            )
            stack.push_async_callback(channel.close)
            guest = Guest(channel)
            # Before QEMU: one that it hangs up on would look as if it had failed.
            stack.push_async_callback(helpers.close)
            parts = Parts(
                shape=shape,
                qemu=qemu,
                link=way,
                guest=guest,
                table=table,
                plugger=Plugger(qemu.monitor, guest, table, helpers),
                helpers=helpers,
            )
            vm = RunningVm(parts)
            stack.push_async_callback(vm.parts.plugger.close)
            await stack.enter_async_context(self._answering(vm, channel))
            self._write_record(vm)
            yield vm

    @asynccontextmanager
    async def _answering(self, vm: RunningVm, guest: aio.Channel) -> AsyncIterator[None]:
        server = aio.server(
            handlers=(GuestProxy(guest, vm),),
            interceptors=(TypedDecoding(),),
            options=SERVER_OPTIONS,
        )
        host_pb2_grpc.add_HostServicer_to_server(HostService(vm), server)
        server.add_insecure_port(f"unix:{self._paths.api}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(_LAST_CALLS)

    def _write_record(self, vm: RunningVm) -> None:
        record = {
            "name": self._spec.name,
            "daemon_pid": os.getpid(),
            "qemu_pid": vm.parts.qemu.pid,
            "started": time.time(),
        }
        fresh = self._paths.record.with_suffix(".new")
        fresh.write_text(json.dumps(record))
        fresh.rename(self._paths.record)

    def _listen_for_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop.set)
        # The starter holds the other end and never writes: readable means it is gone.
        loop.add_reader(self._leash, self._note_starter_gone)

    def _note_starter_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._leash)
        self._asked_to_stop.set()

    def _fail(self, error: ShimError) -> None:
        logs = self._state.keep_logs(self._spec.name)
        _log.error("%s", error)
        hints = (error.hint, self._other_accelerator(error.reason), f"logs: {logs}")
        hint = "; ".join(text for text in hints if text)
        self._reporter.failed(ShimError(error.reason, error.message, hint=hint))

    def _other_accelerator(self, reason: Reason) -> str:
        """KVM is the part of a start that depends on the machine most."""
        failed = reason in (Reason.QEMU_GONE, Reason.BOOT_FAILED)
        if not failed or accel.choose(self._spec.accel) is not accel.Accelerator.KVM:
            return ""
        return "KVM may not work here: take --accel tcg"


def _layout(spec: VmSpec) -> Layout:
    return Layout(
        ports=spec.ports,
        bridge=spec.bridge,
        switch=spec.switch,
        second_root=spec.second_root,
    )

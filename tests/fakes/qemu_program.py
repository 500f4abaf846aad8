"""A program that passes for QEMU with a guest in it: run as `qemu-system-x86_64`.

It takes the descriptors and the serial port's path from the command line that
the shim made, speaks QMP, writes a boot's console output, and behind the serial
port, with its sessions, is a gRPC server with just the services that the daemon
itself needs. FAKE_QEMU in the environment says how it is to go wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import tempfile
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as aio_health  # type: ignore[attr-defined]

from innkeeper.v1 import (
    devices_pb2,
    devices_pb2_grpc,
    sandbox_pb2,
    sandbox_pb2_grpc,
    storages_pb2,
    storages_pb2_grpc,
)
from innkeeper.v1.session import Decoder, Encoder, End, Start
from tests.fakes.proxied_service import ProxiedService
from tests.fakes.qmp import FakeQmp

CONSOLE = (
    b"[    0.000000] Linux version 6.12.0\r\n",
    b"[    1.500000] innkeeper: booted\r\n",
)
PANIC = b"[    2.000000] Kernel panic - not syncing: Attempted to kill init!\r\n"


class _Devices(devices_pb2_grpc.DevicesServicer):
    """Takes every device at its word."""

    async def Attach(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.AttachDevicesRequest, context: object
    ) -> devices_pb2.AttachDevicesResponse:
        attached = [
            devices_pb2.AttachedDevice(device=device, pci_path=device.address.pci_path)
            for device in request.devices
        ]
        return devices_pb2.AttachDevicesResponse(attached=attached)

    async def Detach(  # noqa: N802 - gRPC's name
        self, request: devices_pb2.DetachDeviceRequest, context: object
    ) -> devices_pb2.DetachDeviceResponse:
        return devices_pb2.DetachDeviceResponse()


class _Storages(storages_pb2_grpc.StoragesServicer):
    """Has none."""

    async def List(  # noqa: N802 - gRPC's name
        self, request: storages_pb2.ListStoragesRequest, context: object
    ) -> storages_pb2.ListStoragesResponse:
        return storages_pb2.ListStoragesResponse()


class _Sandbox(sandbox_pb2_grpc.SandboxServicer):
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.asked = 0

    async def Shutdown(  # noqa: N802 - gRPC's name
        self,
        request: sandbox_pb2.ShutdownRequest,
        context: aio.ServicerContext[sandbox_pb2.ShutdownRequest, sandbox_pb2.ShutdownResponse],
    ) -> sandbox_pb2.ShutdownResponse:
        self.asked += 1
        if self._machine.mode == "agent-away" or (
            self._machine.mode == "agent-away-first" and self.asked == 1
        ):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent is away")
        if self._machine.mode == "refuses-shutdown":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
        if self._machine.mode != "ignores-shutdown":
            self._machine.power_off()
        return sandbox_pb2.ShutdownResponse()


class Machine:
    """One run, from the command line to the exit."""

    def __init__(self, argv: list[str], mode: str) -> None:
        words = " ".join(argv)
        self.mode = mode
        self._monitor = socket.socket(fileno=_number(words, r"id=monitor,fd=(\d+)"))
        self._console = _number(words, r"-add-fd fd=(\d+),set=1")
        self._port = _text(words, r"socket,id=agent0,path=([^,]+)")
        self._qmp = FakeQmp()
        self._off = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve_qmp())
            group.create_task(self._quit_when_told())
            group.create_task(self._guest())
            await self._off.wait()
            # As a machine ends: connections are cut, not wound up.
            os._exit(0)

    def power_off(self) -> None:
        self._qmp.event("SHUTDOWN", {"guest": True, "reason": "guest-shutdown"})
        # The answer to Shutdown comes before the guest begins to stop.
        asyncio.get_running_loop().call_later(0.05, self._off.set)

    async def _serve_qmp(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._monitor)
        await self._qmp.serve(reader, writer)

    async def _quit_when_told(self) -> None:
        await self._qmp.until("quit")
        self._off.set()

    async def _guest(self) -> None:
        await self._qmp.negotiated.wait()
        self._say(*CONSOLE)
        if self.mode == "panics":
            await asyncio.start_unix_server(self._panic, self._port)
            return
        with tempfile.TemporaryDirectory(prefix="ik-") as folder:
            agent = f"{folder}/agent.sock"
            if self.mode != "never-answers":
                await self._serve_agent(agent)
            server = await asyncio.start_unix_server(_Port(agent).serve, self._port)
            async with server:
                await server.serve_forever()

    async def _panic(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Once the daemon looks for the agent, so that its boot has begun."""
        self._say(PANIC)
        self._qmp.event("SHUTDOWN", {"guest": True, "reason": "guest-reset"})
        self._off.set()

    async def _serve_agent(self, path: str) -> None:
        server = aio.server(handlers=(ProxiedService().handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(  # type: ignore[no-untyped-call]
            aio_health.HealthServicer(), server
        )
        devices_pb2_grpc.add_DevicesServicer_to_server(_Devices(), server)  # type: ignore[abstract]
        storages_pb2_grpc.add_StoragesServicer_to_server(_Storages(), server)  # type: ignore[abstract]
        sandbox_pb2_grpc.add_SandboxServicer_to_server(_Sandbox(self), server)  # type: ignore[abstract]
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._server = server

    def _say(self, *lines: bytes) -> None:
        for line in lines:
            os.write(self._console, line)


class _Port:
    """The guest's end of the serial port, with its relay."""

    def __init__(self, agent: str) -> None:
        self._agent = agent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder, encoder = Decoder(), Encoder()
        down: asyncio.Task[None] | None = None
        to_agent: asyncio.StreamWriter | None = None
        while wire := await reader.read(65536):
            for event in decoder.feed(wire):
                if isinstance(event, Start):
                    from_agent, to_agent = await asyncio.open_unix_connection(self._agent)
                    writer.write(encoder.start(event.nonce))
                    down = asyncio.create_task(_pump(from_agent, writer, encoder))
                elif to_agent is not None and not isinstance(event, End):
                    to_agent.write(event)
                    await to_agent.drain()
        if down is not None:
            down.cancel()
        if to_agent is not None:
            to_agent.close()
        writer.close()


async def _pump(source: asyncio.StreamReader, port: asyncio.StreamWriter, encoder: Encoder) -> None:
    while data := await source.read(65536):
        port.write(encoder.data(data))
        await port.drain()


def _text(words: str, pattern: str) -> str:
    found = re.search(pattern, words)
    if found is None:
        raise SystemExit(f"fake qemu: nothing like {pattern} in: {words}")
    return found[1]


def _number(words: str, pattern: str) -> int:
    return int(_text(words, pattern))


def main(argv: list[str]) -> Any:
    mode = os.environ.get("FAKE_QEMU", "")
    if mode == "refuses":
        raise SystemExit("qemu-system-x86_64: -device nonsense: 'nonsense' is not a valid device")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(argv, mode))


async def _run(argv: list[str], mode: str) -> None:
    await Machine(argv, mode).run()


if __name__ == "__main__":
    main(sys.argv[1:])

"""QEMU's end of a QMP connection: the wire format, the commands of hot-plug, and no machine.

Its answers are those of QEMU 7.2; `tests/vm/test_shim_qemu.py` puts the same
questions to a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from innkeeper.shim.qmp import Monitor

GREETING = {"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 22}}, "capabilities": []}}


class RefusedError(Exception):
    """An error answer: QMP's class and text."""

    def __init__(self, text: str, error_class: str = "GenericError") -> None:
        super().__init__(text)
        self.error_class = error_class


@dataclass(slots=True)
class FakeQmp:
    """The tables of a QEMU, and how it is to misbehave."""

    nodes: set[str] = field(default_factory=set)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    netdevs: dict[str, dict[str, Any]] = field(default_factory=dict)
    chardevs: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of nodes; 1024 where nothing is said."""
    types: set[str] = field(default_factory=set)
    """Device types that a question for types finds."""
    cpus: list[dict[str, Any]] = field(default_factory=list)
    """Places for CPUs, as `query-hotpluggable-cpus` tells them."""
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    """Names in the order in which they came, without what is only asked."""
    refuse: dict[str, str] = field(default_factory=dict)
    """Command, or command and id with a blank between, to error text."""
    slots: bool = True
    """Removing one function of a slot removes them all, as guests do it."""
    silent: set[str] = field(default_factory=set)
    """Drivers of devices that go without an event."""
    lets_go: bool = True
    """The guest's kernel releases a device when it is asked to."""
    drops: int = 0
    """So many devices are removed again by themselves right after they were added."""
    drops_at_status: set[str] = field(default_factory=set)
    """These are removed by themselves when the status is asked for."""
    negotiated: asyncio.Event = field(default_factory=asyncio.Event)
    """The first command, which ends the negotiation, was answered."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._send(GREETING)
        async for message in _messages(reader):
            await self._answer(message)
            await writer.drain()
            self.negotiated.set()

    def release(self, device_id: str) -> None:
        """The guest lets go, at last: QEMU's two events, the inner one without an id."""
        driver = self.devices.pop(device_id)["driver"]
        if driver in self.silent:
            return
        self._deleted(device_id)

    def _deleted(self, device_id: str) -> None:
        path = f"/machine/peripheral/{device_id}"
        self.event("DEVICE_DELETED", {"path": f"{path}/virtio-backend"})
        self.event("DEVICE_DELETED", {"device": device_id, "path": path})

    def event(self, name: str, data: Mapping[str, object]) -> None:
        self._send({"event": name, "data": data, "timestamp": {"seconds": 1, "microseconds": 0}})

    async def until(self, command: str, times: int = 1) -> None:
        """Waits until a command has been taken so many times."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.commands.count(command) >= times)

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()

    async def _answer(self, message: dict[str, Any]) -> None:
        command, arguments = message["execute"], message.get("arguments") or {}
        if not command.startswith(("query-", "qmp_", "qom-")):
            async with self.changed:
                self.commands.append(command)
                self.changed.notify_all()
        try:
            for key in (command, f"{command} {_subject(arguments)}"):
                if key in self.refuse:
                    raise RefusedError(self.refuse[key])
            result = self._do(command, arguments)
        except RefusedError as error:
            told = {"class": error.error_class, "desc": str(error)}
            self._send({"error": told, "id": message.get("id")})
        else:
            self._send({"return": result, "id": message.get("id")})
            self._follow_up(command, arguments)

    def _do(self, command: str, arguments: dict[str, Any]) -> object:
        make = getattr(self, "_do_" + command.replace("-", "_"), None)
        if make is None:
            raise RefusedError(f"The command {command} has not been found", "CommandNotFound")
        told = make(arguments)
        return {} if told is None else told

    def _do_blockdev_add(self, arguments: dict[str, Any]) -> None:
        self.nodes.add(arguments["node-name"])

    def _do_blockdev_del(self, arguments: dict[str, Any]) -> None:
        self._close_node(arguments["node-name"])

    def _do_object_add(self, arguments: dict[str, Any]) -> None:
        self.objects[arguments["id"]] = arguments

    def _do_object_del(self, arguments: dict[str, Any]) -> None:
        self._drop(self.objects, arguments["id"], "object")

    def _do_netdev_add(self, arguments: dict[str, Any]) -> None:
        self.netdevs[arguments["id"]] = arguments

    def _do_netdev_del(self, arguments: dict[str, Any]) -> None:
        self._drop(self.netdevs, arguments["id"], "netdev")

    def _do_chardev_add(self, arguments: dict[str, Any]) -> object:
        """Connects, as QEMU does before it answers."""
        path = arguments["backend"]["data"]["addr"]["data"]["path"]
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise RefusedError(f"Failed to connect to '{path}': {error.strerror}") from None
        self.chardevs[arguments["id"]] = arguments | {"connection": connection}
        return {}

    def _do_chardev_remove(self, arguments: dict[str, Any]) -> None:
        if arguments["id"] in self.chardevs:
            self.chardevs[arguments["id"]]["connection"].close()
        self._drop(self.chardevs, arguments["id"], "Chardev")

    def _do_query_named_block_nodes(self, _arguments: dict[str, Any]) -> object:
        return [
            {"node-name": node, "image": {"virtual-size": self.sizes.get(node, 1024)}}
            for node in sorted(self.nodes)
        ]

    def _do_block_resize(self, arguments: dict[str, Any]) -> None:
        self.sizes[arguments["node-name"]] = arguments["size"]

    def _do_qom_list_types(self, arguments: dict[str, Any]) -> object:
        name = arguments["implements"]
        return [{"name": name, "parent": "pci-device"}] if name in self.types else []

    def _do_query_hotpluggable_cpus(self, _arguments: dict[str, Any]) -> object:
        return self.cpus

    def _do_query_memory_devices(self, _arguments: dict[str, Any]) -> object:
        memory = [each for each in self.devices.values() if "memdev" in each]
        sizes = {each["id"]: self.objects[each["memdev"]]["size"] for each in memory}
        return [{"type": "dimm", "data": {"id": id_, "size": sizes[id_]}} for id_ in sizes]

    def _do_device_add(self, arguments: dict[str, Any]) -> None:
        self._add_device(arguments)

    def _do_device_del(self, arguments: dict[str, Any]) -> None:
        self._known(arguments["id"])

    def _do_qom_list(self, _arguments: dict[str, Any]) -> object:
        """Of /machine/peripheral, the one that is asked for."""
        return [{"name": name, "type": "child<x>"} for name in self.devices]

    def _do_query_status(self, _arguments: dict[str, Any]) -> object:
        for device_id in self.drops_at_status & self.devices.keys():
            self.release(device_id)
        return {"running": True, "singlestep": False, "status": "running"}

    def _do_qmp_capabilities(self, _arguments: dict[str, Any]) -> None:
        pass

    def _do_quit(self, _arguments: dict[str, Any]) -> None:
        pass

    def _follow_up(self, command: str, arguments: dict[str, Any]) -> None:
        if command == "device_add" and self.drops:
            self.drops -= 1
            self.release(arguments["id"])
        if command == "device_del" and self.lets_go:
            for device_id in self.slot_of(arguments["id"]):
                self.release(device_id)

    def slot_of(self, device_id: str) -> list[str]:
        """The device, and those that go with it, function 0 first."""
        bus = self.devices[device_id].get("bus")
        if not self.slots or bus is None or "addr" not in self.devices[device_id]:
            return [device_id]
        there = [name for name, each in self.devices.items() if each.get("bus") == bus]
        return sorted(there, key=lambda name: str(self.devices[name]["addr"]))

    @staticmethod
    def _drop(table: dict[str, dict[str, Any]], name: str, what: str) -> None:
        if name not in table:
            raise RefusedError(f"{what} '{name}' not found")
        del table[name]

    def _close_node(self, node: str) -> None:
        if node not in self.nodes:
            raise RefusedError(f"Failed to find node with node-name='{node}'")
        if any(device.get("drive") == node for device in self.devices.values()):
            raise RefusedError(f"Node {node} is in use")
        self.nodes.remove(node)

    def _add_device(self, arguments: dict[str, Any]) -> None:
        if arguments["id"] in self.devices:
            raise RefusedError(f"Duplicate device ID '{arguments['id']}'")
        if "drive" in arguments and arguments["drive"] not in self.nodes:
            raise RefusedError(
                f"Property 'virtio-blk-device.drive' can't find value '{arguments['drive']}'"
            )
        self.devices[arguments["id"]] = arguments

    def _known(self, device_id: str) -> None:
        if device_id not in self.devices:
            raise RefusedError(f"Device '{device_id}' not found", "DeviceNotFound")

    def _send(self, message: Mapping[str, object]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\r\n")


def _subject(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("id") or arguments.get("node-name") or "")


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """JSON objects one after the other: clients need not end a line, and QEMU
    does not wait for one."""
    decoder, text = json.JSONDecoder(), ""
    while data := await reader.read(4096):
        text = (text + data.decode()).lstrip()
        while text:
            try:
                message, end = decoder.raw_decode(text)
            except ValueError:
                break
            text = text[end:].lstrip()
            yield message


@contextlib.asynccontextmanager
async def connected(qmp: FakeQmp) -> AsyncIterator[Monitor]:
    """A monitor that talks to it."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    serving = asyncio.create_task(qmp.serve(reader, writer))
    monitor = Monitor("fake")
    try:
        await monitor.connect(ours)
        yield monitor
    finally:
        await monitor.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        for chardev in qmp.chardevs.values():
            chardev["connection"].close()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

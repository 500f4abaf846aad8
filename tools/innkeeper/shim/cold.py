"""Hardware that is in its port from the start, as words of QEMU's command line.

It is the same hardware as what is plugged later, and has the same records: its
ports are taken, it is listed, and, where QEMU can do it, unplugged.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from google.protobuf import json_format

from innkeeper.shim import hardware
from innkeeper.shim.hardware import Place
from innkeeper.shim.hardware.base import bad_field
from innkeeper.shim.plugged import Wanted
from innkeeper.v1 import host_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innkeeper.shim.hardware import Setting
    from innkeeper.shim.helpers import Helpers
    from innkeeper.shim.plugged import Plug
    from innkeeper.shim.spec import ColdDevice
    from innkeeper.shim.table import Table

# The command line's words for the monitor's commands.
_OPTIONS = {
    "blockdev-add": "-blockdev",
    "object-add": "-object",
    "netdev_add": "-netdev",
    "device_add": "-device",
}


def place(devices: Sequence[ColdDevice], table: Table, setting: Setting) -> tuple[str, ...]:
    """Takes their ports, and gives QEMU's options. Raises BAD_FIELD, what `admit` does, and
    what a kind finds wrong on this host."""
    try:
        return tuple(word for device in devices for word in _placed(device, table, setting))
    except BaseException:
        table.release()
        raise


async def start_helpers(table: Table, helpers: Helpers) -> None:
    """Those of what `place` took: QEMU connects to them when it starts. Raises HOST_LACKS."""
    for plug in table.plugs:
        for function in plug.functions:
            helper = function.hardware.helper(function.names)
            if helper is not None:
                await helpers.start(function.id, helper)


def _placed(device: ColdDevice, table: Table, setting: Setting) -> list[str]:
    plug = table.admit((_wanted(device, setting),), device.port)
    table.adopt(plug)
    return _options(plug)


def _wanted(device: ColdDevice, setting: Setting) -> Wanted:
    try:
        message = json_format.Parse(device.hardware, host_pb2.Hardware())
    except json_format.ParseError as error:
        raise bad_field("cold", f"cold device {device.id}: {error}") from None
    kind = hardware.parse(message, device.id, setting)
    if kind.not_cold:
        raise bad_field("cold", f"cold device {device.id}: {kind.not_cold}", "plug it instead")
    if kind.place is not Place.PORT:
        raise bad_field("cold", f"cold device {device.id}: {kind.model} goes into no port")
    return Wanted(id=device.id, hardware=kind)


def _options(plug: Plug) -> list[str]:
    words: list[str] = []
    for function in plug.functions:
        function.hardware = function.hardware.claim()
        for backend in function.hardware.backends(function.names):
            plug.opened.append(backend)
            words += _option(backend.add, backend.arguments)
    for part in plug.parts:
        words += _option("device_add", part.arguments)
    for function in plug.functions:
        for child in function.hardware.children(function.names):
            words += _option("device_add", child)
    return words


def _option(command: str, arguments: Mapping[str, object]) -> tuple[str, str]:
    return _OPTIONS[command], json.dumps(arguments)

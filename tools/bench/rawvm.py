"""A VM with the same kernel, root, machine and port as any, and with `pump.py` as PID 1.

No agent and no relay is in it, and on this side neither daemon nor gRPC: what the port
itself carries is left. The image is not changed: the kernel unpacks a second archive over
its initrd, and starts the script of that (`rdinit=`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import pump
from bench.meter import Meter
from innkeeper.image.cpio import write_cpio
from innkeeper.image.tree import Tree
from innkeeper.shim import accel as accelerators
from innkeeper.shim import link, topology
from innkeeper.shim.images import find_image
from innkeeper.shim.machine import MachineShape
from innkeeper.shim.qemu import Qemu
from innkeeper.shim.statedir import VmPaths
from innkeeper.shim.transport.choose import Kind
from innkeeper.shim.transport.serial import PORT_NAME
from innkeeper.shim.transport.stream import SocketStream, connect_unix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from innkeeper.image.model import Image
    from innkeeper.shim.link import Link

_INIT = "bench-init"
_PROGRAM = "pump.py"
_SCRIPT = """\
#!/bin/sh
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for module in /modules/*.ko; do
    [ ! -e "$module" ] || insmod "$module"
done
until /find-root; do
    (timeout 1 uevent /find-root; true) 2>/dev/null
done
mount -t ext4 -o ro "/dev/$(cat /run/root-disk)" /root
for each in dev proc sys; do mount -o move /$each /root/$each; done
exec chroot /root /usr/bin/python3 -I -S -c "$(cat /{program})" {words}
"""
_LIMIT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawVm:
    """What the VM is made of, beside the program that is its PID 1."""

    image: str
    accel: str
    transport: str
    memory: int = 512 << 20

    @contextlib.asynccontextmanager
    async def port(self, folder: Path) -> AsyncIterator[RawPort]:
        """Its one port, connected; files and sockets go into `folder`.

        Raises ShimError for a VM that does not come so far.
        """
        paths = VmPaths(directory=folder)
        way = link.plan(self.transport, paths)
        async with link.running_helper(way, paths), contextlib.AsyncExitStack() as stack:
            qemu = await Qemu.start(self._shape(way, paths), paths.qemu_log)
            stack.push_async_callback(qemu.end)
            stack.callback(way.transport.close)
            stream = await _connected(way, paths, qemu, self._boot_limit)
            stack.callback(stream.close)
            yield RawPort(stream)

    @property
    def _boot_limit(self) -> float:
        return accelerators.choose(self.accel).boot_limit

    def _shape(self, way: Link, paths: VmPaths) -> MachineShape:
        return MachineShape(
            name=paths.directory.name,
            image=_with_pump(find_image(self.image), paths.directory, way.choice.kind),
            accel=accelerators.choose(self.accel),
            memory=self.memory,
            cpus=1,
            topology=topology.build(topology.Layout(ports=0)),
            link=way.qemu,
            console_log=paths.console_log,
            cmdline=(f"rdinit=/{_INIT}",),
        )


class RawPort:
    """The connected port of a VM in which `pump.py` runs."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def out(self, pieces: int) -> float:
        """Bytes a second from the guest. Raises RuntimeError when it stops before the end."""
        await self._stream.write(f"out {pieces}\n".encode())
        meter = Meter()
        async with asyncio.timeout(_LIMIT):
            while meter.size < pieces * pump.PIECE:
                data = await self._stream.read()
                if not data:
                    break
                await meter.write(data)
        return meter.rate(pieces * pump.PIECE)

    async def into(self, pieces: int) -> float:
        """Bytes a second to the guest, until it has read them."""
        await self._stream.write(f"in {pieces}\n".encode())
        async with asyncio.timeout(_LIMIT):
            await self._hear(b"go\n")
            began = time.perf_counter()
            for _ in range(pieces):
                await self._stream.write(bytes(pump.PIECE))
            await self._hear(b"done\n")
        return pieces * pump.PIECE / (time.perf_counter() - began)

    async def _hear(self, line: bytes) -> None:
        """Raises RuntimeError for other words, and for the end."""
        heard = b""
        while len(heard) < len(line) and (data := await self._stream.read()):
            heard += data
        if heard != line:
            raise RuntimeError(f"the guest said {heard[:100]!r}, not {line!r}")


def _with_pump(image: Image, folder: Path, kind: Kind) -> Image:
    """The image with an initrd in `folder`, of its own and a second archive."""
    words = f"serial {PORT_NAME}" if kind is Kind.SERIAL else f"vsock {link.AGENT_PORT}"
    script = _SCRIPT.format(program=_PROGRAM, words=words)
    tree = Tree()
    tree.add_file(_INIT, script.encode(), executable=True, component="bench")
    tree.add_file(_PROGRAM, Path(pump.__file__).read_bytes(), component="bench")
    initrd = folder / "initrd.img"
    initrd.write_bytes(image.initrd_path.read_bytes() + write_cpio(tree))
    return replace(image, initrd=str(initrd.absolute()))


async def _connected(way: Link, paths: VmPaths, qemu: Qemu, limit: float) -> SocketStream:
    """A serial port is connected to before the guest looks whether it is."""
    if way.choice.kind is not Kind.SERIAL:
        await _until_ready(qemu, limit)
        stream = await way.transport.open(timeout=limit)
        if not isinstance(stream, SocketStream):
            raise TypeError(f"{way.choice.kind}: its stream is no bare socket")
        return stream
    stream = await connect_unix(paths.guest, timeout=limit)
    try:
        await _until_ready(qemu, limit)
    except BaseException:
        stream.close()
        raise
    return stream


async def _until_ready(qemu: Qemu, limit: float) -> None:
    """Raises QEMU_GONE, with the console's last lines, also when it only stays silent."""
    ready = asyncio.Event()

    def note(line: str) -> None:
        if pump.READY in line:
            ready.set()

    qemu.console.on_line(note)
    for line in qemu.console.tail():
        note(line)
    waits = {asyncio.create_task(each.wait()) for each in (ready, qemu.gone)}
    try:
        await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if not ready.is_set():
        raise qemu.explain(f"the VM without an agent was not ready within {limit:g} s")

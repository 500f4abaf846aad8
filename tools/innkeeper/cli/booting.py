"""A VM that is started for a command, with a display of its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.cli import netdns, nics, output
from innkeeper.image.model import Flavour
from innkeeper.shim.client import Vm, VmSpec, start_vm
from innkeeper.shim.images import find_image
from innkeeper.v1 import network_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence


async def boot(
    spec: VmSpec, interfaces: Sequence[nics.Nic] = (), dns: netdns.Change | None = None
) -> Vm:
    """Starts a VM, with a display of its progress on a terminal, and sets its interfaces
    and names up; where that fails, no VM is left."""
    if spec.shares_9p and find_image(spec.image).flavour is Flavour.CLOUD:
        output.warn("the kernel of the image cloud has no 9p: take --image generic, or --share")
    with output.busy(f"{spec.name}: starting") as show:
        vm = await start_vm(
            spec, on_progress=lambda at: show(f"{spec.name}: {at.text} ({at.seconds:.1f} s)")
        )
        try:
            await nics.set_up(vm, interfaces)
            if dns is not None:
                async with vm.channel() as channel:
                    await netdns.change(network_pb2_grpc.NetworkStub(channel), dns)
        except BaseException:
            await vm.end()
            raise
        return vm

"""`innkeeper update`: other limits for a container that runs."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Annotated

import typer
from grpc import aio

from innkeeper.cli import limits, options, output, refs, usage
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.v1 import containers_pb2, containers_pb2_grpc

_PERIOD = 100_000
_LONGEST_NUMBER = 2**22
_MOST_CPUS = 8192
_NONE = ("-1", "max", "unlimited")
_ASK_LIMIT = 5.0


def update(  # noqa: PLR0913 - typer makes each parameter an option
    vm: refs.VmArgument,
    container: refs.ContainerArgument,
    *,
    cpus: Annotated[
        str, typer.Option(metavar="N|max", help="CPU time, in CPUs: 0.5, 2; max: no limit.")
    ] = "",
    cpu_weight: Annotated[
        str, typer.Option(metavar="1-10000", help="Share where CPUs are short; usual is 100.")
    ] = "",
    cpuset: Annotated[
        str, typer.Option("--cpuset-cpus", metavar="LIST", help="Which CPUs it runs on: 0-2,5.")
    ] = "",
    memory: Annotated[
        str,
        typer.Option(
            "-m",
            "--memory",
            metavar="SIZE|max",
            help="As in 64M or 2G; a bare number means MiB.",
        ),
    ] = "",
    reservation: Annotated[
        str,
        typer.Option(
            "--memory-reservation", metavar="SIZE|0", help="Tried to be left to it; 0: none."
        ),
    ] = "",
    swap: Annotated[
        str,
        typer.Option(
            "--memory-swap",
            metavar="SIZE|-1",
            help="Memory and swap together, with -m; -1: any.",
        ),
    ] = "",
    pids: Annotated[
        str,
        typer.Option(
            "--pids-limit", "--pids", metavar="N|max", help="Processes and threads, at most."
        ),
    ] = "",
) -> None:
    """Changes the limits of a container that runs.

    What is not named stays as it is. `max` (or -1) takes a limit away. Below what it
    uses now, a limit of memory may end processes; that is told.

    \b
    Examples:
      innkeeper update -m 256M web main
      innkeeper update --cpus 1.5 --pids-limit 100 web main
      innkeeper update --cpus max --memory max web main
    """
    change = Change(
        cpus=cpus,
        cpu_weight=cpu_weight,
        cpuset=cpuset,
        memory=memory,
        reservation=reservation,
        swap=swap,
        pids=pids,
    )
    wait_for(_update(vm, container, change.to_oci()))
    output.say(container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Limits as they are written on the command line; empty: stays as it is."""

    cpus: str = ""
    cpu_weight: str = ""
    cpuset: str = ""
    memory: str = ""
    reservation: str = ""
    swap: str = ""
    pids: str = ""

    def to_oci(self) -> dict[str, dict[str, object]]:
        """OCI's linux.resources of what is given; raises typer.BadParameter."""
        members = {
            "cpu": self._cpu(),
            "memory": self._memory(),
            "unified": self._unified(),
            "pids": self._pids(),
        }
        found = {name: member for name, member in members.items() if member}
        if not found:
            raise typer.BadParameter("name what is to change, as in --memory 256M or --cpus 1.5")
        return found

    def _cpu(self) -> dict[str, object]:
        cpu: dict[str, object] = {}
        if self.cpus:
            cpu |= {"quota": _quota(self.cpus), "period": _PERIOD}
        if self.cpuset:
            cpu["cpus"] = limits.parse_cpuset(self.cpuset)
        return cpu

    def _memory(self) -> dict[str, object]:
        limit = -1 if self.memory in _NONE else limits.parse_bytes("--memory", self.memory)
        memory: dict[str, object] = {"limit": limit} if limit else {}
        if self.reservation:
            memory["reservation"] = _reservation(self.reservation)
        if self.swap:
            swap = "-1" if self.swap in _NONE else self.swap
            memory["swap"] = limits.parse_swap(swap, limit)
        return memory

    def _unified(self) -> dict[str, object]:
        """OCI's own word is the shares of cgroup v1, of which each runtime makes another weight."""
        if not self.cpu_weight:
            return {}
        weight = options.parse_number("--cpu-weight", self.cpu_weight, range(1, 10_001))
        return {"cpu.weight": str(weight)}

    def _pids(self) -> dict[str, object]:
        if not self.pids:
            return {}
        most = range(1, _LONGEST_NUMBER + 1)
        none = self.pids in _NONE
        return {"limit": -1 if none else options.parse_number("--pids-limit", self.pids, most)}


def _reservation(text: str) -> int:
    return 0 if text == "0" else limits.parse_bytes("--memory-reservation", text)


def _quota(text: str) -> int:
    """Microseconds in each period."""
    if text in _NONE:
        return -1
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?|\.[0-9]{1,3}", text):
        raise typer.BadParameter(f"--cpus {text}: write a number, as in 0.5 or 2, or max")
    quota = round(float(text) * _PERIOD)
    # The kernel's least is 1 ms, sched-bwc.rst.
    if not 1000 <= quota <= _MOST_CPUS * _PERIOD:
        raise typer.BadParameter(f"--cpus {text}: not possible, 0.01 to {_MOST_CPUS}")
    return quota


async def _update(vm: str, container: str, resources: dict[str, dict[str, object]]) -> None:
    request = containers_pb2.UpdateContainerRequest(
        id=container, resources=json.dumps(resources).encode()
    )
    async with find_vm(vm).channel() as channel:
        stub = containers_pb2_grpc.ContainersStub(channel)
        limit = resources.get("memory", {}).get("limit", -1)
        used = await _memory_used(channel, container) if limit != -1 else 0
        await stub.Update(request)
    if isinstance(limit, int) and 0 < limit < used:
        output.note(
            f"{container}: the new limit of memory, {output.size(limit)}, is less than the"
            f" {output.size(used)} that it used; the kernel may end processes of it"
        )


async def _memory_used(channel: aio.Channel, container: str) -> int:
    """0 when the guest can't tell, which is no reason not to change the limit."""
    with contextlib.suppress(aio.AioRpcError):
        request = containers_pb2.ContainerStatsRequest(id=container)
        stub = containers_pb2_grpc.ContainersStub(channel)
        return usage.Reading(now=await stub.Stats(request, timeout=_ASK_LIMIT)).memory
    return 0

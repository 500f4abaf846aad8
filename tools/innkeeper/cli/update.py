"""`innkeeper update`: other limits for a container that runs."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from innkeeper.cli import options, output, refs
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.v1 import containers_pb2, containers_pb2_grpc

_PERIOD = 100_000
_LONGEST_NUMBER = 2**22
_MOST_CPUS = 8192
_NONE = ("-1", "max", "unlimited")


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
        str, typer.Option(metavar="SIZE|max", help="As in 64M or 2G; a bare number means MiB.")
    ] = "",
    pids: Annotated[
        str,
        typer.Option(
            "--pids", "--pids-limit", metavar="N|max", help="Processes and threads, at most."
        ),
    ] = "",
) -> None:
    """Changes the limits of a container that runs.

    What is not named stays as it is. `max` (or -1) takes a limit away. Below what it
    uses now, a limit of memory may end processes.

    \b
    Examples:
      innkeeper update --memory 256M web main
      innkeeper update --cpus 1.5 --pids 100 web main
      innkeeper update --cpus max --memory max web main
    """
    resources = to_resources(
        cpus=cpus, cpu_weight=cpu_weight, cpuset=cpuset, memory=memory, pids=pids
    )
    wait_for(_update(vm, container, resources))
    output.say(container)


def to_resources(
    *, cpus: str = "", cpu_weight: str = "", cpuset: str = "", memory: str = "", pids: str = ""
) -> dict[str, dict[str, object]]:
    """OCI's linux.resources of what is given; raises typer.BadParameter."""
    cpu: dict[str, object] = {}
    if cpus:
        cpu |= {"quota": _quota(cpus), "period": _PERIOD}
    if cpuset:
        cpu["cpus"] = _cpu_list(cpuset)
    found: dict[str, dict[str, object]] = {"cpu": cpu} if cpu else {}
    if memory:
        found["memory"] = {"limit": -1 if memory in _NONE else options.parse_size(memory)}
    if cpu_weight:
        weight = options.parse_number("--cpu-weight", cpu_weight, range(1, 10_001))
        # OCI's own word is the shares of cgroup v1, of which each runtime makes another weight.
        found["unified"] = {"cpu.weight": str(weight)}
    if pids:
        most = range(1, _LONGEST_NUMBER + 1)
        limit = -1 if pids in _NONE else options.parse_number("--pids", pids, most)
        found["pids"] = {"limit": limit}
    if not found:
        raise typer.BadParameter("name what is to change, as in --memory 256M or --cpus 1.5")
    return found


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


def _cpu_list(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", text):
        raise typer.BadParameter(f"--cpuset-cpus {text}: write numbers and ranges, as in 0-2,5")
    return text


async def _update(vm: str, container: str, resources: dict[str, dict[str, object]]) -> None:
    request = containers_pb2.UpdateContainerRequest(
        id=container, resources=json.dumps(resources).encode()
    )
    async with find_vm(vm).channel() as channel:
        await containers_pb2_grpc.ContainersStub(channel).Update(request)

"""`innkeeper top`: containers and what they use, on a screen that goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from grpc import aio
from rich.console import Group
from rich.live import Live
from rich.text import Text

from innkeeper.cli import (
    again,
    completion,
    grids,
    keyboard,
    output,
    ps,
    refs,
    terminal,
    times,
    usage,
    watching,
)
from innkeeper.cli.errors import CliError
from innkeeper.cli.interrupts import Interrupts
from innkeeper.cli.loop import wait_for
from innkeeper.cli.stats import second
from innkeeper.shim.client import find_vm
from innkeeper.shim.errors import printable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Sequence

    from innkeeper.cli.usage import Reading
    from innkeeper.shim.client import Vm
    from innkeeper.v1.containers_pb2 import ContainerStatus
    from innkeeper.v1.processes_pb2 import ProcessInfo

CONTAINERS = (usage.RATES[0], "STATE", *usage.RATES[1:])
PROCESSES = ("PID", "UID", "STATE", "CPU %", "CPU", "MEMORY", "THREADS", "COMMAND")
_ENDED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
_KEYS = "q: quit   c, m: sort by CPU, memory"


def top(
    vm: refs.VmArgument,
    container: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER",
            help="Only this one.",
            autocompletion=completion.containers,
            show_default=False,
        ),
    ] = "",
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it once, for scripts.")] = False,
    interval: watching.IntervalOption = 2,
) -> None:
    """Shows what containers use, on a screen that goes on.

    Of one alone its processes too.

    CPU is the share of one CPU (two busy ones are 200), MEMORY is without the page cache
    that the kernel would give up first, network and disks are bytes a second. Keys: q
    quits, c sorts by CPU, m by memory. For programs there is `stats --json`.

    \b
    Examples:
      innkeeper top web
      innkeeper top web main
      innkeeper top --once web main
    """
    watching.check_interval(interval)
    if not once and not terminal.is_ours():
        raise CliError(
            "stdin and stdout are not both a terminal",
            hint=f"innkeeper top --once {vm}, or innkeeper stats --json {vm}",
        )
    raise typer.Exit(wait_for((_once if once else _live)(vm, container, interval)))


class Busy:
    """The share of a CPU that each process had between the last two looks."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}
        self._at = 0.0
        self._percent: dict[int, float] = {}

    def look(self, processes: Sequence[ProcessInfo], at: float) -> None:
        """`at` in seconds, of a clock that never jumps."""
        passed, self._at = at - self._at, at
        former, self._seen = self._seen, {_key(each): each.cpu_micros for each in processes}
        self._percent = {
            key[0]: max(0, now - former[key]) / passed / 1e4
            for key, now in self._seen.items()
            if key in former and passed > 0
        }

    def percent(self, pid: int) -> float | None:
        """Not known of one that has just come."""
        return self._percent.get(pid)


def _key(process: ProcessInfo) -> tuple[int, int]:
    """A pid may be another process's by the next look."""
    return process.pid, process.started_unix_micros


@dataclass(slots=True, kw_only=True)
class Screen:
    """What is shown, and how it is sorted."""

    vm: str
    container: str = ""
    """The only one to be shown; empty: those that run."""
    statuses: list[ContainerStatus] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    processes: Sequence[ProcessInfo] | None = None
    """Of the one container that is shown."""
    busy: Busy = field(default_factory=Busy)
    by_memory: bool = False

    @property
    def ids(self) -> list[str]:
        """Of the containers that are shown."""
        return [self.container] if self.container else refs.ids_in(self.statuses, refs.ALIVE)

    def press(self, key: str) -> bool:
        """Whether that was the last key."""
        if key in ("c", "m"):
            self.by_memory = key == "m"
        return key in ("q", "Q")

    def container_rows(self) -> list[list[str]]:
        """For `CONTAINERS`."""
        states = {each.id: ps.state(each) for each in self.statuses}
        rows = []
        for reading in sorted(self.readings, key=self._container_order):
            name, *rest = reading.row(rates=True)
            rows.append([name, states.get(reading.now.id, "-"), *rest])
        return rows

    def process_rows(self) -> list[list[str]]:
        """For `PROCESSES`."""
        found = sorted(self.processes or (), key=self._process_order)
        return [self._process_row(each) for each in found]

    def _container_order(self, reading: Reading) -> tuple[float, str]:
        return -(reading.memory if self.by_memory else reading.cpu_percent or 0), reading.now.id

    def _process_order(self, process: ProcessInfo) -> tuple[float, int]:
        most = process.resident_bytes if self.by_memory else self.busy.percent(process.pid) or 0
        return -most, process.pid

    def _process_row(self, process: ProcessInfo) -> list[str]:
        return [
            str(process.pid),
            str(process.user_id),
            printable(process.state),
            usage.percent(self.busy.percent(process.pid)),
            times.cpu_time(process.cpu_micros),
            output.size(process.resident_bytes),
            str(process.threads),
            ps.process_command(process),
        ]

    def drawn(self) -> Group:
        """All of it."""
        order = "memory" if self.by_memory else "CPU"
        title = f"{self.vm} {self.container}".rstrip()
        count = f"{len(self.readings)} of {len(self.statuses)} containers, by {order}"
        parts: list[Text | object] = [
            Text.assemble((title, "bold"), f"   {count}   ", (_KEYS, "dim")),
            Text(),
            grids.grid(CONTAINERS, self.container_rows()),
        ]
        if self.processes is not None:
            parts += [Text(), grids.grid(PROCESSES, self.process_rows())]
        return Group(*parts)  # type: ignore[arg-type]


async def _once(vm_name: str, container: str, interval: float) -> int:
    vm = find_vm(vm_name)
    screen = Screen(vm=vm_name, container=container)
    async with vm.channel() as channel, aclosing(_looks(vm, channel, screen, interval)) as looks:
        await second(looks)
    output.table(CONTAINERS, screen.container_rows())
    if screen.processes is not None:
        output.say("")
        output.table(PROCESSES, screen.process_rows())
    return 0


async def _live(vm_name: str, container: str, interval: float) -> int:
    vm = find_vm(vm_name)
    screen = Screen(vm=vm_name, container=container)
    async with vm.channel() as channel, Interrupts() as interrupts:
        looks = _looks(vm, channel, screen, interval)
        try:
            await _show(looks, screen)
        except asyncio.CancelledError as error:
            code = interrupts.code_of(error)
            # Ctrl-C is as good as q.
            return 0 if code == 128 + signal.SIGINT else code
    return 0


async def _show(looks: AsyncGenerator[list[Reading], None], screen: Screen) -> None:
    """Until the last key."""
    live = Live(screen.drawn(), console=output.out(), auto_refresh=False, screen=True)

    def draw() -> None:
        live.update(screen.drawn(), refresh=True)

    def press(key: str) -> bool:
        last = screen.press(key)
        draw()
        return last

    async def go_on() -> None:
        async with aclosing(looks):
            async for _ in looks:
                draw()

    def show() -> None:
        live.start()
        draw()

    try:
        with terminal.keys(show=show, hide=live.stop):
            await _first_of(go_on(), keyboard.read_keys(press))
    finally:
        live.stop()


async def _first_of(*works: Coroutine[None, None, None]) -> None:
    """Returns, or raises, with the first that ends; the others are cancelled."""
    tasks = {asyncio.create_task(work) for work in works}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _looks(
    vm: Vm, channel: aio.Channel, screen: Screen, interval: float
) -> AsyncGenerator[list[Reading], None]:
    """Brings the screen up to date once an interval, also when containers come and go."""
    readings = usage.Readings()
    await _look(vm, channel, screen)
    while True:
        async with aclosing(_rounds(vm, channel, screen.ids, readings, interval)) as rounds:
            async for screen.readings in rounds:
                ids = screen.ids
                await _look(vm, channel, screen)
                yield screen.readings
                if screen.ids != ids:
                    break


async def _rounds(
    vm: Vm, channel: aio.Channel, ids: Sequence[str], readings: usage.Readings, interval: float
) -> AsyncGenerator[list[Reading], None]:
    """As watching.rounds; of no containers an empty one, after which one looks again."""
    if not ids:
        yield []
        await asyncio.sleep(interval)
        yield []
        return
    async with aclosing(watching.rounds(vm, channel, ids, readings, interval)) as rounds:
        async for found in rounds:
            yield found


async def _look(vm: Vm, channel: aio.Channel, screen: Screen) -> None:
    screen.statuses = await again.ask(vm, channel, lambda: refs.containers(channel))
    screen.processes = None
    shown = [each for each in screen.ids if each in refs.ids_in(screen.statuses, refs.ALIVE)]
    if len(shown) == 1:
        await _look_inside(vm, channel, screen, shown[0])


async def _look_inside(vm: Vm, channel: aio.Channel, screen: Screen, container: str) -> None:
    try:
        found = await again.ask(vm, channel, lambda: ps.processes(channel, container))
    except aio.AioRpcError as error:
        # It ended just now.
        if error.code() not in _ENDED:
            raise
    else:
        screen.processes = found
        screen.busy.look(found, time.monotonic())

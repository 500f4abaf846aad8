"""`innkeeper wait`: until processes have ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import again, endings, options, output, records, refs
from innkeeper.cli.descriptors import FdSink
from innkeeper.cli.errors import CliError
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.v1 import processes_pb2, processes_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grpc import aio

    from innkeeper.shim.client import Vm
    from innkeeper.v1.processes_pb2 import WaitResponse

_TAIL = 4096


def wait(
    vm: refs.VmArgument,
    processes: refs.ProcessesArgument,
    *,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait no longer; 0 means for ever.")
    ] = 0,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Show the end of what each wrote to stderr.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Waits until processes have ended.

    Prints their exit codes, one a line. The exit code is the process's own; of several
    the first that is not 0. Why one ended that did not just exit goes to stderr (--json
    has it in full). Ends can be had for a minute after a container's removal.

    \b
    Examples:
      innkeeper wait web main
      innkeeper wait --timeout 60 --stderr web main/backup
      innkeeper wait --json web main db | jq -r '.[] | select(.exit.cause == "out-of-memory") | .id'
    """
    options.check_seconds("--timeout", timeout)
    refs_ = [refs.parse(word) for word in processes]
    ended = wait_for(_wait(vm, refs_, timeout or None, _TAIL if stderr else 0))
    if json:
        output.say_json([_record(*each) for each in zip(refs_, ended, strict=True)])
    else:
        wait_for(_tell(refs_, ended))
    raise typer.Exit(next((each.exit.code for each in ended if each.exit.code), 0))


async def _wait(
    vm_name: str, processes: Sequence[types_pb2.ProcessRef], timeout: float | None, tail: int
) -> list[WaitResponse]:
    vm = find_vm(vm_name)
    async with vm.channel() as channel:
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.gather(
                    *(_ended(vm, channel, process, tail) for process in processes)
                )
        except TimeoutError:
            names = ", ".join(map(refs.text, processes))
            raise CliError(f"not all have ended within {timeout:g} s: {names}") from None


async def _ended(
    vm: Vm, channel: aio.Channel, process: types_pb2.ProcessRef, tail: int
) -> WaitResponse:
    request = processes_pb2.WaitRequest(process=process, stderr_tail_bytes=tail)
    stub = processes_pb2_grpc.ProcessesStub(channel)
    return await again.ask(vm, channel, lambda: stub.Wait(request))


async def _tell(processes: Sequence[types_pb2.ProcessRef], ended: Sequence[WaitResponse]) -> None:
    for process, answer in zip(processes, ended, strict=True):
        if answer.stderr_tail:
            await FdSink(2, "stderr").write(answer.stderr_tail.rstrip(b"\n") + b"\n")
        if answer.exit.cause not in (types_pb2.END_CAUSE_UNSPECIFIED, types_pb2.END_CAUSE_EXITED):
            output.note(f"{refs.text(process)}: {endings.long(answer.exit)}")
        output.say(str(answer.exit.code))


def _record(process: types_pb2.ProcessRef, answer: WaitResponse) -> dict[str, object]:
    return {
        "id": refs.text(process),
        "exit": records.record(answer.exit),
        "why": endings.long(answer.exit),
        "stderr_tail": answer.stderr_tail.decode(errors="replace"),
    }

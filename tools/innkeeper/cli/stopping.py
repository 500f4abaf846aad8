"""How a container's first process is asked to end before it is made to."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

import grpc
import typer
from grpc import aio

from innkeeper.cli import output
from innkeeper.cli.errors import explain
from innkeeper.v1 import processes_pb2, processes_pb2_grpc, types_pb2

_DEFAULT_TIMEOUT = 10
_LONGEST = 3600
_ASK_LIMIT = 10.0
_ENDED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)
_REAL_TIME = re.compile(r"RTM(IN(\+[0-9]{1,2})?|AX(-[0-9]{1,2})?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """`--stop-signal`, `--stop-timeout`."""

    signal: str = "TERM"
    timeout: int = _DEFAULT_TIMEOUT
    """Seconds."""

    async def ask(self, channel: aio.Channel, process: types_pb2.ProcessRef) -> None:
        """Returns when it has ended, or its time is up. What goes wrong is told: the
        process is made to end afterwards in any case."""
        stub = processes_pb2_grpc.ProcessesStub(channel)
        request = processes_pb2.SignalRequest(process=process, name=self.signal)
        waited = processes_pb2.WaitRequest(process=process)
        try:
            await stub.Signal(request, timeout=_ASK_LIMIT)
            await stub.Wait(waited, timeout=self.timeout)
        except aio.AioRpcError as error:
            if error.code() not in (*_ENDED, grpc.StatusCode.DEADLINE_EXCEEDED):
                output.warn(f"the process could not be asked to end: {explain(error)}")


def parse(signal_name: str, timeout: int | None, of_image: str = "") -> Stop | None:
    """None when neither was said. Raises typer.BadParameter."""
    if timeout is not None and not 0 <= timeout <= _LONGEST:
        raise typer.BadParameter(f"--stop-timeout {timeout}: not possible, 0 to {_LONGEST}")
    name = _name(signal_name) if signal_name else ""
    if not name and timeout is None:
        return None
    return Stop(
        signal=name or (_name(of_image) if of_image else "TERM"),
        timeout=_DEFAULT_TIMEOUT if timeout is None else timeout,
    )


def _name(text: str) -> str:
    """Of a signal by number or name, SIG before it or not."""
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and int(name[:3]) in set(signal.Signals):
        name = signal.Signals(int(name)).name.removeprefix("SIG")
    known = {each.name.removeprefix("SIG") for each in signal.Signals}
    if name not in known and not _REAL_TIME.fullmatch(name):
        raise typer.BadParameter(f"--stop-signal {text}: is no signal, see signal(7)")
    return name

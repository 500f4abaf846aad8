"""innkeeper.v1.Processes, but for the streams (streams.py)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from agent.server.containers import TIMEOUT
from agent.server.convert import processes as convert
from agent.server.convert.signals import signal_number
from agent.server.routing import Bidi, Methods, Unary
from agent.server.streams import attach
from innkeeper.v1 import processes_pb2 as pb

if TYPE_CHECKING:
    from agent.server.calls import Call, Frames, Send
    from agent.server.facades import ProcessManager


class ProcessesService:
    """Converts, calls the manager, converts back."""

    def __init__(self, manager: ProcessManager) -> None:
        self._manager = manager

    @property
    def methods(self) -> Methods:
        return {
            "Exec": Unary(self.exec),
            "Signal": Unary(self.signal),
            "Wait": Unary(self.wait, endless=True),
            "Resize": Unary(self.resize),
            "Attach": Bidi(self.attach),
        }

    async def exec(self, request: pb.ExecRequest, call: Call) -> pb.ExecResponse:
        asked = convert.exec_request(request)
        timeout = call.within(asked.timeout, default=TIMEOUT)
        pid = await self._manager.exec(dataclasses.replace(asked, timeout=timeout))
        return pb.ExecResponse(pid=pid)

    async def signal(self, request: pb.SignalRequest, _call: Call) -> pb.SignalResponse:
        await self._manager.signal(
            convert.process_ref(request.process),
            signal_number(request.signal, request.name),
            all_processes=request.all_processes,
        )
        return pb.SignalResponse()

    async def wait(self, request: pb.WaitRequest, _call: Call) -> pb.WaitResponse:
        process = convert.process_ref(request.process)
        tail = convert.stderr_tail(request)
        end = await self._manager.wait(process)
        return pb.WaitResponse(
            exit=convert.exit_status(end),
            stderr_tail=self._manager.stderr_tail(process, tail) if tail else b"",
        )

    async def resize(self, request: pb.ResizeRequest, _call: Call) -> pb.ResizeResponse:
        process = convert.process_ref(request.process)
        await self._manager.resize(process, convert.window_size(request.size, "size"))
        return pb.ResizeResponse()

    async def attach(
        self, frames: Frames[pb.AttachRequest], _call: Call, send: Send[pb.AttachResponse]
    ) -> None:
        await attach(self._manager, frames, send)

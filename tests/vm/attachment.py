"""A host's side of Processes.Attach: sends frames, gathers what comes, by offset."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from innkeeper.v1 import processes_pb2 as pb
from innkeeper.v1 import processes_pb2_grpc, types_pb2
from tests.vm.guest import Finished

STDOUT, STDERR = types_pb2.STREAM_KIND_STDOUT, types_pb2.STREAM_KIND_STDERR
FRAME = 64 * 1024
PATIENCE = 120.0
"""Seconds for what a test waits for; only one that fails takes them."""


class Attachment:
    """One call, from its `opened` on; frames are read when somebody asks for something."""

    def __init__(
        self,
        stub: processes_pb2_grpc.ProcessesAsyncStub,
        *,
        timeout: float | None = PATIENCE,
        **opening: Any,
    ) -> None:
        """`timeout` is for the whole call; `opening` are the fields of OpenStreams."""
        self._call = stub.Attach(timeout=timeout)
        self._opening = pb.OpenStreams(**opening)
        self.opened: pb.StreamsOpened | None = None
        self.data: dict[int, bytes] = defaultdict(bytes)
        self.starts = {STDOUT: self._opening.stdout_offset, STDERR: self._opening.stderr_offset}
        self.ended: set[int] = set()
        self.sent = 0
        self.acknowledged = 0
        self.exit: types_pb2.ExitStatus | None = None
        self.gaps: list[pb.OutputGap] = []

    async def open(self) -> Attachment:
        await self._call.write(pb.AttachRequest(open=self._opening))
        await self.until(lambda: self.opened is not None)
        assert self.opened is not None
        self.sent = self.acknowledged = self.opened.stdin_offset
        return self

    @property
    def offsets(self) -> dict[str, int]:
        """Where the next attachment has to go on."""
        return {
            "stdout_offset": self.starts[STDOUT] + len(self.data[STDOUT]),
            "stderr_offset": self.starts[STDERR] + len(self.data[STDERR]),
        }

    async def send(self, data: bytes) -> None:
        """Input in frames of 64 KiB, without waiting for what is acknowledged."""
        for start in range(0, len(data), FRAME):
            part = data[start : start + FRAME]
            await self.frame(input=pb.InputFrame(offset=self.sent, data=part))
            self.sent += len(part)

    async def close_input(self) -> None:
        await self.frame(close_input=pb.CloseInput(offset=self.sent))

    async def frame(self, **parts: Any) -> None:
        await self._call.write(pb.AttachRequest(**parts))

    async def until(self, condition: Any) -> None:
        """Read frames until `condition()` holds. A call that ends before is an error."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                frame = await self._call.read()
                assert isinstance(frame, pb.AttachResponse), "the call is over"
                self._take(frame)

    async def until_text(self, text: bytes) -> None:
        await self.until(lambda: text in self.data[STDOUT])

    async def to_the_end(self) -> Finished:
        await self.until(lambda: self.exit is not None)
        assert self.exit is not None
        assert self.opened is not None
        return Finished(code=self.exit.code, stdout=self.data[STDOUT], stderr=self.data[STDERR])

    async def to_the_streams_ends(self) -> None:
        """Both output streams have ended, or the one of a terminal."""
        assert self.opened is not None
        streams = {STDOUT} if self.opened.terminal else {STDOUT, STDERR}
        await self.until(lambda: self.ended == streams)

    def cancel(self) -> None:
        self._call.cancel()

    def _take(self, frame: pb.AttachResponse) -> None:
        match frame.WhichOneof("frame"):
            case "opened":
                self.opened = frame.opened
            case "output":
                self._take_output(frame.output)
            case "input_ack":
                assert frame.input_ack.offset >= self.acknowledged
                self.acknowledged = frame.input_ack.offset
            case "gap":
                self._take_gap(frame.gap)
            case "exit":
                self.exit = frame.exit

    def _take_gap(self, gap: pb.OutputGap) -> None:
        """What comes next begins behind it."""
        assert getattr(gap, "from") == self.starts[gap.stream] + len(self.data[gap.stream])
        assert not self.data[gap.stream], "a gap in the middle: `data` has only one beginning"
        self.gaps.append(gap)
        self.starts[gap.stream] = gap.to

    def _take_output(self, frame: pb.OutputFrame) -> None:
        """The next byte is always the one after the last: nothing is missed or repeated."""
        assert frame.stream not in self.ended
        expected = self.starts[frame.stream] + len(self.data[frame.stream])
        assert frame.offset == expected
        self.data[frame.stream] += frame.data
        if frame.end:
            self.ended.add(frame.stream)

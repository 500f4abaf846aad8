"""How a process ended, in words."""

from __future__ import annotations

import pytest

from innkeeper.cli import endings
from innkeeper.v1 import types_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.containers]

OOM = pb.END_CAUSE_OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("status", "short", "long"),
    [
        (pb.ExitStatus(code=3, cause=pb.END_CAUSE_EXITED), "exited (3)", "exited with 3"),
        (
            pb.ExitStatus(code=139, signal=11, core_dumped=True, cause=pb.END_CAUSE_SIGNALLED),
            "killed (139)",
            "ended by SIGSEGV (core dumped)",
        ),
        (
            pb.ExitStatus(
                code=137, signal=9, cause=pb.END_CAUSE_KILLED_BY_AGENT, why="SIGKILL was asked for"
            ),
            "killed (137)",
            "ended by SIGKILL, which was asked for",
        ),
        (
            pb.ExitStatus(code=0, cause=pb.END_CAUSE_KILLED_BY_AGENT, why="SIGTERM was asked for"),
            "killed (0)",
            "exited with 0: SIGTERM was asked for",
        ),
        (
            pb.ExitStatus(code=137, signal=9, cause=pb.END_CAUSE_SANDBOX_GONE),
            "killed (137)",
            "ended by SIGKILL: its sandbox was destroyed",
        ),
        (pb.ExitStatus(code=255, cause=pb.END_CAUSE_LOST), "lost (255)", "ended; how is lost"),
        (pb.ExitStatus(code=137, signal=9), "killed (137)", "ended by SIGKILL"),
        (
            pb.ExitStatus(
                code=137, cause=OOM, out_of_memory=pb.OutOfMemory(victim="a\x1b[2J", pid=7)
            ),
            "out of memory (137)",
            "out of memory: the kernel killed a (pid 7), the guest had none left",
        ),
        (
            pb.ExitStatus(
                code=137,
                cause=OOM,
                out_of_memory=pb.OutOfMemory(victim="a", pid=7, limit_bytes=1 << 20, cgroup="/x"),
            ),
            "out of memory (137)",
            "out of memory: the kernel killed a (pid 7) at the limit of 1 MiB of /x",
        ),
    ],
)
def test_endings(status: pb.ExitStatus, short: str, long: str) -> None:
    assert (endings.short(status), endings.long(status)) == (short, long)

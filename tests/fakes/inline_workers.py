"""File-system calls without a worker process: made here and now, through the same messages.

`fail_at` refuses the n-th call (from 1), instead of making it.
"""

from __future__ import annotations

import json
import os
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.fileops import FileWorkers
from agent.linux import fsworker


class InlineWorkers(FileWorkers):
    """`calls` are the names of those that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fail_at = 0
        self.errno = 5

    async def settled(self, obj: str, patience: float | None = None) -> bool:
        return True

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: object) -> Any:
        self.calls.append(call)
        if len(self.calls) == self.fail_at:
            raise OSError(self.errno, f"{call}: {os.strerror(self.errno)}", obj)
        request = json.loads(json.dumps({"call": call, "arguments": arguments}))
        answer = json.loads(json.dumps(fsworker.answer(request)))
        if "errno" in answer:
            number = answer["errno"]
            raise OSError(number, f"{answer['call']}: {os.strerror(number)}", answer["object"])
        return answer["ok"]

"""The kernel's notices of files that a test's cgroupfs can't give: regular files have none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


class FakeNotice:
    """Stands in for `notices.Notice`; `told` is what the kernel would have called."""

    def __init__(self, fd: int, told: Callable[[], None]) -> None:
        self.fd = fd
        self.told = told
        self.path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        self.open = True
        self.gone = False
        """Whether the file's group has been removed."""

    def read(self) -> str | None:
        return None if self.gone else self.path.read_text()

    def close(self) -> None:
        if self.open:
            os.close(self.fd)
        self.open = False


def fake_notices(monkeypatch: pytest.MonkeyPatch, module: object) -> list[FakeNotice]:
    """Those that `module` makes from now on."""
    made: list[FakeNotice] = []

    def make(fd: int, told: Callable[[], None]) -> FakeNotice:
        made.append(FakeNotice(fd, told))
        return made[-1]

    monkeypatch.setattr(module, "Notice", make)
    return made

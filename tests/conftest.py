"""What every test gets: the project's root, and a guard against what is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# Speed is for `make bench`: no example has a deadline. In the guest hypothesis is not there.
with suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("style", "unit", "contract", "privileged", "vm")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses a test whose tier marker is not that of its folder, or that has no area."""
    for item in items:
        tier = item.path.relative_to(ROOT / "tests").parts[0]
        marks = {mark.name for mark in item.iter_markers()}
        if tier not in marks or len(marks & set(TIERS)) != 1:
            raise pytest.UsageError(
                f"{item.nodeid}: its marker must be `{tier}` alone of the tiers"
            )


@pytest.fixture(autouse=True)
def no_descriptors_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that opens must close: the same descriptors after it as before.

    Session-wide things (the VM of the vm tier, gRPC's own pollers) keep theirs;
    so the guard is for the tiers without them.
    """
    if request.node.get_closest_marker("unit") is None:
        yield
        return
    before = _descriptors()
    yield
    left = _descriptors() - before
    assert not left, f"left open: {sorted(left)}"


@pytest.fixture(autouse=True)
def no_zombies_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that starts programs must reap them: another one that waits for any child of this
    process would get theirs."""
    yield
    if request.node.get_closest_marker("unit") is None:
        return
    with suppress(ChildProcessError):
        left = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        assert left is None, f"not reaped: process {left.si_pid}"


def _descriptors() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
        found.add((int(name), target))
    return {(fd, target) for fd, target in found if not target.startswith("/proc/")}


@pytest.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """Fails a test that leaves a task behind in its loop."""
    before = asyncio.all_tasks()
    yield
    # The finalizer of this fixture runs in a task of its own.
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"left running: {left}"

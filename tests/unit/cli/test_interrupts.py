"""Signals while a process in the guest runs."""

from __future__ import annotations

import asyncio
import signal

import pytest

from innkeeper.cli.interrupts import Interrupts

pytestmark = [pytest.mark.unit, pytest.mark.operations]


async def ended_by(numbers: list[signal.Signals], *, forward: bool) -> tuple[list[int], int | None]:
    """Signals that a process got, and the exit code, when these come one by one."""
    forwarded: list[int] = []

    async def work() -> int:
        async with Interrupts() as interrupts:
            if forward:
                interrupts.forward_to(forwarded.append)
            for number in numbers:
                signal.raise_signal(number)
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 0.2)
            except asyncio.CancelledError as error:
                return interrupts.code_of(error)
            except TimeoutError:
                return 0
        raise AssertionError

    return forwarded, await asyncio.create_task(work())


async def test_the_first_interrupt_is_the_processs() -> None:
    assert await ended_by([signal.SIGINT], forward=True) == ([signal.SIGINT], 0)


async def test_signals_without_a_meaning_for_us_are_the_processs_each_time() -> None:
    numbers = [signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1, signal.SIGQUIT]
    assert await ended_by(numbers, forward=True) == (numbers, 0)


async def test_the_second_one_ends_our_work() -> None:
    both = [signal.SIGINT, signal.SIGTERM]
    assert await ended_by(both, forward=True) == ([signal.SIGINT], 128 + signal.SIGTERM)


async def test_without_a_process_the_first_one_does() -> None:
    assert await ended_by([signal.SIGTERM], forward=False) == ([], 143)


async def test_a_terminal_that_goes_away_ends_our_work_at_once() -> None:
    assert await ended_by([signal.SIGHUP], forward=True) == ([], 129)


async def test_a_pipe_that_nobody_reads_is_sigpipes_code() -> None:
    assert Interrupts().code_of(BrokenPipeError()) == 141


async def test_a_cancellation_by_somebody_else_goes_on() -> None:
    with pytest.raises(asyncio.CancelledError):
        Interrupts().code_of(asyncio.CancelledError())

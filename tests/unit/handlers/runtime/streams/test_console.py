"""The socket that brings a terminal."""

from __future__ import annotations

import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.handlers.runtime.streams.console import console_socket

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.fixture
def null() -> Iterator[int]:
    with open("/dev/null") as file:
        yield file.fileno()


def send(path: Path, *fds: int) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        socket.send_fds(sock, [b"/dev/ptmx"], list(fds))


async def test_the_master_side_arrives_and_never_blocks(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with console_socket(tmp_path) as console:
        send(console.path, master)
        os.close(master)
        got = await console.receive(Deadline.after(10))
    assert (os.get_blocking(got), os.get_inheritable(got)) == (False, False)
    os.write(slave, b"x")
    assert os.read(got, 1) == b"x"
    os.close(got)
    os.close(slave)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("count", [0, 1, 2])
async def test_what_is_no_terminal_is_refused_and_closed(
    tmp_path: Path, null: int, count: int
) -> None:
    """It was made inside the container's file system, so anything can come."""
    with console_socket(tmp_path) as console:
        send(console.path, *[null] * count)
        with pytest.raises(AgentError) as caught:
            await console.receive(Deadline.after(10))
    assert caught.value.reason is Reason.RUNTIME_REFUSED


async def test_no_terminal_in_time(tmp_path: Path) -> None:
    with console_socket(tmp_path) as console, pytest.raises(AgentError) as caught:
        await console.receive(Deadline.after(0.05))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT

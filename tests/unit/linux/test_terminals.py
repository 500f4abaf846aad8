"""Pseudo terminals from the master side."""

from __future__ import annotations

import os
import pty
import tty
from collections.abc import Iterator

import pytest

from agent.linux import terminals

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def test_the_size_arrives_at_the_other_side(pair: tuple[int, int]) -> None:
    master, slave = pair
    terminals.set_window_size(master, 33, 132)
    assert terminals.window_size(slave) == (33, 132)
    assert os.get_terminal_size(slave) == (132, 33)


def test_what_is_no_terminal_is_refused_by_name() -> None:
    with open("/dev/null") as null, pytest.raises(OSError, match="TIOCSWINSZ"):
        terminals.set_window_size(null.fileno(), 1, 1)


def test_end_of_file_is_control_d_until_lines_are_off(pair: tuple[int, int]) -> None:
    master, slave = pair
    assert terminals.end_of_file_character(master) == b"\x04"
    tty.setraw(slave)
    assert terminals.end_of_file_character(master) == b""

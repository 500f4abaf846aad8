"""Containers and processes as rows."""

from __future__ import annotations

import pytest
import typer

from innkeeper.cli import ps, records, refs
from innkeeper.v1 import containers_pb2, processes_pb2, types_pb2

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.mark.parametrize(
    ("number", "name"), [(0, "-"), (136 << 8 | 7, "pts/7"), (4 << 8 | 1, "4:1")]
)
def test_terminals_by_number(number: int, name: str) -> None:
    """admin-guide/devices.txt: 136 to 143 are the pseudo terminals."""
    assert ps.terminal_name(number) == name


def test_arguments_are_a_shells_and_never_a_terminals() -> None:
    assert ps.command(["sh", "-c", "echo a\n\x1b]0;evil\x07"]) == "sh -c 'echo a'"
    assert ps.command(["x" * 100], 10) == "xxxxxxxxx…"


def test_a_process_without_arguments_has_its_name() -> None:
    assert ps.process_command(processes_pb2.ProcessInfo(name="kworker")) == "[kworker]"


@pytest.mark.parametrize("word", ["", "/x", "a/", "a/b/c"])
def test_what_names_no_process_is_refused(word: str) -> None:
    with pytest.raises(typer.BadParameter, match="CONTAINER/EXEC"):
        refs.parse(word)


@pytest.mark.parametrize("word", ["main", "main/exec-1"])
def test_names_of_processes_go_both_ways(word: str) -> None:
    assert refs.text(refs.parse(word)) == word


def test_records_have_numbers_and_words() -> None:
    status = containers_pb2.ContainerStatus(
        id="a",
        state=containers_pb2.CONTAINER_STATE_STOPPED,
        exit=types_pb2.ExitStatus(at_unix_micros=1 << 53, cause=types_pb2.END_CAUSE_LOST),
    )
    made = records.record(status)
    assert made["state"] == "stopped"
    assert made["exit"]["at_unix_micros"] == 1 << 53  # type: ignore[index]
    assert made["exit"]["cause"] == "lost"  # type: ignore[index]
    assert made["exit"]["stdout_bytes"] is None  # type: ignore[index]

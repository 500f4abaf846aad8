"""What the journal says of a zombie, from its files in /proc."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.linux.pidfd import ChildExit
from agent.pid1.journal import Journal
from agent.pid1.reaper import Reaper, cgroup_of

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/pods/s/c\n", "/pods/s/c"),
        ("0::/pods/s/c (deleted)\n", "/pods/s/c"),
        ("9:name=systemd:/x\n4:memory:/y\n0::/z\n", "/z"),
        ("0::/with:colon and space\n", "/with:colon and space"),
        ("0::/\n", "/"),
        ("4:memory:/y\n", ""),
        ("", ""),
    ],
)
def test_the_v2_path_without_the_kernels_mark(text: str, path: str) -> None:
    assert cgroup_of(text) == path


def test_bytes_that_are_no_utf8_stay_readable() -> None:
    """A container may name its groups as it likes; the journal stays JSON in UTF-8."""
    text = b"0::/pods/\xff\n".decode(errors="surrogateescape")
    assert cgroup_of(text) == "/pods/\\xff"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(str(tmp_path / "exits.jsonl"), limit=100)
    yield journal
    journal.close()


def test_a_child_is_recorded_with_its_name_then_reaped_then_told(journal: Journal) -> None:
    reaper = Reaper("/proc", journal)
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    told: list[tuple[ChildExit, int]] = []
    reaper.expect(pid, lambda ended: told.append((ended, journal.last)))
    fd = os.pidfd_open(pid)
    ready, _, _ = select.select([fd], [], [], 10)
    os.close(fd)
    assert ready
    assert not reaper.collect()
    (entry,) = journal.after(0, 10)
    assert (entry.pid, entry.code, entry.signal, entry.comm) == (pid, 7, 0, "sh")
    assert told == [(ChildExit(pid, 7, 0), 1)]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_core_dump_is_told_apart_from_a_signal_alone(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """waitid(2): CLD_DUMPED where the kernel wrote one, CLD_KILLED else."""
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("this kernel gives core dumps to a program")
    monkeypatch.chdir(tmp_path)
    reaper = Reaper("/proc", journal)
    for limit in ("0", "unlimited"):
        script = f"ulimit -c {limit} && kill -SEGV $$"
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {})
        fd = os.pidfd_open(pid)
        ready, _, _ = select.select([fd], [], [], 10)
        os.close(fd)
        assert ready
        reaper.collect()
    ends = [(entry.code, entry.signal, entry.core_dumped) for entry in journal.after(0, 10)]
    assert ends == [(139, 11, False), (139, 11, True)]


def test_without_children_there_is_nothing_to_collect(journal: Journal) -> None:
    assert not Reaper("/proc", journal).collect()
    assert journal.last == 0

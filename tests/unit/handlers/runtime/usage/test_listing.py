"""The processes of a container, from files of proc as the kernel writes them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason, exhausted, timed_out
from agent.core.fileops import FileWorkers
from agent.core.model import ProcessRef
from agent.core.roots import Roots
from agent.handlers.runtime.table import ContainerTable
from agent.handlers.runtime.usage.listing import Listing
from agent.linux import processlist
from agent.linux.processlist import parse_stat, printable

pytestmark = [pytest.mark.unit, pytest.mark.containers]

GROUP = "/pods/s/c1"
TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A proc in a directory, with a cgroup whose members are its processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: list[int] = []

    def process(
        self,
        pid: int,
        name: bytes = b"sh",
        arguments: bytes = b"sh\0-c\0true\0",
        *,
        numbers: str = "",
        group: str = GROUP,
        state: str = "S",
        started: int = 100,
    ) -> Path:
        """As proc_pid_stat(5) and proc_pid_status(5) have it."""
        directory = self.path / str(pid)
        directory.mkdir(parents=True)
        fields = f"{state} 1 7 7 34817 7 4194304 10 0 0 0 250 50 0 0 20 0 3 0 {started} 1000 20 0"
        (directory / "stat").write_bytes(b"%d (%s) %s\n" % (pid, name, fields.encode()))
        (directory / "status").write_text(
            f"Name:\tsh\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nNSpid:\t{numbers or pid}\n"
            "VmRSS:\t    1234 kB\nThreads:\t3\n"
        )
        (directory / "cgroup").write_text(f"0::{group}\n")
        (directory / "cmdline").write_bytes(arguments)
        self.members.append(pid)
        return directory


class Inline:
    """Lists in this process; `hangs` when arguments are asked for."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.hangs = False
        self.trouble: AgentError | None = None

    async def list_processes(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]:
        self.asked.append(question)
        if self.trouble is not None:
            raise self.trouble
        if self.hangs and question["argument_bytes"]:
            raise timed_out("list_processes did not come back")
        return processlist.list_processes(**question)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


@pytest.fixture
def lister() -> Inline:
    return Inline()


def process(pid: int, exec_id: str = "", *, ended: bool = False) -> Any:
    ref = ProcessRef(container_id="c1", exec_id=exec_id)
    return SimpleNamespace(
        pid=pid, exit=object() if ended else None, record=SimpleNamespace(ref=ref)
    )


def listing(proc: Proc, lister: Any, *own: Any) -> Listing:
    container = SimpleNamespace(
        id="c1",
        record=SimpleNamespace(cgroup=GROUP),
        cgroup=SimpleNamespace(members=lambda: tuple(proc.members)),
        processes={each.record.ref.exec_id: each for each in own},
        first=own[0] if own else None,
    )
    table = ContainerTable()
    table._containers["c1"] = container  # type: ignore[assignment]
    return Listing(table, Roots(proc=proc.path), lister)


async def test_one_process_with_all_of_it(proc: Proc, lister: Inline) -> None:
    proc.process(7, numbers="7\t1", started=250)
    before = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    (info,) = await listing(proc, lister, process(7)).list("c1", None)
    assert (info.pid, info.container_pid, info.parent_pid) == (7, 1, 1)
    assert info.process == ProcessRef(container_id="c1")
    assert info.user_id == 1001
    assert (info.name, info.arguments, info.state) == ("sh", ("sh", "-c", "true"), "S")
    assert info.cpu_micros == 300 * 1_000_000 // TICKS
    assert (info.resident_bytes, info.threads, info.terminal) == (1234 * 1024, 3, 136 << 8 | 1)
    assert info.started == pytest.approx(before + 250 / TICKS, abs=1)


async def test_all_of_them_by_pid_and_whose_they_are(proc: Proc, lister: Inline) -> None:
    for pid, numbers in ((30, "30 5"), (7, "7 1"), (12, "12 4 1"), (31, "31 6")):
        proc.process(pid, numbers=numbers)
    own = (process(7), process(30, "e1"), process(31, "e2", ended=True))
    found = await listing(proc, lister, *own).list("c1", None)
    # 12 has made a namespace of its own: its number is that in the container's all the same.
    assert [(each.pid, each.container_pid) for each in found] == [(7, 1), (12, 4), (30, 5), (31, 6)]
    refs = [each.process.exec_id if each.process else None for each in found]
    assert refs == ["", None, "e1", None]


async def test_in_the_guests_own_namespace_both_numbers_are_one(proc: Proc, lister: Inline) -> None:
    proc.process(7)
    proc.process(9, numbers="9 1")
    found = await listing(proc, lister, process(7)).list("c1", None)
    assert [each.container_pid for each in found] == [7, 9]


async def test_those_that_end_meanwhile_are_left_out(proc: Proc, lister: Inline) -> None:
    """Their directory goes, its files are empty, or another has the number by then."""
    proc.process(7)
    (proc.process(8) / "stat").write_text("")
    (proc.process(9) / "status").unlink()
    proc.process(10, group="/pods/s/other")
    proc.process(11, group=f"{GROUP}0")
    proc.process(12, group=f"{GROUP}/nested")
    proc.members.append(13)
    found = await listing(proc, lister, process(7)).list("c1", None)
    assert [each.pid for each in found] == [7, 12]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a) S 1 (b", "a) S 1 (b"),
        (b"((", "(("),
        (b")", ")"),
        (b"\x1b[31m\nx", "?[31m?x"),
        (b"na\xc3\xafve", "na\u00efve"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\xe2\x80\xae", "?"),
        (b"", ""),
    ],
)
async def test_names_are_their_owners_choice(
    proc: Proc, lister: Inline, name: bytes, shown: str
) -> None:
    """Brackets, line ends, terminal sequences, bytes that are no text (prctl(2), PR_SET_NAME)."""
    proc.process(7, name)
    (info,) = await listing(proc, lister, process(7)).list("c1", None)
    assert (info.name, info.state) == (shown, "S")


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        (b"", ()),
        (b"a\0\0b\0", ("a", "", "b")),
        # Those who write over their arguments leave out the last NUL (setproctitle).
        (b"worker: idle", ("worker: idle",)),
        (b"\x1b]0;title\x07\0\xff\0", ("?]0;title?", "\\xff")),
    ],
)
async def test_arguments_too(
    proc: Proc, lister: Inline, raw: bytes, arguments: tuple[str, ...]
) -> None:
    proc.process(7, arguments=raw)
    (info,) = await listing(proc, lister, process(7)).list("c1", None)
    assert info.arguments == arguments


async def test_arguments_are_bounded(proc: Proc, lister: Inline) -> None:
    proc.process(7, arguments=b"x" * 3000 + b"\0" + b"y" * 9000 + b"\0")
    (info,) = await listing(proc, lister, process(7)).list("c1", None)
    assert [len(each) for each in info.arguments] == [3000, 1095]


async def test_a_process_whose_memory_hangs_is_listed_without_arguments(
    proc: Proc, lister: Inline
) -> None:
    proc.process(7)
    lister.hangs = True
    (info,) = await listing(proc, lister, process(7)).list("c1", None)
    assert (info.pid, info.name, info.arguments) == (7, "sh", ())


async def test_other_trouble_is_told(proc: Proc, lister: Inline) -> None:
    proc.process(7)
    lister.trouble = exhausted("all busy", reason=Reason.LIMIT_REACHED)
    with pytest.raises(AgentError) as caught:
        await listing(proc, lister).list("c1", None)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert len(lister.asked) == 1


async def test_very_many_are_asked_for_in_portions(proc: Proc, lister: Inline) -> None:
    proc.members = list(range(10_000, 12_000))
    assert await listing(proc, lister).list("c1", None) == ()
    assert [len(each["pids"]) for each in lister.asked] == [512, 512, 512, 464]
    # All their arguments together stay below 1 MiB.
    assert {each["argument_bytes"] for each in lister.asked} == {(1 << 20) // 2000}


async def test_an_unknown_container(proc: Proc, lister: Inline) -> None:
    with pytest.raises(AgentError) as caught:
        await listing(proc, lister).list("c2", None)
    assert caught.value.reason is Reason.UNKNOWN_CONTAINER


@pytest.fixture
def own_group() -> str:
    """The cgroup that this process is in."""
    text = Path("/proc/self/cgroup").read_text()
    return next(line[3:] for line in text.split("\n") if line.startswith("0::"))


@pytest.fixture
def own_arguments() -> list[str]:
    raw = Path("/proc/self/cmdline").read_bytes()[:4096]
    return [each.decode() for each in raw.removesuffix(b"\0").split(b"\0")]


async def test_this_process_by_the_real_kernel_and_a_real_worker(
    own_group: str, own_arguments: list[str]
) -> None:
    workers = FileWorkers()
    try:
        (row,) = await workers.list_processes(
            {
                "proc": "/proc",
                "pids": [os.getpid()],
                "cgroup": own_group.rstrip("/"),
                "argument_bytes": 4096,
            },
            Deadline.after(20),
        )
    finally:
        await workers.close()
    assert (row["pid"], row["parent"], row["user"]) == (os.getpid(), os.getppid(), os.geteuid())
    assert row["arguments"] == own_arguments
    assert row["resident"] > 1024


@given(st.text(max_size=40))
def test_a_stat_with_any_name(name: str) -> None:
    assert parse_stat(f"7 ({name}) S 1 2 3") == (name, ["S", "1", "2", "3"])


@given(st.binary(max_size=60))
def test_whatever_it_is_it_can_be_shown(raw: bytes) -> None:
    shown = printable(raw.decode(errors="surrogateescape"))
    assert shown.isprintable()
    shown.encode()

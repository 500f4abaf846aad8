"""The kernel's kills for lack of memory: its lines, whose they are, what is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.kernel_log import KernelLog
from agent.core.life import OutOfMemory
from agent.core.roots import Roots
from agent.handlers.runtime.usage import oom
from agent.handlers.runtime.usage.oom import OomWatch
from agent.handlers.runtime.usage.oomlines import KillLine, OomLines, parse_summary
from tests.fakes.kmsg import FakeKmsg
from tests.fakes.notices import FakeNotice, fake_notices

pytestmark = [pytest.mark.unit, pytest.mark.containers]

GROUP = "/pods/s/c1"


def summary(
    pid: int = 17, name: str = "hog", limited: str = GROUP, group: str = "", cpuset: str = "c1"
) -> str:
    """As dump_oom_summary of mm/oom_kill.c writes it; `limited` "" is the whole guest."""
    constraint = "CONSTRAINT_MEMCG" if limited else "CONSTRAINT_NONE"
    scope = f"oom_memcg={limited}" if limited else "global_oom"
    return (
        f"oom-kill:constraint={constraint},nodemask=(null),cpuset={cpuset},mems_allowed=0,{scope},"
        f"task_memcg={group or limited or GROUP},task={name},pid={pid},uid=0"
    )


def killed(pid: int = 17, name: str = "hog", why: str = "Memory cgroup out of memory") -> str:
    return (
        f"{why}: Killed process {pid} ({name}) total-vm:10kB, anon-rss:9kB, file-rss:8kB, "
        "shmem-rss:0kB, UID:0 pgtables:44kB oom_score_adj:0"
    )


def grouped(group: str = GROUP) -> str:
    return f"Tasks in {group} are going to be killed due to memory.oom.group set"


def nowhere(_path: str) -> bool:
    return False


# The lines.


def test_the_summary_of_a_groups_limit() -> None:
    assert parse_summary(summary(), nowhere) == KillLine(
        pid=17, name="hog", limited=GROUP, group=GROUP
    )


def test_the_limit_of_a_group_above() -> None:
    line = parse_summary(summary(limited="/pods", group=GROUP), nowhere)
    assert line == KillLine(pid=17, name="hog", limited="/pods", group=GROUP)


def test_the_whole_guest() -> None:
    line = parse_summary(summary(limited=""), nowhere)
    assert line == KillLine(pid=17, name="hog", limited="", group=GROUP)


@pytest.mark.parametrize(
    "name",
    [
        "a b,c",
        ",pid=1,uid=0",
        ",pid=1,uid=0,pi",
        "x) total-vm:1",
        "(((",
        ",task=z",
        "task=,pid=2",
        "",
        "\n\\",
        "naïve",
    ],
)
def test_names_are_their_owners_choice(name: str) -> None:
    """At most 15 bytes, any of them but NUL (prctl(2), PR_SET_NAME)."""
    line = parse_summary(summary(name=name), {GROUP}.__contains__)
    assert line == KillLine(pid=17, name=name, limited=GROUP, group=GROUP)
    assert OomLines(nowhere).take(killed(name=name)) == KillLine(pid=17, name=name)


@pytest.mark.parametrize(
    "below", ["/x,task=y", "/x,task_memcg=y", "/,oom_memcg=z", "/a,pid=1,uid=0", "/x,task=,pid=9"]
)
def test_so_are_names_of_groups_below_the_containers(below: str) -> None:
    line = parse_summary(summary(limited=GROUP + below), {GROUP + below}.__contains__)
    assert line == KillLine(pid=17, name="hog", limited=GROUP + below, group=GROUP + below)


def test_the_name_of_a_cpuset_is_no_path() -> None:
    """It has no slash, so it can't pass for another's group."""
    line = parse_summary(summary(cpuset="x,oom_memcg=,task_memcg=,global_oom"), nowhere)
    assert line == KillLine(pid=17, name="hog", limited=GROUP, group=GROUP)


def test_a_group_cannot_pass_for_another_containers() -> None:
    """What follows the limit's group must be in it."""
    mine = f"{GROUP}/x,task_memcg=/pods/s/other"
    line = parse_summary(summary(limited=mine), {mine, "/pods/s/other"}.__contains__)
    assert line == KillLine(pid=17, name="hog", limited=mine, group=mine)


@given(
    st.text(st.characters(codec="latin-1", exclude_characters="\0"), max_size=15),
    st.integers(1, 4194304),
)
def test_any_name_comes_back(name: str, pid: int) -> None:
    line = parse_summary(summary(pid, name), {GROUP}.__contains__)
    assert line == KillLine(pid=pid, name=name, limited=GROUP, group=GROUP)
    assert OomLines(nowhere).take(killed(pid, name)) == KillLine(pid=pid, name=name)


@given(st.text(max_size=200))
def test_any_line_is_taken(text: str) -> None:
    lines = OomLines(nowhere)
    lines.take(text)
    lines.take(f"oom-kill:constraint={text}")
    lines.take(f",{text}")
    lines.take(killed())


def test_a_kill_is_told_once_with_what_its_summary_says() -> None:
    lines = OomLines(nowhere)
    assert lines.take(summary()) is None
    assert lines.expected(17) == KillLine(pid=17, name="hog", limited=GROUP, group=GROUP)
    assert lines.take(killed()) == KillLine(pid=17, name="hog", limited=GROUP, group=GROUP)
    assert lines.expected(17) is None
    # The next one of that number is another process: the summaries are rate-limited.
    assert lines.take(killed()) == KillLine(pid=17, name="hog")


def test_one_that_was_about_to_end_anyway_was_not_killed() -> None:
    """__oom_kill_process, where find_lock_task_mm finds nothing."""
    lines = OomLines(nowhere)
    lines.take(summary())
    spared = "Memory cgroup out of memory: OOM victim 17 (hog) is already exiting."
    assert lines.take(f"{spared} Skip killing the task") is None
    assert lines.expected(17) is None


def test_a_summary_that_another_cpu_cut_in_two() -> None:
    head, tail = summary().split(",oom_memcg=")
    lines = OomLines(nowhere)
    assert lines.take(head) is None
    assert lines.take("virtio_net virtio1: something else") is None
    assert lines.take(f",oom_memcg={tail}") is None
    line = lines.take(killed())
    assert line == KillLine(pid=17, name="hog", limited=GROUP, group=GROUP)


def test_a_group_that_is_killed_as_a_whole() -> None:
    lines = OomLines(nowhere)
    lines.take(summary())
    lines.take(killed())
    assert lines.take(grouped()) is None
    assert lines.take(killed(18, "b")) == KillLine(pid=18, name="b", limited=GROUP, among=GROUP)


@pytest.mark.parametrize(
    "text",
    [
        "hog invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Tasks in x invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom_reaper: reaped process 17 (hog), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "Memory cgroup out of memory: Killed process 17 (hog)",
        "x: Memory cgroup out of memory: Killed process 1 (a) total-vm:1kB, anon-rss:1kB, f",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
    ],
)
def test_other_lines_are_no_kill(text: str) -> None:
    assert OomLines(nowhere).take(text) is None


# The watch.


class Told:
    """An event log that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, str]]] = []

    def publish(self, kind: str, subject: str, details: Mapping[str, str] | None = None) -> None:
        assert kind == "out_of_memory"
        self.events.append((subject, details or {}))


class Saved:
    """What is needed of a StateStore."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None:
        self.data[f"{kind}/{key}"] = data

    def load(self, kind: str, key: str) -> dict[str, Any] | None:
        return self.data.get(f"{kind}/{key}")


class Bench:
    """A watch over a log, a cgroupfs and a proc."""

    def __init__(self, roots: Roots, notices: list[FakeNotice]) -> None:
        self.roots = roots
        self.notices = notices
        self.told = Told()
        self.state = Saved()
        self.kmsg = FakeKmsg()
        self.log = KernelLog(self.kmsg)
        self.watch = self.again()

    def again(self) -> OomWatch:
        """The watch of the next agent, not yet started."""
        return OomWatch(self.log, self.told, roots=self.roots, state=self.state)

    def group(self, path: str = GROUP, *, limit: str = "1048576", kills: int = 0) -> None:
        directory = self.roots.cgroup / path[1:]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "memory.max").write_text(f"{limit}\n")
        (directory / "memory.events").write_text(f"oom {kills}\noom_kill {kills}\n")

    def lives(self, pid: int, group: str) -> None:
        directory = self.roots.proc / str(pid)
        directory.mkdir(parents=True)
        (directory / "cgroup").write_text(f"0::{group}\n")

    def logs(self, *lines: str, **how: Any) -> None:
        for line in lines:
            self.kmsg.log(line, **how)
        _ = self.log.position

    @property
    def events(self) -> list[tuple[str, Mapping[str, str]]]:
        return self.told.events


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    notices = fake_notices(monkeypatch, oom)
    bench = Bench(Roots(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc"), notices)
    bench.group()
    bench.watch.start()
    yield bench
    bench.watch.close()
    bench.log.close()


def details(pid: int = 17, name: str = "hog", limit: int = 1 << 20, cgroup: str = "/") -> Any:
    return {"victim": name, "pid": str(pid), "limit": str(limit), "cgroup": cgroup}


def test_each_kill_is_told_with_victim_and_limit(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed())
    bench.group(limit="2097152")
    bench.logs(summary(18, "other"), killed(18, "other"))
    assert bench.events == [
        ("c1", details()),
        ("c1", details(18, "other", 2 << 20)),
    ]


def test_how_a_process_ended_is_answered_once(bench: Bench) -> None:
    """Its number may be another's afterwards."""
    bench.watch.track("c1", GROUP)
    bench.kmsg.log(summary())
    bench.kmsg.log(killed())
    kill = bench.watch.kill_of(17, GROUP)
    assert kill == OutOfMemory(victim="hog", pid=17, limit=1 << 20, cgroup="/")
    assert bench.watch.kill_of(17, GROUP) is None
    assert bench.watch.kill_of(18, GROUP) is None


def test_a_process_may_be_gone_before_its_kill_is_logged(bench: Bench) -> None:
    """The kernel sends the signal first."""
    bench.watch.track("c1", GROUP)
    bench.kmsg.log(summary())
    assert bench.watch.kill_of(18, GROUP) is None
    assert bench.watch.kill_of(17, "/pods/s/other") is None
    assert bench.watch.kill_of(17, GROUP) is not None
    assert bench.events == []
    bench.logs(killed())
    assert bench.events == [("c1", details())]
    assert bench.watch.kill_of(17, GROUP) is None


def test_another_containers_kill_is_not_ours(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed())
    assert bench.watch.kill_of(17, "/pods/s/c10") is None
    assert bench.watch.kill_of(17, GROUP) is not None


def test_a_limit_below_the_containers_is_named(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.group(f"{GROUP}/job", limit="4096")
    bench.logs(summary(limited=f"{GROUP}/job"), killed())
    assert bench.events == [("c1", details(limit=4096, cgroup="/job"))]


@pytest.mark.parametrize("limited", ["", "/pods"])
def test_the_guests_own_lack_of_memory_has_no_limit(bench: Bench, limited: str) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(summary(limited=limited, group=GROUP), killed())
    assert bench.events == [("c1", details(limit=0, cgroup=""))]


def test_a_name_is_made_printable(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed(name="\\x1b[31m\\x0a\\xff"))
    assert [told["victim"] for _, told in bench.events] == ["?[31m?\ufffd"]


def test_only_the_kernels_own_records_count(bench: Bench) -> None:
    """Whoever may write to /dev/kmsg can't do so under the kernel's name."""
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed(), priority=14)
    assert bench.events == []
    assert bench.watch.kill_of(17, GROUP) is None


def test_all_of_a_group_are_told(bench: Bench) -> None:
    """memory.oom.group: the kernel kills all of the group for one's sake."""
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed(), grouped(), killed(18, "b"), killed(19, "c"))
    assert bench.events == [
        ("c1", details()),
        ("c1", details(18, "b")),
        ("c1", details(19, "c")),
    ]
    assert bench.watch.kill_of(19, GROUP) is not None


def test_a_kill_without_a_summary_is_found_by_its_process(bench: Bench) -> None:
    """Summaries come ten times in 5 seconds at most; the nearest limit is taken for its own."""
    bench.group(f"{GROUP}/job", limit="max")
    bench.lives(17, f"{GROUP}/job")
    bench.watch.track("c1", GROUP)
    bench.logs(killed())
    assert bench.events == [("c1", details())]


def test_one_whose_process_is_gone_is_found_by_the_count(bench: Bench) -> None:
    bench.group("/pods/s/c2")
    bench.watch.track("c1", GROUP)
    bench.watch.track("c2", "/pods/s/c2")
    bench.group("/pods/s/c2", kills=1)
    bench.logs(killed())
    ((subject, told),) = bench.events
    assert (subject, told["victim"], told["pid"]) == ("c2", "hog", "17")


def test_or_by_whoever_asks_for_it(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(killed())
    assert bench.events == []
    kill = bench.watch.kill_of(17, GROUP)
    assert kill is not None
    assert (kill.victim, kill.pid) == ("hog", 17)
    assert [subject for subject, _ in bench.events] == ["c1"]


def test_what_the_log_lost_is_told_by_the_count(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed())
    bench.group(kills=3)
    bench.kmsg.overwrite()
    bench.notices[-1].told()
    unknown = details(0, "", 1 << 20, "/")
    assert bench.events == [("c1", details()), ("c1", unknown), ("c1", unknown)]
    bench.notices[-1].told()
    assert len(bench.events) == 3


def test_a_count_that_is_ahead_of_the_log_is_no_loss(bench: Bench) -> None:
    """The kernel counts a kill before it logs it."""
    bench.watch.track("c1", GROUP)
    bench.group(kills=1)
    bench.notices[-1].told()
    assert bench.events == []
    bench.logs(summary(), killed())
    bench.notices[-1].told()
    assert bench.events == [("c1", details())]


def test_a_container_that_is_gone_is_told_of_no_more(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.watch.untrack("c1")
    bench.watch.untrack("c1")
    bench.logs(summary(), killed())
    # Nor is the next one of that name told of what was before it.
    bench.watch.track("c1", GROUP)
    assert bench.events == []
    bench.logs(summary(18), killed(18))
    assert bench.events == [("c1", details(18))]


def test_the_next_agent_tells_what_nobody_told(bench: Bench) -> None:
    bench.watch.track("c1", GROUP)
    bench.logs(summary(), killed())
    bench.watch.close()
    bench.kmsg.log(summary(18, "later"))
    bench.kmsg.log(killed(18, "later"))
    again = bench.again()
    again.start()
    again.track("c1", GROUP)
    assert bench.events == [("c1", details()), ("c1", details(18, "later"))]
    # Those who ask how a process ended get both.
    assert again.kill_of(17, GROUP) is not None
    assert again.kill_of(18, GROUP) is not None
    again.close()

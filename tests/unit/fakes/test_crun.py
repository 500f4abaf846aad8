"""The stand-in for crun: what the tests believe of it has to be so."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.core.commands import CommandResult, Setting, run
from agent.core.deadlines import Deadline
from agent.core.roots import Roots
from tests.fakes.crun import FakeCrun, FakeGroup, reaping
from tests.fakes.pid1 import FakePid1
from tests.fakes.waiting import until

pytestmark = [pytest.mark.unit, pytest.mark.containers]


class Bench:
    """A fake crun with a bundle."""

    def __init__(self, top: Path, pid1: FakePid1) -> None:
        self.top = top
        self.pid1 = pid1
        self.roots = Roots(run=top, proc=top / "proc")
        self.crun = FakeCrun(top / "bin", self.roots, pid1)

    async def call(self, operation: str, *arguments: str) -> CommandResult:
        options = ["--root", f"{self.top}/crun", "--cgroup-manager=cgroupfs"]
        options += ["--log", f"{self.top}/log", "--log-format", "json"]
        argv = [f"{self.crun.directory}/crun", *options, operation, *arguments]
        # The created process has the collected pipe as its output, as with the real one.
        with open(f"{self.top}/out", "a") as out:  # noqa: ASYNC230
            setting = Setting(stdout=out.fileno())
            return await run(argv, deadline=Deadline.after(20), setting=setting, check=False)

    async def create(self, script: str) -> CommandResult:
        process = {"args": ["/bin/sh", "-c", script], "env": ["A=1"]}
        config = {"process": process, "linux": {"cgroupsPath": "/pods/s/c1"}}
        (self.top / "config.json").write_text(json.dumps(config))
        files = ["--bundle", str(self.top), "--pid-file", f"{self.top}/pid"]
        return await self.call("create", *files, "--", "c1")

    def output(self) -> str:
        return (self.top / "out").read_text()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        stack.enter_context(reaping())
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
        yield Bench(top, await stack.enter_async_context(FakePid1(top / "init.sock")))


async def test_a_created_process_waits_for_its_start(bench: Bench) -> None:
    assert (await bench.create("echo $A; exit 4")).code == 0
    assert bench.output() == ""
    assert (await bench.call("start", "--", "c1")).code == 0
    await until(lambda: bench.pid1.journal)
    (entry,) = bench.pid1.journal
    assert (entry["code"], entry["cgroup"]) == (4, "/pods/s/c1")
    assert entry["pid"] == int((bench.top / "pid").read_text())
    assert bench.output() == "1\n"
    assert bench.crun.operations() == ["create", "start"]


async def test_what_is_planned_to_fail_fails_as_crun_does(bench: Bench) -> None:
    bench.crun.plan(fail={"create": "no luck"})
    result = await bench.create("exit 0")
    assert (result.code, result.stderr_tail) == (1, "no luck")
    assert json.loads((bench.top / "log").read_text())["msg"] == "no luck"


async def test_delete_kills_and_the_group_knows_its_members(bench: Bench) -> None:
    await bench.create("exit 0")
    group = FakeGroup(bench.roots, "/pods/s/c1")
    (pid,) = group.members()
    assert (await bench.call("delete", "--force", "--", "c1")).code == 0
    await until(lambda: bench.pid1.journal)
    assert bench.pid1.journal[0]["signal"] == 9
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240
    assert group.members() == ()


async def test_an_unknown_container_is_refused(bench: Bench) -> None:
    for operation in ("start", "state"):
        assert (await bench.call(operation, "--", "c9")).code == 1


def test_options_of_another_order_are_a_mistake_of_the_test(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "fakes/crun_program.py"
    argv = ["python3", str(program), "create", "c1"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 2

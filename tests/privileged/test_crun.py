"""Containers with the real crun and real cgroups; PID 1 is played by the test."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.fileops import FileWorkers
from agent.core.model import (
    ContainerRequest,
    ContainerState,
    OutputChunk,
    ProcessRef,
    RootPath,
    StorageMount,
    Stream,
    WindowSize,
)
from agent.core.roots import Roots
from agent.handlers.runtime.cgroup import Cgroup
from tests.fakes.bed import Bed, Life
from tests.fakes.crun import reaping
from tests.fakes.managers import FakeStorages
from tests.fakes.pid1 import FakePid1
from tests.fakes.waiting import until

pytestmark = [pytest.mark.privileged, pytest.mark.containers]

C1 = ProcessRef(container_id="c1")
E1 = ProcessRef(container_id="c1", exec_id="e1")
GUEST_ROOT = Path("/usr/lib/innkeeper/rootfs")
APPLETS = [
    "sh",
    "cat",
    "echo",
    "ls",
    "sleep",
    "true",
    "tty",
    "stty",
    "head",
    "tr",
    "id",
    "mkdir",
    "readlink",
    "dd",
    "touch",
    "env",
]


@pytest.fixture(scope="session")
def root_tree() -> Iterator[Path]:
    """A small root: the image's own in the guest, made of the host's busybox elsewhere."""
    if GUEST_ROOT.is_dir():
        yield GUEST_ROOT
        return
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox")
    with tempfile.TemporaryDirectory(prefix="root") as top:
        root = Path(top)
        root.chmod(0o755)
        for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var"):
            (root / name).mkdir()
        shutil.copy(busybox, root / "bin/busybox")
        for name in APPLETS:
            (root / "bin" / name).symlink_to("busybox")
        yield root


@pytest.fixture(scope="session")
def crun_works(root_tree: Path) -> None:
    """Skips where this machine can't run a container on cgroup v2 at all, and says why."""
    if shutil.which("crun") is None:
        pytest.skip("needs crun")
    if os.geteuid() != 0 or not Path("/sys/fs/cgroup/cgroup.procs").exists():
        pytest.skip("needs root, and cgroup v2 on /sys/fs/cgroup")
    with ExitStack() as stack:
        bundle = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="probe")))
        subprocess.run(["crun", "spec"], cwd=bundle, check=True)
        config = json.loads((bundle / "config.json").read_text())
        config["process"] |= {"terminal": False, "args": ["/bin/true"]}
        config["root"]["path"] = str(root_tree)
        config["linux"]["cgroupsPath"] = "/pods/probe"
        (bundle / "config.json").write_text(json.dumps(config))
        done = subprocess.run(
            ["crun", "--root", bundle / "state", "--cgroup-manager=cgroupfs", "run", "probe"],
            cwd=bundle,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"crun doesn't run here: {done.stderr.strip()}")


@pytest.fixture
async def bed(crun_works: None, root_tree: Path) -> AsyncIterator[Bed]:
    async with AsyncExitStack() as stack:
        stack.enter_context(reaping())
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bed")))
        pid1 = await stack.enter_async_context(FakePid1(top / "init.sock"))
        pid1.watch_orphans()
        files = FileWorkers()
        stack.push_async_callback(files.close)
        bed = Bed(Roots(run=top), root_tree, pid1, files=files, cgroup=Cgroup)
        yield bed
        for life in bed.lives:
            left = await life.containers.remove_all()
            assert left == ()
        await bed.close()


@pytest.fixture
async def life(bed: Bed) -> Life:
    return await bed.start()


async def run(life: Life, request: ContainerRequest) -> bytes:
    """Create, start, wait; the output, and the exit status on a line of its own."""
    await life.containers.create(request)
    await life.containers.start(request.id)
    end = await life.wait(request.id)
    return await life.output(request.id) + b"%d" % end.code


def sh(bed: Bed, script: str, **spec: Any) -> ContainerRequest:
    process = {"args": ["/bin/sh", "-c", script], **spec.pop("process", {})}
    request = bed.request(timeout=60.0)
    return replace(request, spec=json.dumps({"process": process, **spec}).encode())


async def test_the_life_of_a_container(bed: Bed, life: Life) -> None:
    assert await run(life, sh(bed, "echo hello; exit 42")) == b"hello\n42"
    assert life.containers.get("c1").state is ContainerState.STOPPED
    await life.containers.remove("c1", 0, 30)
    assert bed.left() == {}
    assert not exists("/sys/fs/cgroup/pods/s/c1")


async def test_the_container_sees_its_own_cgroups_only(bed: Bed, life: Life) -> None:
    output = await run(life, sh(bed, "cat /proc/self/cgroup"))
    assert b"0::/\n" in output


async def test_default_devices_work_with_rules_of_its_own(bed: Bed, life: Life) -> None:
    rules = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "b", "major": 254, "minor": 0, "access": "rwm"},
    ]
    script = "echo x >/dev/null && head -c1 /dev/urandom >/dev/null && exit 5"
    spec = {"linux": {"resources": {"devices": rules}}}
    assert await run(life, sh(bed, script, **spec)) == b"5"


async def test_other_devices_are_refused(bed: Bed, life: Life) -> None:
    node = {"path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11}
    output = await run(life, sh(bed, "head -c1 /dev/kmsg 2>&1", linux={"devices": [node]}))
    assert b"Operation not permitted" in output


async def test_what_crun_says_is_told(bed: Bed, life: Life) -> None:
    request = replace(bed.request(timeout=60.0), spec=b'{"process": {"args": ["/bin/nosuch"]}}')
    with pytest.raises(AgentError, match="nosuch") as caught:
        await life.containers.create(request)
    assert caught.value.reason is Reason.RUNTIME_REFUSED
    assert bed.left() == {}


async def test_a_writable_layer_over_a_root_that_stays(bed: Bed, life: Life) -> None:
    request = replace(sh(bed, "mkdir /new && ls -d /new"), writable_layer=True)
    assert await run(life, request) == b"/new\n0"
    await life.containers.remove("c1", 0, 30)
    assert not exists(f"{bed.root}/new")
    assert bed.left() == {}


async def test_mounts_stay_inside_the_root(bed: Bed, life: Life, tmp_path: Path) -> None:
    """A chain of absolute links (/var/run to /run2 to /tmp/run2): the guest's own are not meant."""
    root = tmp_path / "root"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("mine")
    linked_root(bed.root, root)
    bed.storages = FakeStorages({"data": tmp_path / "data"})
    life = await bed.restart(life)
    request = replace(
        sh(bed, "cat /tmp/run2/secrets/x/file"),
        rootfs=RootPath(path=str(root)),
        storages=(StorageMount(storage_id="data", destination="/var/run/secrets/x"),),
    )
    assert await run(life, request) == b"mine0"
    assert not exists("/tmp/run2")


def linked_root(source: Path, root: Path) -> None:
    shutil.copytree(source, root, symlinks=True)
    shutil.rmtree(root / "var", ignore_errors=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run2")
    (root / "run2").symlink_to("/tmp/run2")


def exists(path: str) -> bool:
    return Path(path).exists()


async def test_a_signal_and_the_grace(bed: Bed, life: Life) -> None:
    """The first process of a pid namespace ignores SIGTERM unless it handles it."""
    await life.containers.create(sh(bed, "sleep 1000"))
    await life.containers.start("c1")
    await life.processes.signal(C1, signal.SIGTERM)
    await life.containers.remove("c1", 0.2, 30)
    end = await life.wait("c1")
    assert (end.code, end.signal) == (137, 9)


async def test_execs_and_their_exits(bed: Bed, life: Life) -> None:
    await life.containers.create(sh(bed, "cat"))
    await life.containers.start("c1")
    for number in range(5):
        await life.processes.exec(bed.exec_request(f"echo hi; exit {number}", f"e{number}"))
    for number in range(5):
        assert (await life.wait("c1", f"e{number}")).code == number
        assert await life.output("c1", f"e{number}") == b"hi\n"
    await life.processes.close_input(C1, 0)
    assert (await life.wait("c1")).code == 0


async def test_an_exec_that_cannot_be_started(bed: Bed, life: Life) -> None:
    await life.containers.create(sh(bed, "cat"))
    await life.containers.start("c1")
    with pytest.raises(AgentError, match="nosuch"):
        await life.processes.exec(bed.exec_request("", args=["/bin/nosuch"]))
    assert (await life.processes.exec(bed.exec_request("exit 0"))) > 0


async def test_a_terminal(bed: Bed, life: Life) -> None:
    request = sh(bed, "stty size; read x; echo got $x", process={"terminal": True})
    await life.containers.create(request)
    await life.processes.resize(C1, WindowSize(rows=33, columns=132))
    await life.containers.start("c1")
    await life.processes.write_input(C1, 0, b"abc\n")
    assert (await life.wait("c1")).code == 0
    output = await life.output("c1")
    assert b"33 132\r\n" in output
    assert b"got abc\r\n" in output


async def test_an_exec_on_a_terminal(bed: Bed, life: Life) -> None:
    await life.containers.create(sh(bed, "cat"))
    await life.containers.start("c1")
    await life.processes.exec(bed.exec_request("tty; cat", terminal=True))
    await life.processes.write_input(E1, 0, b"x\n")
    await life.processes.close_input(E1, 2)
    assert (await life.wait("c1", "e1")).code == 0
    output = await life.output("c1", "e1")
    assert b"/dev/pts/" in output
    assert b"x\r\n" in output


async def test_four_mebibytes_there_and_back(bed: Bed, life: Life) -> None:
    size = 4 << 20
    await life.containers.create(sh(bed, "cat"))
    await life.containers.start("c1")

    async def write() -> None:
        offset = 0
        while offset < size:
            offset = await life.processes.write_input(C1, offset, bytes(65536))
        await life.processes.close_input(C1, size)

    writing = asyncio.create_task(write())
    assert len(await life.output("c1")) == size
    await writing
    assert (await life.wait("c1")).code == 0


async def test_killing_all_with_the_first(bed: Bed, life: Life) -> None:
    await life.containers.create(sh(bed, "sleep 1000 & sleep 1000 & cat"))
    await life.containers.start("c1")
    await life.processes.signal(C1, signal.SIGKILL, all_processes=True)
    assert (await life.wait("c1")).signal == 9
    await life.containers.remove("c1", 0, 30)
    assert bed.left() == {}


async def test_a_process_that_signals_everybody_it_sees(bed: Bed, life: Life) -> None:
    """`kill -15 0` and `kill -9 -1` killed the agent once: same process group."""
    await life.containers.create(sh(bed, "cat"))
    await life.containers.start("c1")
    await life.processes.exec(bed.exec_request("kill -9 0", "e0"))
    assert (await life.wait("c1", "e0")).signal == 9
    assert life.containers.get("c1").state is ContainerState.RUNNING


async def test_the_agent_dies_and_the_container_runs_on(bed: Bed, life: Life) -> None:
    await life.containers.create(sh(bed, "echo up; read line; echo got $line; exit 9"))
    await life.containers.start("c1")
    await life.processes.exec(bed.exec_request("read line; exit 6"))
    heir = await bed.restart(life)
    assert heir.containers.get("c1").state is ContainerState.RUNNING
    await heir.processes.close_input(E1, 0)
    assert (await heir.wait("c1", "e1")).code == 6
    await heir.processes.write_input(C1, 0, b"x\n")
    assert (await heir.wait("c1")).code == 9
    assert await heir.output("c1") == b"up\ngot x\n"


async def test_an_exit_while_no_agent_was_there(bed: Bed, life: Life) -> None:
    await life.containers.create(sh(bed, "read line; echo bye; exit 11"))
    await life.containers.start("c1")
    await life.processes.write_input(C1, 0, b"x\n")
    bed.pid1.hold()
    await life.end()
    bed.lives.remove(life)
    bed.pid1.release()
    await until(lambda: bed.pid1.journal)
    heir = await bed.start()
    assert (await heir.wait("c1")).code == 11
    pieces = [each async for each in heir.processes.output(C1, {Stream.STDOUT: 0})]
    assert b"".join(each.data for each in pieces if isinstance(each, OutputChunk)) == b"bye\n"


async def test_a_user_that_is_not_root_can_write_to_its_streams(bed: Bed, life: Life) -> None:
    user = {"user": {"uid": 1000, "gid": 1000}}
    output = await run(life, sh(bed, "echo x >/dev/stdout; id -u", process=user))
    assert output == b"x\n1000\n0"

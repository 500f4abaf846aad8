"""Who uses a device, on a proc and a sysfs of the test's own; /dev/null is the device's node."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.fileops import _BOOT, _CODE, WORKER_ARGV, FileWorkers
from agent.core.holding import DeviceParts, Holder, HolderKind
from agent.core.model import DeviceNode, NodeType
from agent.handlers.devices.holders import find, question, scan
from agent.linux import procs, users
from agent.linux.fdpass import MESSAGE_LIMIT
from tests.fakes.hotplug import turns
from tests.fakes.procs import ROOT_MOUNT, FakeProc
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.devices]

NULL = DeviceNode(path="/dev/null", type=NodeType.CHAR, major=1, minor=3)
DATA_MOUNT = "30 20 254:16 / /srv/data rw,relatime - ext4 /dev/vdb rw"


class Lab:
    """A guest with a virtio disk vdb (254:16, partition vdb1 254:17) and PID 1."""

    def __init__(self, base: Path) -> None:
        self.sysfs = FakeSysfs(base)
        self.proc = FakeProc(self.sysfs.roots.proc)
        self.proc.swaps()
        self.function = self.sysfs.function(self.sysfs.port_with_slot(), "0000:01:00.0")
        for name, dev in (("vdb", "254:16"), ("vdb1", "254:17"), ("dm-0", "252:0")):
            self.sysfs.write(self.sysfs.sys / f"class/block/{name}/dev", dev)
        self.sysfs.write(self.sysfs.sys / "class/block/vdb/vdb1/partition", "1")
        self.init = self.proc.process(1, "init")

    def scan(self, *nodes: DeviceNode, blocks: tuple[str, ...] = ()) -> tuple[Holder, ...]:
        parts = DeviceParts(directory=self.function, nodes=nodes, blocks=blocks)
        return scan(self.sysfs.roots, parts)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_nobody(lab: Lab) -> None:
    lab.proc.process(50, mounts=(ROOT_MOUNT, "31 20 254:32 / /other rw - ext4 /dev/vdc rw"))
    assert lab.scan(NULL, blocks=("vdb",)) == ()


def test_a_mount_in_the_first_namespace_names_no_process(lab: Lab) -> None:
    (lab.init / "mountinfo").write_text(f"{ROOT_MOUNT}\n{DATA_MOUNT}\n")
    lab.proc.process(2, "kthreadd", kernel=True)
    expected = Holder(kind=HolderKind.MOUNT, name="/dev/vdb", path="/srv/data")
    assert lab.scan(blocks=("vdb",)) == (expected,)


def test_a_mount_in_a_containers_namespace(lab: Lab) -> None:
    """One report for the namespace, not one for each of its processes."""
    mount = "77 70 254:17 / /data\\040dir rw - ext4 /dev/vdb1 rw"
    for pid in (90, 91):
        lab.proc.process(pid, "postgres", mounts=(mount,), namespace="mnt:[4026532300]")
    (holder,) = lab.scan(blocks=("vdb",))
    assert holder == Holder(
        kind=HolderKind.MOUNT, name="/dev/vdb1", path="/data dir", pid=90, command="postgres"
    )


def test_a_chroot_cannot_hide_a_mount(lab: Lab) -> None:
    """mountinfo leaves out what is not below the reader's root."""
    lab.proc.process(90, mounts=("70 1 0:30 / / rw - tmpfs x rw",), namespace="n", root="/jail")
    lab.proc.process(91, mounts=(DATA_MOUNT,), namespace="n")
    (holder,) = lab.scan(blocks=("vdb",))
    assert holder.pid == 91


def test_btrfs_has_other_numbers_and_names_its_disk(lab: Lab) -> None:
    lines = (
        "30 20 0:45 / /srv rw - btrfs /dev/vdb rw,subvolid=5",
        "31 20 0:46 / /tmp rw - tmpfs /dev/vdb rw",
    )
    lab.proc.process(60, mounts=lines, namespace="n")
    (holder,) = lab.scan(blocks=("vdb",))
    assert holder.path == "/srv"


def test_what_is_on_top_and_who_uses_that(lab: Lab) -> None:
    lab.sysfs.link(lab.sysfs.sys / "class/block/vdb1/holders/dm-0", "../../dm-0")
    mount = "30 20 252:0 / /srv rw - xfs /dev/mapper/data rw"
    lab.proc.process(60, mounts=(mount,), namespace="n")
    stacked, mounted = lab.scan(blocks=("vdb",))
    assert stacked == Holder(kind=HolderKind.STACKED, name="dm-0")
    assert (mounted.kind, mounted.name) == (HolderKind.MOUNT, "/dev/mapper/data")


def test_swap(lab: Lab) -> None:
    lab.proc.swaps(
        "/dev/vdb1                               partition\t1048572\t\t0\t\t-2",
        "/dev/vdc1                               partition\t1048572\t\t0\t\t-2",
        "/vdb                                    file\t\t1048572\t\t0\t\t-3",
    )
    assert lab.scan(blocks=("vdb",)) == (Holder(kind=HolderKind.SWAP, path="/dev/vdb1"),)


def test_open_descriptors(lab: Lab) -> None:
    """By what the node is, not by what it is called."""
    process = lab.proc.process(60, "reader")
    (lab.sysfs.roots.run / "mine").symlink_to("/dev/null")
    lab.proc.open(process, 0, "/dev/zero")
    lab.proc.open(process, 3, "/dev/null")
    lab.proc.open(process, 4, "/dev/null")
    other = lab.proc.process(61, "other")
    lab.proc.open(other, 9, str(lab.sysfs.roots.run / "mine"))
    first, second = lab.scan(NULL)
    assert first == Holder(kind=HolderKind.DESCRIPTOR, path="/dev/null", pid=60, command="reader")
    assert (second.pid, second.path) == (61, str(lab.sysfs.roots.run / "mine"))


def test_a_node_of_the_other_type_with_the_same_numbers(lab: Lab) -> None:
    """Block 1:3 is a RAM disk, character 1:3 is /dev/null."""
    lab.proc.open(lab.proc.process(60), 3, "/dev/null")
    disk = DeviceNode(path="/dev/ram3", type=NodeType.BLOCK, major=1, minor=3)
    assert lab.scan(disk) == ()


def test_a_mapping_that_outlived_its_descriptor(lab: Lab) -> None:
    process = lab.proc.process(60, "gpu")
    lab.proc.map(process, "7f0000000000-7f0000001000", "/dev/null")
    (holder,) = lab.scan(NULL)
    assert (holder.kind, holder.pid) == (HolderKind.DESCRIPTOR, 60)


def test_links_that_lead_nowhere(lab: Lab) -> None:
    """Sockets and pipes have links that are no paths; closed descriptors have none."""
    process = lab.proc.process(60)
    for number, target in enumerate(("socket:[1]", "/gone (deleted)", "anon_inode:[eventfd]")):
        lab.proc.open(process, number, target)
    assert lab.scan(NULL) == ()


def test_more_users_than_an_answer_holds(lab: Lab) -> None:
    for pid in range(100, 100 + users.SHOWN + 5):
        lab.proc.open(lab.proc.process(pid), 3, "/dev/null")
    found = lab.scan(NULL)
    assert len(found) == users.SHOWN
    assert found[-1] == Holder(kind=HolderKind.DESCRIPTOR, name="and 6 more")


def test_more_descriptors_than_are_looked_at(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "FILES_OF_ONE", 3)
    greedy = lab.proc.process(60, "greedy")
    for number in range(10):
        lab.proc.open(greedy, number, "/dev/zero")
    lab.proc.open(lab.proc.process(61, "modest"), 1, "/dev/null")
    marker, holder = lab.scan(NULL)
    assert (marker.pid, marker.command) == (60, "greedy")
    assert marker.name.startswith("and more")
    assert (holder.pid, holder.path) == (61, "/dev/null")


def test_more_descriptors_than_all_may_have(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "FILES_OF_ALL", 3)
    for pid in (60, 61, 62):
        for number in range(2):
            lab.proc.open(lab.proc.path / f"{pid}", number, "/dev/zero")
    cut, rest = lab.scan(NULL)
    assert (cut.pid, cut.name) == (61, "and more: only 1 of its descriptors were looked at")
    assert rest == Holder(
        kind=HolderKind.DESCRIPTOR, name="and more: 1 processes were not looked at"
    )


def test_names_of_the_workload_are_harmless(lab: Lab) -> None:
    mount = "30 20 254:16 / /a\\012\x1b[2Jb rw - ext4 /dev/vdb\\040\x07 rw"
    lab.proc.process(60, "x\n\x1b", mounts=(mount,), namespace="n")
    (holder,) = lab.scan(blocks=("vdb",))
    assert (holder.name, holder.path, holder.command) == ("/dev/vdb ?", "/a??[2Jb", "x??")


def test_a_holder_for_people() -> None:
    holder = Holder(kind=HolderKind.DESCRIPTOR, path="/dev/vdb", pid=60, command="dd")
    assert str(holder) == "descriptor /dev/vdb process 60 (dd)"
    assert str(Holder(kind=HolderKind.STACKED, name="dm-0")) == "stacked dm-0"


class Workers(FileWorkers):
    """Real workers whose search waits for a FIFO's writer, for ever."""

    def __init__(self, stuck: Path) -> None:
        wait = f"w.CALLS['device_users'] = lambda **_: open({str(stuck)!r}).read()"
        boot = _BOOT.replace("w.main()", f"{wait}; w.main()")
        super().__init__(argv=(*WORKER_ARGV[:3], boot, str(_CODE)), limit=2)


async def test_a_worker_gives_the_same_answer(lab: Lab) -> None:
    lab.proc.open(lab.proc.process(60, "reader"), 3, "/dev/null")
    parts = DeviceParts(directory=lab.function, nodes=(NULL,), blocks=("vdb",))
    workers = FileWorkers()
    found = await find(workers, lab.sysfs.roots, parts, Deadline.after(60))
    await workers.close()
    assert found == scan(lab.sysfs.roots, parts)
    assert len(found) == 1


async def test_a_file_system_that_does_not_answer_costs_a_worker_only(lab: Lab) -> None:
    fifo = lab.sysfs.roots.run / "fifo"
    os.mkfifo(fifo)
    workers = Workers(stuck=fifo)
    await workers.start()
    parts = DeviceParts(directory=lab.function)
    with pytest.raises(AgentError) as caught:
        await find(workers, lab.sysfs.roots, parts, Deadline.after(0.2))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    await workers.close()
    while workers._ending:
        await asyncio.wait(workers._ending)
        await turns(2)


def test_the_longest_answer_fits_into_a_message() -> None:
    """Quotes and backslashes take two bytes each in JSON; nothing that is shown takes more."""
    longest = "\\" * procs.TEXT_LIMIT
    worst = users.User("network-namespace", longest, longest, 2**22, longest[:15])
    answer = [worst._asdict() for _ in range(users.SHOWN)]
    assert len(json.dumps({"ok": answer})) < MESSAGE_LIMIT


def test_the_question_goes_through_json(lab: Lab) -> None:
    parts = DeviceParts(directory=lab.function, nodes=(NULL,), blocks=("vdb",))
    asked = json.loads(json.dumps(question(lab.sysfs.roots, parts)))
    assert asked["nodes"] == [["/dev/null", "c", 1, 3]]
    assert asked["device"] == str(lab.function)

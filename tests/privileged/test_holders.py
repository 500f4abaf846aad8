"""Who uses a device, asked of the real kernel; a loop device stands for a PCI disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent
from agent.core.holding import DeviceParts, Holder, HolderKind
from agent.core.model import DeviceNode, NodeType
from agent.core.roots import Roots
from agent.handlers.devices.holders import scan
from agent.linux import mounting
from agent.linux.users import UNSEEN
from tests.privileged import links, loops, mapped, modules, swapping

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.devices,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, swap, namespaces"),
]

SIZE = 16 << 20
VIRTUAL = DeviceParts(directory=Path("/sys/devices/virtual"))
"""All that has no bus: the interfaces that are made by software are below it."""

_SETUP = """
import ctypes, os, sys
from agent.linux import mounting
def unshare(flags):
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
"""
_WAIT = """
print("ready", flush=True)
sys.stdin.read()
"""
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def child(code: str) -> Iterator[int]:
    """A process that has done what `code` says, and waits; its number."""
    home = str(Path(agent.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    process = subprocess.Popen(
        [sys.executable, "-c", _SETUP + code + _WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    if not loops.CONTROL.exists():
        pytest.skip("this machine's kernel has no loop devices")
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(SIZE)
    with loops.attached(image) as device:
        yield device


@pytest.fixture
def disk(loop: str) -> str:
    """The loop device with an empty ext4."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not on this machine")
    subprocess.run(["mkfs.ext4", "-q", loop], check=True)
    return loop


def parts(device: str) -> DeviceParts:
    number = os.stat(device).st_rdev
    node = DeviceNode(
        path=device, type=NodeType.BLOCK, major=os.major(number), minor=os.minor(number)
    )
    directory = Path(f"/sys/class/block/{Path(device).name}").resolve()
    return DeviceParts(directory=directory, nodes=(node,), blocks=(Path(device).name,))


def holders(device: str) -> tuple[Holder, ...]:
    return scan(Roots(), parts(device))


def test_nobody(loop: str) -> None:
    assert holders(loop) == ()


def test_an_open_descriptor_of_another_process(loop: str, tmp_path: Path) -> None:
    """By a node with a name of the workload's own."""
    own_node = tmp_path / "mine"
    os.mknod(own_node, 0o600 | 0o060000, os.stat(loop).st_rdev)
    with child(f"fd = os.open({str(own_node)!r}, os.O_RDONLY)") as pid:
        (holder,) = holders(loop)
        command = Path(f"/proc/{pid}/comm").read_text().strip()
    assert holder == Holder(
        kind=HolderKind.DESCRIPTOR, path=str(own_node), pid=pid, command=command
    )
    assert holders(loop) == ()


def test_our_own_descriptor_counts_as_well(loop: str) -> None:
    fd = os.open(loop, os.O_RDONLY)
    (holder,) = holders(loop)
    os.close(fd)
    assert holder.pid == os.getpid()


def test_a_mapping_without_a_descriptor(loop: str) -> None:
    code = f"import mmap\nwith open({loop!r}, 'rb') as file:\n"
    code += "    area = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)\n"
    # CPython keeps a duplicate of the descriptor; it is closed by its number.
    code += "for name in os.listdir('/proc/self/fd'):\n"
    code += f"    if int(name) > 2 and os.path.realpath('/proc/self/fd/' + name) == {loop!r}:\n"
    code += "        os.close(int(name))\n"
    with child(code) as pid:
        assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")].count(
            loop
        ) == 0
        (holder,) = holders(loop)
    assert (holder.kind, holder.pid, holder.path) == (HolderKind.DESCRIPTOR, pid, loop)


def test_a_served_file_system_that_does_not_answer(loop: str, tmp_path: Path) -> None:
    """A FUSE server that has not even said hello: stat(2) of what is open there hangs."""
    modules.load("fuse")
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine's kernel has no FUSE")
    code = f"""
unshare({CLONE_NEWNS})
mounting.mount(None, "/", None, mounting.MountFlag.REC | mounting.MountFlag.PRIVATE)
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={{server}},rootmode=40000,user_id=0,group_id=0"
mounting.mount("dead", {str(tmp_path)!r}, "fuse", data=options)
served = os.open({str(tmp_path)!r}, os.O_PATH)
fd = os.open({loop!r}, os.O_RDONLY)
"""
    with child(code) as pid:
        (holder,) = holders(loop)
    assert (holder.kind, holder.pid) == (HolderKind.DESCRIPTOR, pid)


def test_a_process_whose_first_thread_has_ended(loop: str) -> None:
    code = f"""
import threading
fd = os.open({loop!r}, os.O_RDONLY)
def go_on(first):
    while os.path.exists(f"/proc/{{first}}/task/{{first}}/ns/mnt"):
        pass
    print("ready", flush=True)
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=go_on, args=(os.getpid(),)).start()
ctypes.CDLL(None).syscall({_exit_number()}, 0)
"""
    with child(code) as pid:
        (holder,) = holders(loop)
    assert (holder.kind, holder.pid) == (HolderKind.DESCRIPTOR, pid)


def _exit_number() -> int:
    """exit(2), which ends one thread."""
    return 60 if os.uname().machine == "x86_64" else 93


def test_a_mount_in_our_namespace(disk: str, tmp_path: Path) -> None:
    point = tmp_path / "mounted here"
    point.mkdir()
    mounting.mount(disk, str(point), "ext4")
    try:
        (holder,) = holders(disk)
    finally:
        mounting.unmount(str(point))
    assert (holder.kind, holder.name, holder.path) == (HolderKind.MOUNT, disk, str(point))
    assert holders(disk) == ()


def test_a_mount_in_another_namespace(disk: str, tmp_path: Path) -> None:
    code = f"""
unshare({CLONE_NEWNS})
mounting.mount(None, "/", None, mounting.MountFlag.REC | mounting.MountFlag.PRIVATE)
mounting.mount({disk!r}, {str(tmp_path)!r}, "ext4")
"""
    with child(code) as pid:
        assert not os.path.ismount(tmp_path)
        (holder,) = holders(disk)
        assert (holder.kind, holder.path, holder.pid) == (HolderKind.MOUNT, str(tmp_path), pid)
    assert holders(disk) == ()


def test_a_file_system_that_was_unmounted_lazily(disk: str, tmp_path: Path) -> None:
    """In no table any more, and still writing to the disk."""
    mounting.mount(disk, str(tmp_path), "ext4")
    with (tmp_path / "file").open("wb"):
        mounting.unmount(str(tmp_path), mounting.UnmountFlag.DETACH)
        (holder,) = holders(disk)
    assert (holder.kind, holder.name) == (HolderKind.MOUNT, UNSEEN)
    assert holders(disk) == ()


def test_swap(loop: str) -> None:
    with swapping.active(loop, SIZE):
        found = holders(loop)
    assert found == (Holder(kind=HolderKind.SWAP, path=loop),)


def test_a_loop_device_on_top(loop: str) -> None:
    """It takes the disk as a file: the kernel lists no holder, and nobody has it open."""
    with loops.attached(Path(loop)) as top:
        (holder,) = holders(loop)
    assert holder == Holder(kind=HolderKind.STACKED, name=Path(top).name)


def test_a_device_mapper_device_on_top(disk: str, tmp_path: Path) -> None:
    modules.load("dm_mod")
    if not mapped.CONTROL.exists():
        pytest.skip("this machine's kernel has no device-mapper")
    with mapped.linear(disk, SIZE // 512) as name:
        assert holders(disk) == (Holder(kind=HolderKind.STACKED, name=name),)
        mounting.mount(f"/dev/{name}", str(tmp_path), "ext4")
        stacked, mounted = holders(disk)
        mounting.unmount(str(tmp_path))
    assert (stacked.name, mounted.path) == (name, str(tmp_path))


def namespaces_of(interface: str) -> dict[str, Holder]:
    path = f"/devices/virtual/net/{interface}"
    return {
        holder.name: holder
        for holder in scan(Roots(), VIRTUAL)
        if holder.kind is HolderKind.NETWORK_NAMESPACE and holder.path == path
    }


def test_an_interface_that_moved_into_another_network_namespace() -> None:
    name = f"ik{os.getpid() % 10**6}"
    with child(f"unshare({CLONE_NEWNET})") as pid, contextlib.ExitStack() as stack:
        try:
            stack.enter_context(links.made(name))
        except OSError as error:
            pytest.skip(f"this machine's kernel has none of {links.KINDS}: {error}")
        assert namespaces_of(name) == {}
        links.move(name, pid)
        found = namespaces_of(name)
        namespace = os.readlink(f"/proc/{pid}/ns/net")
        assert set(found) == {namespace}
        assert found[namespace].pid == pid
        assert os.readlink("/proc/self/ns/net") != namespace


def test_a_network_namespace_that_only_a_mount_keeps(tmp_path: Path) -> None:
    """As `ip netns add` makes one; each namespace has an interface `lo` of its own."""
    place = tmp_path / "blue"
    place.touch()
    with child(f"unshare({CLONE_NEWNET})") as pid:
        namespace = os.readlink(f"/proc/{pid}/ns/net")
        mounting.mount(f"/proc/{pid}/ns/net", str(place), None, mounting.MountFlag.BIND)
    try:
        assert namespace in namespaces_of("lo")
    finally:
        mounting.unmount(str(place))
    assert namespace not in namespaces_of("lo")


def test_a_network_namespace_that_only_a_descriptor_keeps(tmp_path: Path) -> None:
    with child(f"unshare({CLONE_NEWNET})") as pid:
        namespace = os.readlink(f"/proc/{pid}/ns/net")
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    holder = namespaces_of("lo")[namespace]
    os.close(fd)
    assert holder.pid == os.getpid()


def test_the_search_comes_back_to_its_own_namespace() -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with child(f"unshare({CLONE_NEWNET})"):
        namespaces_of("lo")
    assert os.readlink("/proc/thread-self/ns/net") == before

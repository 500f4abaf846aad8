"""Verity, crypt, partitions and mkfs with the real kernel; loop devices stand for disks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.fileops import FileWorkers
from agent.core.hotplug import HotplugBoard
from agent.core.kernel_log import KernelLog
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.log_evidence import LogEvidence
from agent.core.model import AttachedDevice, DeviceNode, DeviceRequest, NodeType, StorageRequest
from agent.core.pci import PciPath
from agent.core.roots import Roots
from agent.core.sources import CryptSetup, TmpfsSource, VeritySetup
from agent.core.tree import SysfsTree
from agent.core.undo import UndoStack
from agent.handlers.storage import mappings
from agent.handlers.storage.base import Tools
from agent.handlers.storage.crypt import make_crypt
from agent.handlers.storage.format import MAKERS, Below, format_if_empty
from agent.handlers.storage.job import Job, Ledger
from agent.handlers.storage.partitions import partition_node
from agent.handlers.storage.pieces import Piece
from agent.handlers.storage.verity import make_verity
from agent.linux import devicemapper, mounting
from agent.linux.block import node_numbers
from agent.linux.uevents import KernelUevents
from tests.fakes import verity_images as images
from tests.privileged import loops, modules, partitioned
from tests.privileged.partitioned import Part

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: loop devices, device-mapper"),
]

MIB = 1 << 20
CONTROL = Path("/dev/mapper/control")
KEY = bytes(range(64))
VERITY = VeritySetup(root_hash=images.ROOT_HASH, hash_offset=len(images.IMAGE))


class Workers(FileWorkers):
    """Real workers; the `fail_at`-th call (from 1) is refused instead of made."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.fail_at = 0

    async def _run(self, call: str, obj: str, deadline: Deadline, **arguments: object) -> Any:
        self.made += 1
        if self.made == self.fail_at:
            raise OSError(errno.EIO, f"{call}: {os.strerror(errno.EIO)}", obj)
        return await super()._run(call, obj, deadline, **arguments)


class Lab:
    """What an attachment has, on the real kernel."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = Workers()
        self.log = KernelLog.open(Roots())
        self.tree = SysfsTree(roots=Roots(run=directory), log=LogEvidence(self.log))
        self.board = HotplugBoard(tree=self.tree, source=KernelUevents(), files=self.files)
        self.tools = Tools(
            devices=cast(Any, None),  # nobody here asks for devices
            roots=self.tree.roots,
            files=self.files,
            board=self.board,
        )
        self.made: list[Piece] = []
        self.disks = contextlib.ExitStack()

    def start(self) -> None:
        self.log.start()
        self.board.start()

    async def take_all_back(self) -> None:
        for piece in reversed(self.made):
            await self.take_back(piece)

    async def close(self) -> None:
        self.disks.close()
        self.board.close()
        self.log.close()
        await self.files.close()

    async def take_back(self, piece: Piece, *, deferred: bool = False) -> None:
        await mappings.take_back(self.tools, piece, Deadline.after(20.0), deferred=deferred)

    def job(self, undo: UndoStack, storage: str) -> Job[Any]:
        return Job(
            request=StorageRequest(id=storage, source=TmpfsSource()),
            source=None,
            deadline=Deadline.after(60.0),
            tools=self.tools,
            undo=undo,
            ledger=Ledger(note=self.made.append, take_back=self.take_back),
            locations={},
        )

    def image(self, name: str, data: bytes | int) -> Path:
        path = self.directory / name
        with path.open("wb") as file:
            if isinstance(data, int):
                file.truncate(data)
            else:
                file.write(data)
        return path

    def disk(self, data: bytes | int | Path, name: str = "disk") -> DeviceNode:
        path = data if isinstance(data, Path) else self.image(name, data)
        return node(self.disks.enter_context(loops.attached(path)))

    async def verity(
        self,
        disk: DeviceNode,
        setup: VeritySetup = VERITY,
        hashes: DeviceNode | None = None,
        storage: str = "v",
    ) -> DeviceNode:
        async with UndoStack("attach") as undo:
            made = await make_verity(self.job(undo, storage), disk, hashes or disk, setup)
            undo.commit()
        return made

    async def crypt(self, disk: DeviceNode, setup: CryptSetup, storage: str = "c") -> DeviceNode:
        async with UndoStack("attach") as undo:
            made = await make_crypt(self.job(undo, storage), disk, setup)
            undo.commit()
        return made


def node(path: str) -> DeviceNode:
    numbers = node_numbers(path)
    assert numbers is not None
    return DeviceNode(path=path, type=NodeType.BLOCK, major=numbers.major, minor=numbers.minor)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    modules.load("loop")
    if not loops.CONTROL.exists():
        pytest.skip("this machine's kernel has no loop devices")
    made = Lab(tmp_path)
    made.start()
    yield made
    await made.close()


@pytest.fixture
async def mapper(lab: Lab) -> AsyncIterator[Lab]:
    modules.load("dm_mod")
    if node_numbers(CONTROL) is None:
        pytest.skip("this machine's kernel has no device-mapper")
    before = names()
    yield lab
    await lab.take_all_back()
    assert names() == before


def names() -> set[str]:
    return set(devicemapper.mappings(str(CONTROL)))


def read(disk: DeviceNode, at: int = 0, size: int = images.BLOCK) -> bytes:
    fd = os.open(disk.path, os.O_RDONLY)
    try:
        return os.pread(fd, size, at)
    finally:
        os.close(fd)


def write(disk: DeviceNode, at: int, data: bytes) -> None:
    fd = os.open(disk.path, os.O_RDWR)
    try:
        os.pwrite(fd, data, at)
        os.fsync(fd)
    finally:
        os.close(fd)


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


def flipped(at: int) -> bytes:
    image = bytearray(images.whole_image())
    image[at] ^= 0x10
    return bytes(image)


async def test_verity_of_an_image_by_veritysetup(mapper: Lab) -> None:
    """Size and content are the data's; the hashes behind it do not show."""
    made = await mapper.verity(mapper.disk(images.whole_image()))
    assert mappings.size_of(mapper.tree, made) == len(images.IMAGE)
    assert mappings.is_read_only(mapper.tree, made)
    assert read(made, 0, len(images.IMAGE)) == images.IMAGE
    with pytest.raises(OSError, match=r"not permitted|denied|Read-only"):
        write(made, 0, b"x")
    assert names() >= {"innkeeper.verity.v"}


async def test_verity_with_hashes_on_another_device(mapper: Lab) -> None:
    hashes = mapper.disk(images.SUPERBLOCK.ljust(4096, b"\0") + images.hash_block(), "hashes")
    disk = mapper.disk(images.IMAGE)
    made = await mapper.verity(disk, replace(VERITY, hash_offset=0), hashes)
    assert read(made, 0, len(images.IMAGE)) == images.IMAGE


async def test_verity_without_a_superblock(mapper: Lab) -> None:
    disk = mapper.disk(images.IMAGE + images.hash_block())
    setup = replace(VERITY, superblock=False, salt=images.SALT.hex())
    assert read(await mapper.verity(disk, setup), 0, len(images.IMAGE)) == images.IMAGE


async def test_a_flipped_bit_is_an_error_of_its_block_alone(mapper: Lab) -> None:
    made = await mapper.verity(mapper.disk(flipped(5 * images.BLOCK + 77)))
    with pytest.raises(OSError, match="Input/output error") as caught:
        read(made, 5 * images.BLOCK)
    assert caught.value.errno == errno.EIO
    for block in (0, 15):
        at = block * images.BLOCK
        assert read(made, at) == images.IMAGE[at : at + images.BLOCK]


@pytest.mark.parametrize("change", ["hash", "root", "salt"])
async def test_a_changed_hash_makes_everything_unreadable(mapper: Lab, change: str) -> None:
    setup, image = VERITY, images.whole_image()
    match change:
        case "hash":
            image = flipped(len(images.IMAGE) + images.BLOCK + 40)
        case "root":
            setup = replace(VERITY, root_hash="6" + images.ROOT_HASH[1:])
        case "salt":
            image = flipped(len(images.IMAGE) + 88)
    made = await mapper.verity(mapper.disk(image), setup)
    with pytest.raises(OSError, match="Input/output error"):
        read(made)


# IEEE 1619-2018, annex B, vector 10: XTS-AES-256 of data unit 255.
XTS_KEY = bytes.fromhex(
    "2718281828459045235360287471352662497757247093699959574966967627"
    "3141592653589793238462643383279502884197169399375105820974944592"
)
XTS_PLAIN = bytes(range(256)) * 2
XTS_FIRST = bytes.fromhex("1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b")
XTS_LAST = bytes.fromhex("773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151")


async def test_the_default_cipher_is_xts_aes_256(mapper: Lab) -> None:
    """Sector 255 of a disk, counted from the offset, as the standard has it."""
    disk = mapper.disk(MIB)
    made = await mapper.crypt(disk, CryptSetup(key=XTS_KEY, offset=4096))
    assert mappings.size_of(mapper.tree, made) == MIB - 4096
    write(made, 255 * 512, XTS_PLAIN)
    await mapper.take_back(mapper.made[-1])
    raw = read(disk, 4096 + 255 * 512, 512)
    assert (raw[:32], raw[-32:]) == (XTS_FIRST, XTS_LAST)


async def test_sectors_of_4096_bytes(mapper: Lab) -> None:
    disk = mapper.disk(MIB)
    setup = CryptSetup(key=KEY, sector_size=4096)
    made = await mapper.crypt(disk, setup)
    assert (mapper.tree.roots.sys / f"class/block/{Path(made.path).name}").exists()
    sector = mappings.directory_of(mapper.tree, made)
    assert sector is not None
    assert mapper.tree.text(sector / "queue/logical_block_size") == "4096"
    write(made, 8192, b"secret".ljust(4096, b"\0"))
    assert b"secret" not in read(disk, 0, MIB)


async def test_a_file_system_under_the_right_key_only(mapper: Lab) -> None:
    """Under a wrong key nothing is to be seen, and nothing is made over it."""
    need("blkid", "mkfs.ext4")
    disk = mapper.disk(32 * MIB)
    below = Below(node=disk, offset=0)
    made = await mapper.crypt(disk, CryptSetup(key=KEY))
    assert await form(mapper, made, below=below)
    await write_file(mapper, made, "kept")
    await mapper.take_back(mapper.made[-1])
    wrong = await mapper.crypt(disk, CryptSetup(key=KEY[::-1]))
    assert read(wrong, 1080, 2) != b"\x53\xef"
    error = await refused(form(mapper, wrong, below=below), Reason.FORMAT_REFUSED)
    assert "is the key right?" in str(error)
    await mapper.take_back(mapper.made[-1])
    again = await mapper.crypt(disk, CryptSetup(key=KEY))
    assert read(again, 1080, 2) == b"\x53\xef"
    assert not await form(mapper, again, below=below)
    with mounted(mapper, again) as point:
        assert (point / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("setup", "number"),
    [
        (CryptSetup(key=KEY[:63], cipher="capi:xts(aes)-plain64"), "EINVAL"),
        (CryptSetup(key=KEY, cipher="nosuch-xts-plain64"), "ENOENT"),
    ],
)
async def test_the_kernel_refuses_a_table(mapper: Lab, setup: CryptSetup, number: str) -> None:
    """Its log says why; the key is not in what is told."""
    disk = mapper.disk(MIB)
    error = await refused(mapper.crypt(disk, setup), Reason.MAPPING_REFUSED)
    assert error.fields["errno"] == number
    assert "crypt" in error.fields["kernel_log"]
    assert setup.key.hex()[:32] not in f"{error} {error.fields}"
    assert names() & {piece.name for piece in mapper.made} == set()


@pytest.mark.parametrize("kind", ["verity", "crypt"])
async def test_every_call_that_fails_leaves_no_mapping(mapper: Lab, kind: str) -> None:
    """The n-th call of a worker fails, for every n: the kernel's list is as before."""
    disk = mapper.disk(images.whole_image())
    before = names()
    reasons: list[Reason | None] = []
    for n in range(1, 100):
        mapper.files.made, mapper.files.fail_at = 0, n
        reasons.append(await reason_of(mapper, disk, kind))
        if reasons[-1] is None:
            break
        assert names() == before
    calls = {"verity": 4, "crypt": 3}[kind]
    assert reasons == [*[Reason.MAPPING_REFUSED] * calls, None]
    mapper.files.fail_at = 0


async def reason_of(mapper: Lab, disk: DeviceNode, kind: str) -> Reason | None:
    making = mapper.verity(disk) if kind == "verity" else mapper.crypt(disk, CryptSetup(key=KEY))
    try:
        await making
    except AgentError as error:
        return error.reason
    return None


async def test_a_mapping_in_use_and_its_users(mapper: Lab) -> None:
    """Refused with its mount; asked to, the kernel removes it after the last user."""
    need("mkfs.ext4", "blkid")
    disk = mapper.disk(32 * MIB)
    made = await mapper.crypt(disk, CryptSetup(key=KEY))
    await form(mapper, made, below=Below(node=disk, offset=0))
    piece = mapper.made[-1]
    with mounted(mapper, made) as point:
        error = await refused(mapper.take_back(piece), Reason.STILL_IN_USE)
        assert f"the mount on {point}" in error.fields["users"]
        assert piece.name in names()
        await mapper.take_back(piece, deferred=True)
        assert piece.name in names()
    await gone(mapper, piece)
    await mapper.take_back(piece)


async def gone(lab: Lab, piece: Piece) -> None:
    """The kernel removes it in the background, and tells of it."""
    within = Deadline.after(20.0)
    with lab.board.watch(("/devices/virtual/block",)) as watch:
        while piece.name in names():
            assert await watch.news(within)
            watch.reset()


async def test_a_mapping_on_top_of_a_mapping(mapper: Lab) -> None:
    """Verity below crypt is nothing anybody wants, but shows whose turn it is."""
    lower = await mapper.crypt(mapper.disk(MIB), CryptSetup(key=KEY), "low")
    piece = mapper.made[-1]
    upper = await mapper.crypt(lower, CryptSetup(key=KEY), "high")
    error = await refused(mapper.take_back(piece), Reason.STILL_IN_USE)
    assert f"{Path(upper.path).name} on top of it" in error.fields["users"]
    await mapper.take_back(mapper.made[-1])
    await mapper.take_back(piece)
    assert piece.name not in names()


async def test_a_disk_that_is_mounted_is_not_mapped(mapper: Lab) -> None:
    need("mkfs.ext4", "blkid")
    disk = mapper.disk(32 * MIB)
    await form(mapper, disk)
    with mounted(mapper, disk):
        refusal = mapper.crypt(disk, CryptSetup(key=KEY))
        error = await refused(refusal, Reason.MAPPING_REFUSED)
    assert error.fields["errno"] == "EBUSY"
    assert "mounted" in str(error.hint)


async def test_a_new_disk_is_formatted_once(lab: Lab) -> None:
    need("mkfs.ext4", "blkid")
    disk = lab.disk(32 * MIB)
    assert await form(lab, disk)
    await write_file(lab, disk, "kept")
    assert not await form(lab, disk)
    error = await refused(form(lab, disk, "xfs"), Reason.FORMAT_REFUSED)
    assert "it holds ext4" in error.message
    with mounted(lab, disk) as point:
        assert (point / "file").read_text() == "kept"


@pytest.mark.parametrize("fs_type", MAKERS)
async def test_what_is_made_can_be_mounted(lab: Lab, fs_type: str) -> None:
    """On a sparse disk: nothing that mkfs leaves for later costs its size at once."""
    need(f"mkfs.{fs_type}", "blkid")
    modules.load(fs_type)
    image = lab.image("big", 640 * MIB)
    disk = lab.disk(image)
    assert await form(lab, disk, fs_type)
    with mounted(lab, disk, fs_type) as point:
        (point / "file").write_text("kept")
    assert not await form(lab, disk, fs_type)
    assert image.stat().st_blocks * 512 < 100 * MIB


@contextlib.contextmanager
def plain(lab: Lab, target: str, parameters: str) -> Iterator[tuple[DeviceNode, str]]:
    """A mapping of 1 MiB without a storage, and its name."""
    name, path = f"innkeeper-test-{target}", str(CONTROL)
    major, minor = devicemapper.create_mapping(path=path, name=name, uuid=name)
    try:
        devicemapper.load_mapping(
            path=path,
            name=name,
            sectors=MIB // 512,
            target=target,
            parameters=parameters,
            read_only=False,
            secret=False,
        )
        devicemapper.resume_mapping(path=path, name=name)
        disk = lab.tree.real(Path(f"/sys/dev/block/{major}:{minor}"))
        assert disk is not None
        yield node(f"/dev/{disk.name}"), name
    finally:
        devicemapper.remove_mapping(path=path, name=name, deferred=True)


async def test_a_disk_whose_reads_fail(mapper: Lab) -> None:
    """Nobody knows what it holds: it is neither empty nor without a superblock."""
    need("mkfs.ext4", "blkid")
    with plain(mapper, "error", "") as (disk, _):
        error = await refused(form(mapper, disk), Reason.FORMAT_REFUSED)
        assert error.fields["errno"] == "EIO"
        error = await refused(mapper.verity(disk), Reason.MAPPING_REFUSED)
        assert error.fields["errno"] == "EIO"
        assert "innkeeper.verity.v" not in names()


async def test_a_disk_that_does_not_answer(mapper: Lab) -> None:
    """Given up at the deadline; the agent goes on, and the disk works when it is back."""
    below = mapper.disk(images.whole_image().ljust(MIB, b"\0"))
    with plain(mapper, "linear", f"{below.major}:{below.minor} 0") as (disk, name):
        suspend(name)
        async with UndoStack("attach") as undo:
            job = replace(mapper.job(undo, "v"), deadline=Deadline.after(0.5))
            making = make_verity(job, disk, disk, VERITY)
            await refused(making, Reason.OPERATION_TIMED_OUT)
        assert "innkeeper.verity.v" not in names()
        assert not await mapper.files.settled(disk.path, 0)
        devicemapper.resume_mapping(path=str(CONTROL), name=name)
        assert await mapper.files.settled(disk.path, 20.0)
        assert read(await mapper.verity(disk), 0, len(images.IMAGE)) == images.IMAGE
        await mapper.take_all_back()


def suspend(name: str) -> None:
    request = devicemapper._request(name, flags=devicemapper.Flag.SUSPEND)
    devicemapper._ask(str(CONTROL), devicemapper.Command.DEV_SUSPEND, request, name)


@pytest.mark.parametrize("table", ["gpt", "mbr"])
async def test_partitions_of_a_real_disk(lab: Lab, table: str) -> None:
    """By number, and with a GPT by label; `blkid` and mkfs take an empty one as empty."""
    need("mkfs.ext4", "blkid")
    parts = (
        Part(first=2048, count=2048, label="boot"),
        Part(first=4096, count=65536, label="für alle"),
    )
    image = lab.image("parted", 64 * MIB)
    writer = partitioned.write_gpt if table == "gpt" else partitioned.write_mbr
    writer(image, parts)
    disk = lab.disk(image)
    partitioned.scan(disk.path)
    if node_numbers(f"{disk.path}p1") is None:
        pytest.skip(f"this machine's kernel does not read a {table.upper()}")
    second = await partition_node(lab.tools, device(disk), 2, "", Deadline.after(20.0))
    assert second.path == f"{disk.path}p2"
    assert mappings.size_of(lab.tree, second) == 32 * MIB
    if table == "gpt":
        found = await partition_node(lab.tools, device(disk), 0, "für alle", Deadline.after(20.0))
        assert found == second
    assert await form(lab, second)
    looking = partition_node(lab.tools, device(disk), 3, "", Deadline.after(0.1))
    error = await refused(looking, Reason.DEVICE_NOT_READY)
    label = "label 'boot'" if table == "gpt" else "no label"
    assert f"1 ({label}, 1048576 bytes)" in error.fields["partitions"]
    formatting = form(lab, disk)
    error = await refused(formatting, Reason.FORMAT_REFUSED)
    assert f"a {'gpt' if table == 'gpt' else 'dos'} partition table" in error.message


async def test_a_disk_without_partitions(lab: Lab) -> None:
    looking = partition_node(lab.tools, device(lab.disk(MIB)), 1, "", Deadline.after(0.1))
    error = await refused(looking, Reason.DEVICE_NOT_READY)
    assert "no partition table" in error.message


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")


async def form(
    lab: Lab, disk: DeviceNode, fs_type: str = "ext4", *, below: Below | None = None
) -> bool:
    within = Deadline.after(60.0)
    return await format_if_empty(lab.tools, disk, fs_type, within, read_only=False, below=below)


async def write_file(lab: Lab, disk: DeviceNode, text: str) -> None:
    with mounted(lab, disk) as point:
        (point / "file").write_text(text)


@contextlib.contextmanager
def mounted(lab: Lab, disk: DeviceNode, fs_type: str = "ext4") -> Iterator[Path]:
    point = lab.directory / "mnt"
    point.mkdir(exist_ok=True)
    mounting.mount(disk.path, str(point), fs_type)
    try:
        yield point
    finally:
        mounting.unmount(str(point), mounting.UnmountFlag.NOFOLLOW)


def device(disk: DeviceNode) -> AttachedDevice:
    return AttachedDevice(
        request=DeviceRequest(id="d1", address=PciPath.parse("02"), kind=BlockExpectation()),
        pci_path=None,
        bdf="",
        sysfs_path="",
        driver="",
        numa_node=None,
        iommu_group=None,
        nodes=(disk,),
        info=BlockInfo(size=MIB, logical_block_size=512, read_only=False),
    )

"""Mappings of storages: verity, crypt, and the taking back, on a fake control device."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.model import DeviceNode
from agent.core.sources import CryptSetup, VeritySetup
from agent.core.undo import UndoStack
from agent.handlers.storage import mappings
from agent.handlers.storage.crypt import make_crypt
from agent.handlers.storage.pieces import Piece, PieceKind
from agent.handlers.storage.verity import make_verity
from tests.fakes import verity_images as images
from tests.fakes.devicemapper import MAJOR, READONLY, SECURE
from tests.fakes.hotplug import turns
from tests.fakes.storage_jobs import JobBench, job_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

MIB = 1 << 20
KEY = bytes(range(64))
CRYPT = CryptSetup(key=KEY)
VERITY = VeritySetup(root_hash=images.ROOT_HASH, hash_offset=len(images.IMAGE))
PIECE = Piece(kind=PieceKind.MAPPING, name="innkeeper.verity.data")


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobBench]:
    async with job_bench(tmp_path) as made:
        monkeypatch.setattr("fcntl.ioctl", made.mapper.ioctl)
        yield made


async def verity(lab: JobBench, setup: VeritySetup = VERITY, **data: bytes) -> DeviceNode:
    node = lab.disk("vdb", "254:16", data.get("data", images.whole_image()))
    hashes = lab.disk("vdc", "254:32", data["hashes"]) if "hashes" in data else node
    async with UndoStack("attach") as undo:
        made = await make_verity(lab.job(undo), node, hashes, setup)
        undo.commit()
    return made


async def crypt(lab: JobBench, setup: CryptSetup = CRYPT, size: int = MIB) -> DeviceNode:
    node = lab.disk("vdb", "254:16", bytes(size))
    async with UndoStack("attach") as undo:
        made = await make_crypt(lab.job(undo), node, setup)
        undo.commit()
    return made


async def refused(awaitable: Awaitable[object], reason: Reason) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await awaitable
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_verity_from_a_superblock(lab: JobBench) -> None:
    """Sizes, salt and root hash are what veritysetup printed; the hashes begin in block 17,
    behind 16 blocks of data and the one with the superblock."""
    node = await verity(lab)
    (name, made), *_ = lab.mapper.mappings.items()
    assert (name, made.uuid) == ("innkeeper.verity.data", "innkeeper.verity.data")
    assert made.parameters == (
        f"1 254:16 254:16 4096 4096 16 17 sha256 {images.ROOT_HASH} {images.SALT.hex()}"
    )
    assert (made.target, made.sectors, made.flags) == ("verity", 128, READONLY)
    assert made.active
    assert (node.path, node.major, node.minor) == (
        str(lab.bench.sysfs.roots.dev / "dm-0"),
        MAJOR,
        0,
    )
    assert lab.noted == [PIECE]


async def test_verity_with_its_hashes_elsewhere(lab: JobBench) -> None:
    hashes = images.SUPERBLOCK.ljust(4096, b"\0") + images.hash_block()
    setup = VeritySetup(root_hash=images.ROOT_HASH)
    await verity(lab, setup, data=images.IMAGE, hashes=hashes)
    (made,) = lab.mapper.mappings.values()
    assert made.parameters.startswith("1 254:16 254:32 4096 4096 16 1 sha256 ")


async def test_verity_without_a_superblock(lab: JobBench) -> None:
    """All before the hash offset is data; without a salt there is a dash."""
    setup = replace(VERITY, superblock=False)
    await verity(lab, setup, data=images.IMAGE + images.hash_block())
    (made,) = lab.mapper.mappings.values()
    expected = f"1 254:16 254:16 4096 4096 16 16 sha256 {images.ROOT_HASH} -"
    assert made.parameters == expected


async def test_verity_with_all_in_the_request(lab: JobBench) -> None:
    setup = VeritySetup(
        root_hash="ab" * 64,
        salt="00ff",
        hash_offset=2048,
        algorithm="sha512",
        data_block_size=512,
        hash_block_size=1024,
        data_blocks=30,
        superblock=False,
    )
    hashes = bytes(8192)
    await verity(lab, setup, data=images.IMAGE, hashes=hashes)
    (made,) = lab.mapper.mappings.values()
    assert made.parameters == f"1 254:16 254:32 512 1024 30 2 sha512 {'ab' * 64} 00ff"
    assert made.sectors == 30


async def test_a_request_that_says_the_same_as_the_superblock(lab: JobBench) -> None:
    setup = replace(VERITY, salt=images.SALT.hex(), algorithm="sha256", data_blocks=16)
    await verity(lab, replace(setup, data_block_size=4096, hash_block_size=4096))
    assert list(lab.mapper.mappings) == ["innkeeper.verity.data"]


@pytest.mark.parametrize(
    ("field", "wanted", "has"),
    [
        ("salt", "00", images.SALT.hex()),
        ("algorithm", "sha512", "sha256"),
        ("data_block_size", 512, "4096"),
        ("hash_block_size", 1024, "4096"),
        ("data_blocks", 15, "16"),
    ],
)
async def test_a_superblock_that_says_otherwise(
    lab: JobBench, field: str, wanted: object, has: str
) -> None:
    setup = replace(VERITY, **{field: wanted})  # type: ignore[arg-type]
    error = await refused(verity(lab, setup), Reason.MAPPING_REFUSED)
    assert f"{field} is {wanted} in the request, but {has} in the superblock" in error.message
    assert (error.fields["requested"], error.fields["superblock"]) == (str(wanted), has)
    assert (lab.noted, lab.mapper.commands) == ([], [])


async def test_no_superblock_where_one_should_be(lab: JobBench) -> None:
    error = await refused(verity(lab, replace(VERITY, hash_offset=0)), Reason.MAPPING_REFUSED)
    assert "there is no superblock of dm-verity at byte 0" in error.message
    error = await refused(verity(lab, replace(VERITY, hash_offset=MIB)), Reason.MAPPING_REFUSED)
    assert "cannot be read" in error.message
    assert error.fields["errno"] == "ENXIO"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"root_hash": ""}, "no root hash"),
        ({"root_hash": "ab 1 restart_on_corruption"}, "hexadecimal"),
        ({"root_hash": "abc"}, "hexadecimal"),
        ({"root_hash": "ab" * 20}, "40 digits are no digest of sha256, which has 64"),
        ({"salt": "x"}, "hexadecimal"),
        ({"algorithm": "sha256 x"}, "not the name of a hash"),
        ({"data_block_size": 1000}, "not a power of two"),
        ({"hash_block_size": 256}, "not a power of two"),
        ({"hash_offset": 100}, "not a whole number of sectors"),
        ({"superblock": False, "hash_offset": 512}, "no whole number of hash blocks of 4096"),
    ],
)
async def test_verity_values_that_cannot_be(
    lab: JobBench, change: dict[str, object], why: str
) -> None:
    setup = replace(VERITY, **change)  # type: ignore[arg-type]
    error = await refused(verity(lab, setup), Reason.BAD_FIELD)
    assert why in error.message
    assert lab.mapper.commands == []


async def test_sizes_that_do_not_fit(lab: JobBench) -> None:
    setup = replace(VERITY, superblock=False, data_blocks=17)
    error = await refused(verity(lab, setup), Reason.MAPPING_REFUSED)
    assert "17 blocks of 4096 are 69632 bytes" in error.message
    assert "has 65536 for them" in error.message
    short = images.IMAGE + images.SUPERBLOCK
    error = await refused(verity(lab, data=short), Reason.MAPPING_REFUSED)
    assert "the hashes would begin at byte 69632" in error.message


async def test_crypt_with_the_defaults(lab: JobBench) -> None:
    node = await crypt(lab)
    assert node.path.endswith("/dm-0")
    (name, made), *_ = lab.mapper.mappings.items()
    assert name == "innkeeper.crypt.data"
    assert made.parameters == f"aes-xts-plain64 {KEY.hex()} 0 254:16 0 1 allow_discards"
    assert (made.target, made.sectors, made.flags) == ("crypt", MIB // 512, SECURE)


async def test_crypt_with_all_said(lab: JobBench) -> None:
    setup = CryptSetup(key=b"k" * 32, cipher="aes-cbc-essiv:sha256", sector_size=4096, offset=8192)
    await crypt(lab, setup)
    (made,) = lab.mapper.mappings.values()
    assert made.parameters == (
        f"aes-cbc-essiv:sha256 {'6b' * 32} 0 254:16 16 2 allow_discards sector_size:4096"
    )
    assert made.sectors == (MIB - 8192) // 512


@pytest.mark.parametrize("length", [32, 48, 64])
async def test_keys_of_xts(lab: JobBench, length: int) -> None:
    """AES-128, -192 and -256, twice."""
    await crypt(lab, replace(CRYPT, key=KEY[:length]))


async def test_a_key_of_another_cipher_is_the_kernels_to_judge(lab: JobBench) -> None:
    await crypt(lab, replace(CRYPT, key=KEY[:16], cipher="aes-cbc-essiv:sha256"))


async def test_crypt_on_a_disk_that_is_read_only(lab: JobBench) -> None:
    node = lab.disk("vdb", "254:16", bytes(MIB))
    lab.bench.sysfs.write(lab.directory(node) / "ro", "1")
    async with UndoStack("attach") as undo:
        await make_crypt(lab.job(undo), node, CRYPT)
        undo.commit()
    (made,) = lab.mapper.mappings.values()
    assert made.flags == SECURE | READONLY


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": b""}, "no key"),
        ({"key": KEY[:63]}, "the key has 63 bytes, and aes-xts-plain64 takes 32 or 64"),
        ({"cipher": "aes 00 0 8:0"}, "not the name of a cipher"),
        ({"cipher": ""}, "not the name of a cipher"),
        ({"sector_size": 256}, "512, 1024, 2048, 4096"),
        ({"offset": 100}, "whole number of sectors"),
        ({"offset": MIB}, "no whole number of encryption sectors"),
        ({"offset": 512, "sector_size": 4096}, "no whole number of encryption sectors of 4096"),
    ],
)
async def test_crypt_values_that_cannot_be(
    lab: JobBench, change: dict[str, object], why: str
) -> None:
    setup = replace(CRYPT, **change)  # type: ignore[arg-type]
    error = await refused(crypt(lab, setup), Reason.BAD_FIELD)
    assert why in error.message
    assert KEY.hex() not in str(error)
    assert lab.mapper.commands == []


async def test_the_key_is_shown_nowhere(lab: JobBench, caplog: pytest.LogCaptureFixture) -> None:
    """Also when the kernel refuses it: not in the error, its causes, or a log."""
    caplog.set_level(logging.DEBUG)
    lab.mapper.refuse[9] = errno.EINVAL
    error: BaseException | None = await refused(crypt(lab), Reason.MAPPING_REFUSED)
    assert isinstance(error, AgentError)
    shown = [caplog.text, repr(CRYPT), str(lab.noted), str(error.fields), str(error.hint)]
    while error is not None:
        shown += [str(error), repr(error), str(error.args)]
        error = error.__cause__ or error.__context__
    for text in shown:
        assert KEY.hex() not in text
        assert repr(KEY) not in text


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EBUSY])
@pytest.mark.parametrize("kind", ["verity", "crypt"])
async def test_every_call_that_fails_leaves_no_mapping(
    lab: JobBench, kind: str, number: int
) -> None:
    """The n-th call of a worker fails, for every n; afterwards it works."""
    attach: Callable[[JobBench], Awaitable[object]]
    attach = verity if kind == "verity" else crypt
    lab.files.errno = number
    reasons = set()
    for n in range(1, 100):
        lab.files.calls.clear()
        lab.files.fail_at = n
        try:
            await attach(lab)
        except AgentError as error:
            reasons.add(error.reason)
        else:
            break
        assert lab.mapper.mappings == {}
    assert len(lab.files.calls) == {"verity": 4, "crypt": 3}[kind]
    assert reasons == {Reason.MAPPING_REFUSED}
    assert list(lab.mapper.mappings) == [f"innkeeper.{kind}.data"]


@pytest.mark.parametrize("command", [3, 9, 6])
async def test_the_kernel_refuses_a_step(lab: JobBench, command: int) -> None:
    lab.mapper.refuse[command] = errno.ENOMEM
    error = await refused(verity(lab), Reason.MAPPING_REFUSED)
    assert error.code is Code.FAILED_PRECONDITION
    assert error.fields["errno"] == "ENOMEM"
    assert lab.mapper.mappings == {}


async def test_a_disk_that_somebody_uses(lab: JobBench) -> None:
    lab.mapper.refuse[9] = errno.EBUSY
    error = await refused(verity(lab), Reason.MAPPING_REFUSED)
    assert "is mounted, or part of another mapping" in str(error)


async def test_a_name_in_use_is_free_for_the_next_attempt(lab: JobBench) -> None:
    """It is left from an agent that has died: the name is ours, and the undo removes it."""
    await verity(lab)
    error = await refused(verity(lab), Reason.MAPPING_REFUSED)
    assert "attach again" in str(error)
    await verity(lab)


async def test_a_node_that_comes_with_an_event(lab: JobBench) -> None:
    lab.mapper.makes_nodes = False
    task = asyncio.ensure_future(verity(lab))
    while 6 not in lab.mapper.commands:
        await turns(1)
    lab.bench.sysfs.node("dm-0", f"{MAJOR}:0")
    lab.bench.announce("add", lab.bench.sysfs.sys / "devices/virtual/block/dm-0")
    assert (await task).minor == 0


async def test_a_node_that_never_comes(lab: JobBench) -> None:
    lab.mapper.makes_nodes = False
    node = lab.disk("vdb", "254:16", images.whole_image())
    async with UndoStack("attach") as undo:
        job = lab.job(undo, Deadline.after(0.2))
        error = await refused(make_verity(job, node, node, VERITY), Reason.DEVICE_NOT_READY)
    assert "there is no node" in error.message
    assert lab.mapper.mappings == {}


async def test_a_kernel_without_device_mapper(
    lab: JobBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab.bench.sysfs.roots.dev / "mapper/control").unlink()
    _modprobe(tmp_path, monkeypatch, "echo 'modprobe: FATAL: Module dm_mod not found.' >&2; exit 1")
    error = await refused(verity(lab), Reason.MAPPING_REFUSED)
    assert "this kernel has no device-mapper" in error.message
    assert "Module dm_mod not found" in error.message
    assert lab.noted == []
    await mappings.take_back(lab.tools, PIECE, Deadline.after(60.0))


async def test_device_mapper_is_a_module(
    lab: JobBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = lab.bench.sysfs.roots.dev / "mapper/control"
    control.unlink()
    _modprobe(tmp_path, monkeypatch, f'[ "$*" = "-b -- dm_mod" ] && : > {control}')
    await verity(lab)
    assert list(lab.mapper.mappings) == ["innkeeper.verity.data"]


def _modprobe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin/modprobe"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


async def test_taking_back_what_is_gone(lab: JobBench) -> None:
    await mappings.take_back(lab.tools, PIECE, Deadline.after(60.0))
    await verity(lab)
    await mappings.take_back(lab.tools, PIECE, Deadline.after(60.0))
    await mappings.take_back(lab.tools, PIECE, Deadline.after(60.0))
    assert lab.mapper.mappings == {}


async def test_taking_back_what_is_in_use(lab: JobBench) -> None:
    await verity(lab)
    lab.mapper.mappings[PIECE.name].opened = 3
    sysfs = lab.bench.sysfs
    (sysfs.sys / "devices/virtual/block/dm-0/holders/dm-7").mkdir(parents=True)
    sysfs.write(
        sysfs.roots.proc / "self/mountinfo",
        f"36 35 {MAJOR}:0 / /mnt/data ro shared:1 - erofs /dev/dm-0 ro",
    )
    take_back = mappings.take_back(lab.tools, PIECE, Deadline.after(60.0))
    error = await refused(take_back, Reason.STILL_IN_USE)
    assert error.fields["users"] == "dm-7 on top of it, the mount on /mnt/data, opened 3 times"
    assert list(lab.mapper.mappings) == [PIECE.name]
    await mappings.take_back(lab.tools, PIECE, Deadline.after(60.0), deferred=True)
    assert lab.mapper.mappings[PIECE.name].leaving


async def test_a_removal_that_the_kernel_refuses(lab: JobBench) -> None:
    await verity(lab)
    lab.mapper.refuse[4] = errno.EPERM
    take_back = mappings.take_back(lab.tools, PIECE, Deadline.after(60.0))
    error = await refused(take_back, Reason.MAPPING_REFUSED)
    assert error.fields["errno"] == "EPERM"


async def test_a_disk_without_a_size(lab: JobBench) -> None:
    error = await refused(crypt(lab, size=0), Reason.DEVICE_NOT_READY)
    assert "has no size" in error.message

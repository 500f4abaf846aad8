"""The superblock of dm-verity: bytes that the real veritysetup wrote."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux import veritysuper
from agent.linux.veritysuper import SuperblockError, VeritySuperblock
from tests.fakes import verity_images as images

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def changed(at: int, data: bytes) -> bytes:
    return images.SUPERBLOCK[:at] + data + images.SUPERBLOCK[at + len(data) :]


def test_what_veritysetup_wrote() -> None:
    assert veritysuper.parse(images.SUPERBLOCK) == VeritySuperblock(
        hash_type=1,
        uuid=UUID(images.UUID),
        algorithm="sha256",
        data_block_size=4096,
        hash_block_size=4096,
        data_blocks=16,
        salt=bytes(range(32)),
    )
    bare = veritysuper.parse(images.BARE)
    assert (bare.algorithm, bare.salt) == ("sha512", b"")
    assert (bare.data_block_size, bare.hash_block_size) == (512, 1024)


def test_it_is_written_as_veritysetup_does() -> None:
    for data in (images.SUPERBLOCK, images.BARE):
        assert veritysuper.pack(veritysuper.parse(data)) == data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (images.SUPERBLOCK[:511], "511 bytes are less"),
        (bytes(512), "not with b'verity"),
        (changed(0, b"LUKS\xba\xbe"), "it begins with b'LUKS"),
        (changed(8, b"\2"), "version is 2"),
        (changed(12, b"\7"), "hash type is 7"),
        (changed(32, b"sha 256 1 panic"), "not the name of a hash"),
        (changed(32, bytes(32)), "not the name of a hash"),
        (changed(32, b"x" * 32), "not the name of a hash"),
        (changed(64, (4095).to_bytes(4, "little")), "data block size 4095"),
        (changed(68, (256).to_bytes(4, "little")), "hash block size 256"),
        (changed(72, bytes(8)), "0 data blocks"),
        (changed(72, b"\xff" * 8), "are no size of a disk"),
        (changed(80, (257).to_bytes(2, "little")), "salt of 257 bytes"),
    ],
)
def test_bytes_that_are_no_superblock(data: bytes, why: str) -> None:
    with pytest.raises(SuperblockError, match=why):
        veritysuper.parse(data)


@pytest.mark.parametrize(
    ("offset", "block", "first"), [(0, 4096, 1), (65536, 4096, 17), (65536, 1024, 65), (0, 512, 1)]
)
def test_where_the_tree_begins(offset: int, block: int, first: int) -> None:
    """As `veritysetup dump` and the files that it made show: the next whole block."""
    assert veritysuper.tree_start(offset, block) == first


@given(st.binary(min_size=512, max_size=600))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for candidate in (data, images.SUPERBLOCK[:32] + data[32:]):
        try:
            parsed = veritysuper.parse(candidate)
        except SuperblockError:
            continue
        assert " " not in parsed.algorithm


@given(
    st.builds(
        VeritySuperblock,
        hash_type=st.integers(0, 1),
        uuid=st.uuids(),
        algorithm=st.from_regex(r"[a-z0-9-]{1,31}", fullmatch=True),
        data_block_size=st.sampled_from([512, 1024, 4096, 65536]),
        hash_block_size=st.sampled_from([512, 1024, 4096]),
        data_blocks=st.integers(1, 1 << 40),
        salt=st.binary(max_size=256),
    )
)
def test_what_is_packed_is_parsed(superblock: VeritySuperblock) -> None:
    assert veritysuper.parse(veritysuper.pack(superblock)) == superblock

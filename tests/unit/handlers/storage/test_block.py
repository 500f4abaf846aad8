"""What the errnos of a mount from a disk mean: mount(2), dm-verity, dm-crypt."""

from __future__ import annotations

import errno

import pytest

from agent.core.sources import BlockSource, CryptSetup, VeritySetup
from agent.handlers.storage.block import mount_hints

pytestmark = [pytest.mark.unit, pytest.mark.storage]

CRYPT = CryptSetup(key=bytes(64))
VERITY = VeritySetup(root_hash="ab" * 32)


def test_a_disk_without_a_file_system() -> None:
    hint = mount_hints("d1", BlockSource(device_id="d1", fs_type="ext4"))[errno.EINVAL]
    assert hint.startswith("device d1 holds no ext4 file system (new? ask for format_if_empty), or")
    assert "key" not in hint


@pytest.mark.parametrize(
    "source",
    [
        BlockSource(device_id="d1", fs_type="squashfs"),
        BlockSource(device_id="d1", fs_type="ext4", format_if_empty=True),
        BlockSource(device_id="d1", fs_type="ext4", verity=VERITY),
    ],
)
def test_formatting_is_no_way_out(source: BlockSource) -> None:
    assert "format_if_empty" not in mount_hints("d1", source)[errno.EINVAL]


def test_a_wrong_key() -> None:
    source = BlockSource(device_id="d1", fs_type="ext4", crypt=CRYPT)
    assert "or the key is another one" in mount_hints("d1", source)[errno.EINVAL]


def test_a_wrong_root_hash() -> None:
    """A block that does not fit its hash cannot be read (dm-verity.rst)."""
    plain = BlockSource(device_id="d1", fs_type="erofs")
    assert errno.EIO not in mount_hints("d1", plain)
    checked = BlockSource(device_id="d1", fs_type="erofs", verity=VERITY)
    assert mount_hints("d1", checked)[errno.EIO].startswith("the root hash does not fit")


def test_a_partition_that_is_mounted() -> None:
    hint = mount_hints("d1", BlockSource(device_id="d1", fs_type="ext4"))[errno.EBUSY]
    assert "device d1, or a partition of it, is mounted already" in hint

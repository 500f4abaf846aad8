"""mountinfo's lines: which mount is whose, and which superblocks the agent needs itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.core.errors import AgentError
from agent.core.roots import Roots
from agent.handlers.storage.superblocks import MountTable
from tests.fakes.storage_operations import FakeRecords

pytestmark = [pytest.mark.unit, pytest.mark.storage]

# A guest: a read-only root, /run in memory, spools in a memory of their own.
GUEST = (
    "21 1 254:1 / / ro,relatime - ext4 /dev/root ro",
    "22 21 0:20 / /run rw,nosuid - tmpfs tmpfs rw",
    "23 22 0:21 / /run/innkeeper/spools rw - tmpfs tmpfs rw",
)


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., MountTable]:
    def make(*lines: str) -> MountTable:
        file = tmp_path / "proc/self/mountinfo"
        file.parent.mkdir(parents=True)
        file.write_text("".join(f"{line}\n" for line in (*GUEST, *lines)))
        return MountTable(Roots(proc=tmp_path / "proc"))

    return make


def test_the_agents_own_superblocks(table: Callable[..., MountTable]) -> None:
    assert set(table().own()) == {(254, 1), (0, 20)}


def test_a_state_directory_of_its_own_is_one_more(table: Callable[..., MountTable]) -> None:
    own = table("24 22 254:32 / /run/innkeeper/state rw - ext4 /dev/vdc rw").own()
    assert own[(254, 32)] == "/run/innkeeper/state"


def test_the_topmost_mount_counts(table: Callable[..., MountTable]) -> None:
    records = FakeRecords()
    records.add("data", 24)
    record = records.record("data")
    mounts = table("24 21 254:16 / /mnt/data rw - ext4 /dev/vdb rw")
    entry = mounts.find(record)
    assert entry is not None
    assert entry.device == (254, 16)
    assert mounts.get(record) == entry


def test_one_that_is_covered_is_gone(table: Callable[..., MountTable]) -> None:
    records = FakeRecords()
    records.add("data", 24)
    record = records.record("data")
    mounts = table(
        "24 21 254:16 / /mnt/data rw - ext4 /dev/vdb rw",
        "25 24 254:32 / /mnt/data rw - ext4 /dev/vdc rw",
        "26 21 254:16 /part /mnt/part rw - ext4 /dev/vdb rw",
    )
    assert mounts.find(record) is None
    with pytest.raises(AgentError, match="mounted over it"):
        mounts.get(record)
    # What is left of its superblock is reached by the bind.
    assert [entry.mount_point for entry in mounts.reaching((254, 16))] == ["/mnt/part"]

"""Where a storage may be mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.core.sources import TmpfsSource
from agent.handlers.storage.mountpoints import MountPoint, choose_mount_point, refuse_nested
from tests.fakes.source_bench import source_bench

pytestmark = [pytest.mark.unit, pytest.mark.storage]

ROOTS = Roots()


@pytest.mark.parametrize(
    ("wanted", "path", "own"),
    [
        (None, "/run/innkeeper/storages/data", True),
        ("/run/innkeeper/storages/other", "/run/innkeeper/storages/other", True),
        ("/mnt/x", "/mnt/x", False),
        ("/mnt/x/y", "/mnt/x/y", False),
        ("/run/volumes", "/run/volumes", False),
    ],
)
def test_good_places(wanted: str | None, path: str, *, own: bool) -> None:
    assert choose_mount_point(ROOTS, "data", wanted) == MountPoint(path=path, own=own)


@pytest.mark.parametrize(
    "wanted",
    [
        "",
        ".",
        "mnt/x",
        "/",
        "/mnt",
        "/mnt/",
        "/mnt/x/",
        "//mnt/x",
        "/mnt//x",
        "/mnt/./x",
        "/mnt/../etc",
        "/mntx/y",
        "/etc",
        "/proc/x",
        "/run",
        "/run/innkeeper",
        "/run/innkeeper/state",
        "/run/innkeeper/storages",
        "/run/innkeeper/storages/a/b",
        "/run/innkeeper/storages/-x",
        "/run/innkeeper/bundles/c1",
        "/mnt/a\0b",
        "/mnt/" + "x" * 4096,
    ],
)
def test_bad_places(wanted: str) -> None:
    with pytest.raises(AgentError) as caught:
        choose_mount_point(ROOTS, "data", wanted)
    assert caught.value.reason in (Reason.BAD_FIELD, Reason.BAD_ID)


def test_the_rule_is_told() -> None:
    with pytest.raises(AgentError) as caught:
        choose_mount_point(ROOTS, "data", "/etc")
    assert caught.value.message == (
        "'/etc' cannot be a mount point: it lies neither below /mnt nor below /run"
    )
    assert "/run/innkeeper/storages/NAME" in str(caught.value.hint)


def test_the_default_follows_the_run_directory(tmp_path: Path) -> None:
    roots = Roots(run=tmp_path / "innkeeper")
    assert choose_mount_point(roots, "a", None).path == f"{tmp_path}/innkeeper/storages/a"


def test_not_inside_another_storage() -> None:
    """What is in there was written by a container: a link would lead anywhere."""
    point = MountPoint(path="/mnt/a/b", own=False)
    with pytest.raises(AgentError, match="inside the storage mounted on /mnt/a"):
        refuse_nested(ROOTS, point, ["/mnt/c", "/mnt/a"])
    refuse_nested(ROOTS, point, ["/mnt/a/bb", "/mnt/a/b/c", "/mnt/ab"])


@pytest.mark.parametrize(
    ("made", "number", "hint"),
    [("", "ENOENT", "it must exist already, empty"), ("place/file", "ENOTEMPTY", "must be empty")],
)
async def test_a_directory_that_is_not_ready(
    tmp_path: Path, made: str, number: str, hint: str
) -> None:
    """Only those of its own the agent makes."""
    async with source_bench(tmp_path) as bench:
        parent = bench.roots.run.parent
        if made:
            (parent / made).mkdir(parents=True)
        with pytest.raises(AgentError) as caught:
            await bench.attach("data", TmpfsSource(), mount_point=str(parent / "place"))
    assert caught.value.reason is Reason.MOUNT_REFUSED
    assert caught.value.fields["errno"] == number
    assert hint in str(caught.value.hint)

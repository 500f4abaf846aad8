"""Directories that links of a root lead to: made inside it, and only those."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.linux.rootlinks import make_link_targets

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    (inside / "var").mkdir(parents=True)
    return inside


def made(top: Path) -> set[str]:
    """All directories below `top`, links not followed."""
    return {
        str(Path(where, name).relative_to(top))
        for where, names, _ in os.walk(top)
        for name in names
        if not Path(where, name).is_symlink()
    }


def test_a_link_without_its_target(root: Path) -> None:
    """/var/run is a link to /run, and the image lost its empty /run."""
    (root / "var/run").symlink_to("/run")
    make_link_targets(str(root), ["/var/run/secrets/token"])
    # What the path itself names is the runtime's to make.
    assert made(root) == {"var", "run"}


def test_a_chain_of_links(root: Path) -> None:
    """A chain of absolute links once ended in "File exists"."""
    (root / "var/run2").symlink_to("/run2")
    (root / "run2").symlink_to("/tmp/run2")
    make_link_targets(str(root), ["/var/run2/secrets/x/y"])
    assert made(root) == {"var", "tmp", "tmp/run2"}


def test_nothing_is_made_outside(root: Path) -> None:
    (root / "up").symlink_to("../../../../above/deep")
    (root / "out").symlink_to("/elsewhere")
    (root / "var/out").symlink_to(root.parent / "outside")
    make_link_targets(str(root), ["/up/x", "/../out/x", "/var/../var/out/x"])
    assert {path.name for path in root.parent.iterdir()} == {"root"}
    # The absolute link counts from the root, as it does for the container.
    inner = str((root.parent / "outside").relative_to("/"))
    assert {"above", "above/deep", "elsewhere", inner} <= made(root)


def test_what_is_there_stays_as_it_is(root: Path) -> None:
    (root / "run").mkdir(mode=0o700)
    (root / "var/run").symlink_to("../run")
    (root / "file").write_text("text")
    (root / "a").symlink_to("file")
    before = made(root)
    make_link_targets(str(root), ["/var/run/x", "/a/x", "/file/x", "/none/x", "/", "var/.//run"])
    assert made(root) == before
    assert (root / "run").stat().st_mode & 0o777 == 0o700


def test_a_circle_ends_and_the_next_path_has_its_turn(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "var/run").symlink_to("/run")
    make_link_targets(str(root), ["/a/x", "/var/run/x"])
    assert made(root) == {"var", "run"}


def test_a_root_that_is_not_there_is_left_to_others(root: Path) -> None:
    make_link_targets(f"{root}/none", ["/x"])
    assert made(root) == {"var"}

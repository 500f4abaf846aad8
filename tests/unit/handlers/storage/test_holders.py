"""Who keeps a mount busy, by what proc shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.roots import Roots
from agent.handlers.storage import holders as module
from agent.handlers.storage.holders import holders

pytestmark = [pytest.mark.unit, pytest.mark.storage]

POINT = "/run/innkeeper/storages/data"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(proc=tmp_path)


def process(roots: Roots, number: int, *files: str) -> None:
    folder = roots.proc / f"{number}"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"p{number}\n")
    (folder / "cwd").symlink_to("/")
    for at, file in enumerate(files):
        (folder / f"fd/{at}").symlink_to(file)


def test_a_process_with_a_file_in_it_is_named_once(roots: Roots) -> None:
    process(roots, 7, f"{POINT}-other/f", f"{POINT}/f", f"{POINT}/g")
    process(roots, 8, "/elsewhere")
    (found,) = holders(roots, (), POINT)
    assert found in {f"process 7 (p7) with {POINT}/{name}" for name in "fg"}


def test_a_container_with_many_open_files_does_not_keep_the_agent(
    roots: Roots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RLIMIT_NOFILE may be a million (fs.nr_open)."""
    monkeypatch.setattr(module, "LOOKED_AT", 20)
    process(roots, 7, *["/elsewhere"] * 100)
    process(roots, 8, f"{POINT}/f")
    (found,) = holders(roots, (), POINT)
    assert found.startswith("maybe others")

"""Parts of the boot that need no kernel: lists, links, names, launching."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent.pid1 import entropy, hostname, launch, mounts
from agent.pid1.launch import Launch

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.mark.parametrize(
    ("chosen", "text", "name"),
    [
        ("given", "other\n", "given"),
        (None, "from-file\n", "from-file"),
        ("", " first second\n", "first"),
        (None, "\n", "innkeeper"),
        (None, None, "innkeeper"),
    ],
)
def test_host_names(tmp_path: Path, chosen: str | None, text: str | None, name: str) -> None:
    path = tmp_path / "hostname"
    if text is not None:
        path.write_text(text)
    assert hostname.choose(chosen, str(path)) == name


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_a_host_name_the_kernel_could_not_hold(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        hostname.set_host_name(name)


def test_links_take_the_place_of_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ptmx").touch()
    os.symlink("elsewhere", tmp_path / "dev/fd")
    for _ in range(2):
        assert mounts.make_links(mounts.DEV_LINKS, root=str(tmp_path)) == []
    links = {path: os.readlink(tmp_path / path[1:]) for _, path in mounts.DEV_LINKS}
    assert links == {
        "/dev/fd": "/proc/self/fd",
        "/dev/stdin": "/proc/self/fd/0",
        "/dev/stdout": "/proc/self/fd/1",
        "/dev/stderr": "/proc/self/fd/2",
        "/dev/core": "/proc/kcore",
        "/dev/ptmx": "pts/ptmx",
    }


def test_a_link_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (warning,) = mounts.make_links((("x", "/missing/link"),), root=str(tmp_path))
    assert "/missing/link" in warning


def test_no_hardware_generator_is_no_entropy(tmp_path: Path) -> None:
    assert entropy.credit(str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("arguments", "launched"),
    [
        (["agent.relay"], Launch("agent.relay")),
        (["agent", "--x", "y"], Launch("agent", ("--x", "y"))),
        (["--cgroup", "/agent", "agent"], Launch("agent", (), "/agent")),
    ],
)
def test_launch_arguments(arguments: list[str], launched: Launch) -> None:
    assert launch.parse(arguments) == launched


@pytest.mark.parametrize("arguments", [[], ["--cgroup"], ["--cgroup", "x", "y"], ["-h"]])
def test_launch_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: run ")


def test_a_launched_module_is_in_its_group_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "agent"
    group.mkdir()
    (group / "cgroup.procs").touch()
    (tmp_path / "stand_in.py").write_text(
        "import sys, pathlib\n"
        f"WHEN_IMPORTED = pathlib.Path({str(group / 'cgroup.procs')!r}).read_text()\n"
        "def main():\n    return 0 if (WHEN_IMPORTED, sys.argv[1:]) == ('0', ['a']) else 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", [])
    arguments = ["--cgroup", "/agent", "stand_in", "a"]
    assert launch.main(arguments, cgroup_root=str(tmp_path)) == 0


def test_a_launched_package_runs_its_main_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stand_in_package").mkdir()
    (tmp_path / "stand_in_package/__init__.py").touch()
    (tmp_path / "stand_in_package/__main__.py").write_text("def main():\n    return 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", [])
    arguments = ["--cgroup", "/missing", "stand_in_package"]
    assert launch.main(arguments, cgroup_root=str(tmp_path)) == 5
    # Unprotected is better than not running.
    assert "warning" in capsys.readouterr().err

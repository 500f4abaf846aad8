"""Lines of mountinfo as proc_pid_mountinfo(5) describes them, and mount(2)'s own checks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux.mounting import MountFlag, mount, parse_mountinfo, unescape, unmount

pytestmark = [pytest.mark.unit, pytest.mark.storage]

# The example of the manual page.
LINE = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"


def kernel_escape(path: str) -> str:
    """What the kernel's mangle() does: octal for space, tab, newline, backslash and #."""
    return "".join(f"\\{ord(char):03o}" if char in " \t\n\\#" else char for char in path)


def test_the_example_of_the_manual() -> None:
    (entry,) = parse_mountinfo(LINE + "\n")
    assert (entry.mount_id, entry.parent_id, entry.device) == (36, 35, (98, 0))
    assert (entry.root, entry.mount_point) == ("/mnt1", "/mnt2")
    assert (entry.options, entry.tags) == ("rw,noatime", ("master:1",))
    assert (entry.fs_type, entry.source) == ("ext3", "/dev/root")
    assert entry.super_options == "rw,errors=continue"


@pytest.mark.parametrize("tags", [(), ("shared:1",), ("shared:1", "master:2", "unbindable")])
def test_any_number_of_optional_fields(tags: tuple[str, ...]) -> None:
    line = " ".join(["1 2 0:3 / /x rw", *tags, "- tmpfs tmpfs rw"])
    assert parse_mountinfo(line)[0].tags == tags


def test_octal_escapes_are_undone() -> None:
    line = r"1 2 0:3 /a\040b /mnt/tab\011nl\012bs\134hash\043 rw - fuse.x host:/a\040b rw"
    (entry,) = parse_mountinfo(line)
    assert entry.root == "/a b"
    assert entry.mount_point == "/mnt/tab\tnl\nbs\\hash#"
    assert entry.source == "host:/a b"


def test_an_escaped_backslash_does_not_start_another_escape() -> None:
    assert unescape(r"\134040") == r"\040"


def test_letters_that_python_takes_for_spaces_do_not_split() -> None:
    """No-break space, line separator and form feed are plain letters in a path."""
    line = "1 2 0:3 / /a\u00a0b\u2028c\x0cd\x85 rw - tmpfs x rw"
    assert parse_mountinfo(line)[0].mount_point == "/a\u00a0b\u2028c\x0cd\x85"


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), min_size=1))
def test_every_path_comes_back(paths: list[str]) -> None:
    text = "".join(f"1 2 0:3 / /{kernel_escape(path)} rw - tmpfs x rw\n" for path in paths)
    assert [entry.mount_point for entry in parse_mountinfo(text)] == [f"/{path}" for path in paths]


@pytest.mark.parametrize("line", ["x", "1 2 0:3 / /x rw - tmpfs", "1 2 0:3 / - tmpfs x rw"])
def test_what_is_no_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of mountinfo"):
        parse_mountinfo(line)


def test_this_machine_has_a_root() -> None:
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    assert "/" in {entry.mount_point for entry in parse_mountinfo(text)}


def test_errors_name_call_and_object(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(OSError, match="umount2") as caught:
        unmount(missing)
    assert caught.value.filename == missing
    with pytest.raises(OSError, match="mount") as caught:
        mount("none", missing, "tmpfs", MountFlag.NOSUID)
    assert caught.value.filename == missing


def test_a_nul_in_a_path_is_refused_not_cut_off() -> None:
    with pytest.raises(OSError, match="umount2") as caught:
        unmount("/proc\0/x")
    assert caught.value.errno == errno.EINVAL

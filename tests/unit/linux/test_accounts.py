"""Users by name: as container engines read passwd and group, and in hostile roots."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.linux.accounts import LARGEST, find_account, find_home, number_of

pytestmark = [pytest.mark.unit, pytest.mark.containers]

PASSWD = """root:x:0:0:root:/root:/bin/sh
# a comment

daemon:x:1:1::/:
web:x:1000:100:Web,,,:/srv:/bin/sh
web:x:7:7::/:/bin/sh
1234:x:55:56::/:
:x:5:5::/:
broken:x:abc:5::/:
short:x
+nis
negative:x:-1:0::/:
huge:x:4294967295:0::/:
"""
GROUP = """root:x:0:
tty:x:5:web
staff:x:50:daemon,web, root
web:x:1000:web
twice:x:50:web
bad:x:y:web
members-missing:x:60
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    return tmp_path


def found(root: Path, user: str, group: str | None = None) -> tuple[int, int, tuple[int, ...]]:
    answer = find_account(root=str(root), user=user, group=group)
    assert answer["missing"] == ""
    return answer["uid"], answer["gid"], answer["groups"]


@pytest.mark.parametrize(
    ("user", "group", "expected"),
    [
        ("root", None, (0, 0, (50,))),
        ("daemon", None, (1, 1, (50,))),
        ("web", None, (1000, 100, (5, 50, 1000))),
        ("1000", None, (1000, 100, (5, 50, 1000))),
        ("1234", None, (55, 56, ())),
        ("4321", None, (4321, 0, ())),
        ("web", "staff", (1000, 50, ())),
        ("web", "77", (1000, 77, ())),
        ("4321", "tty", (4321, 5, ())),
        ("4294967294", "4294967294", (4294967294, 4294967294, ())),
    ],
)
def test_a_user_brings_its_groups_unless_one_is_named(
    root: Path, user: str, group: str | None, expected: tuple[int, int, tuple[int, ...]]
) -> None:
    """moby/sys/user, GetExecUser: the first line that has the name, or the number."""
    assert found(root, user, group) == expected


@pytest.mark.parametrize(
    ("user", "group", "missing"),
    [
        ("nobody", None, "user"),
        ("short", None, "user"),
        ("broken", None, "user"),
        ("negative", None, "user"),
        ("huge", None, "user"),
        ("4294967295", None, "user"),
        ("-1", None, "user"),
        ("\u0661", None, "user"),
        ("we", None, "user"),
        ("web", "nogroup", "group"),
        ("web", "bad", "group"),
        ("web", "", "group"),
    ],
)
def test_names_that_are_not_there(root: Path, user: str, group: str | None, missing: str) -> None:
    assert find_account(root=str(root), user=user, group=group)["missing"] == missing


def test_a_root_without_the_files(tmp_path: Path) -> None:
    assert found(tmp_path, "5") == (5, 0, ())
    assert find_account(root=str(tmp_path), user="web", group=None)["missing"] == "user"
    (tmp_path / "etc").write_text("no directory")
    assert found(tmp_path, "5", "6") == (5, 6, ())


def test_links_stay_in_the_root(root: Path) -> None:
    """An absolute one too: else a container would have the guest's users looked up."""
    (root / "etc/passwd").rename(root / "real")
    (root / "etc/passwd").symlink_to("/real")
    assert found(root, "web")[0] == 1000
    (root / "etc/passwd").unlink()
    (root / "etc/passwd").symlink_to("../../../../../../etc/passwd")
    with pytest.raises(OSError, match="openat2") as caught:
        find_account(root=str(root), user="root", group=None)
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("kind", ["fifo", "directory", "endless", "device"])
def test_what_is_no_file_is_not_waited_for(root: Path, kind: str) -> None:
    path = root / "etc/passwd"
    path.unlink()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "endless":
            path.touch()
            os.truncate(path, LARGEST + 1)
        case _:
            (root / "dev").mkdir()
            path.symlink_to("/dev/zero")
            (root / "dev/zero").symlink_to("/proc/self/fd/0")
    if kind == "device":
        # Whatever leads out is not there.
        assert find_account(root=str(root), user="web", group=None)["missing"] == "user"
        return
    with pytest.raises(OSError, match=r"regular|read") as caught:
        find_account(root=str(root), user="web", group=None)
    assert caught.value.errno == (errno.EFBIG if kind == "endless" else errno.EINVAL)


def test_bytes_that_are_no_text(root: Path) -> None:
    (root / "etc/passwd").write_bytes(b"\xff\xfe:x:1:1\n\0:x:2:2\nweb:x:9:9\n" + b":" * 100_000)
    assert found(root, "web") == (9, 9, (5, 50, 1000))


@pytest.mark.parametrize("text", ["", "1 ", " 1", "+1", "0x1", "1_0", "9" * 5000, "\u00b2"])
def test_what_is_no_number(text: str) -> None:
    assert number_of(text) is None


@pytest.mark.parametrize(
    ("uid", "home"), [(0, "/root"), (1000, "/srv"), (55, "/"), (4321, ""), (5, "")]
)
def test_a_home_is_that_of_the_first_user_with_the_number(root: Path, uid: int, home: str) -> None:
    assert find_home(root=str(root), uid=uid) == home
    name = {0: "root", 1000: "web"}.get(uid, str(uid))
    if uid != 55:
        assert find_account(root=str(root), user=name, group=None)["home"] == home


@pytest.mark.parametrize("home", ["/a\x07b", "/caf\udce9", "/" * 4096])
def test_a_home_that_no_variable_can_hold(root: Path, home: str) -> None:
    text = f"web:x:9:9::{home}:/bin/sh\n"
    (root / "etc/passwd").write_bytes(text.encode(errors="surrogateescape"))
    assert find_home(root=str(root), uid=9) == ""


def test_a_home_is_not_waited_for(root: Path) -> None:
    (root / "etc/passwd").unlink()
    assert find_home(root=str(root), uid=0) == ""
    os.mkfifo(root / "etc/passwd")
    with pytest.raises(OSError, match="regular"):
        find_home(root=str(root), uid=0)

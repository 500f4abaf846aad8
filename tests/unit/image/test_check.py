"""What a finished image is checked for."""

from __future__ import annotations

import pytest

from innkeeper.image.check import (
    MUST_HAVE,
    Found,
    faults_of,
    missing_libraries,
    parse_listing,
)
from innkeeper.image.tree import Tree
from tests.fakes.elf import program_file

pytestmark = [pytest.mark.unit, pytest.mark.boot]

FILE = 0o100644
PROGRAM = 0o100755


def sound() -> list[Found]:
    found = [Found(path=path, mode=PROGRAM) for path in MUST_HAVE]
    cached = "usr/lib/innkeeper/agent/__pycache__/__init__.cpython-313.pyc"
    return [*found, Found(path=cached, mode=FILE)]


def test_a_sound_image_has_no_faults() -> None:
    assert faults_of(sound()) == []


def test_what_is_missing_is_named() -> None:
    left = [item for item in sound() if item.path != "usr/bin/crun"]
    assert faults_of(left) == ["/usr/bin/crun is missing"]


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        ("usr/bin/mount", 0o104755, "setuid or setgid"),
        ("usr/bin/wall", 0o102755, "setuid or setgid"),
        ("usr/lib/systemd/systemd-udevd", PROGRAM, "no udev"),
        ("usr/bin/udevadm", PROGRAM, "no udev"),
        ("usr/lib/udev/rules.d/60-block.rules", FILE, "no udev"),
        ("usr/lib/systemd/systemd", PROGRAM, "PID 1 is ours"),
        ("usr/bin/gcc-14", PROGRAM, "nothing is compiled"),
        ("usr/bin/x86_64-linux-gnu-ld", PROGRAM, "nothing is compiled"),
        ("usr/bin/dpkg", PROGRAM, "nothing is installed"),
        ("usr/share/man/man1/x.gz", FILE, "documentation"),
        ("usr/lib/innkeeper/agent/core/x.py", FILE, "has no byte code"),
    ],
)
def test_what_must_not_be_there_is_named_with_the_rule(path: str, mode: int, said: str) -> None:
    faults = faults_of([*sound(), Found(path=path, mode=mode)])
    assert faults
    assert all(path in fault for fault in faults)
    assert said in " ".join(faults)


def test_a_library_of_udev_or_systemd_is_fine() -> None:
    """crun links libsystemd; no daemon and no rules come with it."""
    libraries = ("libsystemd.so.0.40.0", "libudev.so.1.7.10")
    found = [Found(path=f"usr/lib/x86_64-linux-gnu/{name}", mode=FILE) for name in libraries]
    assert faults_of([*sound(), *found]) == []


def test_init_must_be_executable_and_roots() -> None:
    others = [item for item in sound() if item.path != "usr/lib/innkeeper/init"]
    found = [*others, Found(path="usr/lib/innkeeper/init", mode=FILE, owner=1000)]
    assert faults_of(found) == [
        "/usr/lib/innkeeper/init: belongs to 1000, not to root",
        "/usr/lib/innkeeper/init is not executable",
    ]


def test_listings_of_debugfs_are_read() -> None:
    text = (
        'debugfs: ls -p "/"\n'
        "/2/040755/0/0/.//\n/2/040755/0/0/..//\n/11/040700/0/0/lost+found//\n"
        "/12/120777/0/0/bin/7/\n"
        'debugfs: ls -p "/usr"\n'
        "/13/040755/0/0/.//\n/14/100755/0/0/a b/12/\n"
    )
    assert list(parse_listing(text, ["", "usr"])) == [
        Found(path="lost+found", mode=0o40700),
        Found(path="bin", mode=0o120777),
        Found(path="usr/a b", mode=0o100755),
    ]


def test_a_program_whose_library_was_left_out_is_named() -> None:
    tree = Tree()
    tree.add_file("usr/lib/x86_64-linux-gnu/libc.so.6", program_file(), component="libc6")
    program = program_file("libc.so.6", "libstdc++.so.6")
    tree.add_file("usr/lib/python3/cygrpc.so", program, component="grpcio")
    assert missing_libraries(tree) == [
        "/usr/lib/python3/cygrpc.so needs libstdc++.so.6, which is not in the image"
    ]

"""The archive that the kernel unpacks."""

from __future__ import annotations

import shutil

import pytest

from innkeeper.image.cpio import write_cpio
from innkeeper.image.model import EPOCH, ImageError
from innkeeper.image.tree import Tree
from innkeeper.shim.commands import run

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def sample() -> Tree:
    tree = Tree()
    tree.add_file("init", b"#!/bin/sh\n", executable=True, component="initrd")
    tree.add_symlink("bin/sh", "busybox", component="initrd")
    return tree


def test_the_first_record_is_as_the_kernel_documents_it() -> None:
    """buffer-format.rst: magic, then ino mode uid gid nlink mtime filesize major minor
    rmajor rminor namesize check, 8 hex digits each; header and name padded to 4 bytes."""
    header = (
        "070701"
        "00000001"
        "000041ED"
        "00000000"
        "00000000"
        "00000002"
        f"{EPOCH:08X}"
        "00000000"
        "00000000"
        "00000000"
        "00000000"
        "00000000"
        "00000004"
        "00000000"
    )
    assert write_cpio(Tree()).startswith(header.encode() + b"dev\0" + b"\0\0")


def test_it_ends_with_a_trailer_and_every_record_is_aligned() -> None:
    data = write_cpio(sample())
    assert data.endswith(b"TRAILER!!!\0\0\0\0")
    assert len(data) % 4 == 0
    for at in range(len(data)):
        if data.startswith(b"070701", at):
            assert at % 4 == 0


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio on this host")
def test_cpio_itself_can_read_it() -> None:
    data = write_cpio(sample())
    listed = run(["cpio", "-tv", "--quiet", "--numeric-uid-gid"], input=data, deadline=20)
    lines = [line.split() for line in listed.text.splitlines()]
    assert [(line[0], line[-1]) for line in lines] == [
        ("drwxr-xr-x", "dev"),
        ("crw-------", "dev/console"),
        ("drwxr-xr-x", "bin"),
        ("lrwxrwxrwx", "busybox"),  # bin/sh -> busybox
        ("-rwxr-xr-x", "init"),
    ]
    assert lines[1][4:6] == ["5,", "1"]


def test_a_hard_link_is_refused() -> None:
    tree = sample()
    tree.add_hard_link("other", "init", component="initrd")
    with pytest.raises(ImageError, match="/other: a hard link in an initrd"):
        write_cpio(tree)

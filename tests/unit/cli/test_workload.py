"""What the command line asks for, as OCI's words and the protocol's."""

from __future__ import annotations

import json
import os

import pytest

from innkeeper.cli.options import UserWord
from innkeeper.cli.workload import ContainerOptions, ProcessOptions, full_environment
from innkeeper.v1 import containers_pb2

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def test_what_was_not_asked_for_is_left_to_the_guest() -> None:
    assert ProcessOptions(argv=("ls", "-l")).to_oci() == {"args": ["ls", "-l"]}


def test_a_process_is_told_its_user_environment_and_directory() -> None:
    options = ProcessOptions(
        argv=("ls",),
        user=UserWord(uid=1000, gid=50),
        environment=("A=1",),
        directory="/srv",
        more={"noNewPrivileges": True},
    )
    assert options.to_oci() == {
        "args": ["ls"],
        "env": ["A=1"],
        "cwd": "/srv",
        "user": {"uid": 1000, "gid": 50},
        "noNewPrivileges": True,
    }


def test_an_environment_has_a_path_and_our_terminal_unless_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "screen")
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert full_environment(("A=1",), with_terminal=False) == (path, "A=1")
    assert full_environment((), with_terminal=True) == (path, "TERM=screen")
    assert full_environment(("PATH=/x", "TERM=y"), with_terminal=True) == ("PATH=/x", "TERM=y")


def test_a_terminal_has_its_size_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that asks for its size first thing must not see 0 by 0."""
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((120, 40)))
    process = ProcessOptions(argv=("sh",), terminal=True).to_oci()
    assert process["terminal"] is True
    assert process["consoleSize"] == {"height": 40, "width": 120}


def test_a_terminal_that_is_not_ours_has_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run -d -t` from a script."""
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    process = ProcessOptions(argv=("sh",), terminal=True).to_oci()
    assert process == {"args": ["sh"], "terminal": True}


def test_the_default_root_is_the_images_and_stays_unchanged() -> None:
    request = ContainerOptions(id="c", process=ProcessOptions(argv=("sh",))).to_request()
    assert request.path == "/usr/lib/innkeeper/rootfs"
    assert request.writable_layer
    assert json.loads(request.spec)["process"]["args"] == ["sh"]


def test_a_disk_as_root_is_used_as_it_is() -> None:
    process = ProcessOptions(argv=("sh",))
    options = ContainerOptions(
        id="c", process=process, root_storage="root", storages={"disk1": "/data"}
    )
    request = options.to_request()
    assert request.storage_id == "root"
    assert not request.writable_layer
    assert list(request.storages) == [
        containers_pb2.StorageMount(storage_id="disk1", destination="/data")
    ]

"""Wires: two ends, a lock for each, and nothing left of what was given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.wires import End, Wire, check_name

pytestmark = [pytest.mark.unit, pytest.mark.network]

# Takes an end, says so, and waits to be killed.
HOLDER = """
import sys
from pathlib import Path
from innkeeper.shim.wires import Wire
Wire.of(Path(sys.argv[1]), "lab").take("VM dead (device x)")
print("taken", flush=True)
sys.stdin.read()
"""


class Lab:
    """One wire of one state directory; at the end of a test all ends are given back."""

    def __init__(self, state: Path) -> None:
        self.wire = Wire.of(state, "lab")
        self.taken: list[End] = []

    def take(self, user: str) -> End:
        end = self.wire.take(user)
        self.taken.append(end)
        return end

    def give_back(self, end: End) -> None:
        self.taken.remove(end)
        end.give_back()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for end in lab.taken:
        end.give_back()


def test_each_end_sends_to_the_other(lab: Lab) -> None:
    first, second = lab.take("VM a"), lab.take("VM b")
    assert (first.local, first.remote) == (second.remote, second.local)
    assert first.local != first.remote


def test_a_third_one_is_told_who_has_the_ends(lab: Lab) -> None:
    ends = [lab.take(f"VM {name} (device x)") for name in "ab"]
    with pytest.raises(ShimError) as caught:
        lab.take("VM c (device x)")
    assert caught.value.reason is Reason.ADDRESS_IN_USE
    assert caught.value.fields["by"] == "VM a (device x), VM b (device x)"
    lab.give_back(ends[0])
    assert lab.take("VM c (device x)").local == ends[0].local


def test_what_is_given_back_leaves_nothing(lab: Lab) -> None:
    first, second = lab.take("VM a"), lab.take("VM b")
    first.local.touch()
    lab.give_back(first)
    assert [file.name for file in first.local.parent.iterdir()] == [f"{second.local.name}.lock"]
    lab.give_back(second)
    assert not first.local.parent.exists()


def test_one_that_comes_back_has_the_end_that_is_free(lab: Lab) -> None:
    first, second = lab.take("VM a"), lab.take("VM b")
    lab.give_back(second)
    again = lab.take("VM b")
    assert (again.local, again.remote) == (first.remote, first.local)


def test_the_end_of_a_daemon_that_died_is_free_again(lab: Lab, tmp_path: Path) -> None:
    """flock(2): the lock goes with its last descriptor."""
    argv = (sys.executable, "-c", HOLDER, str(tmp_path))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        lab.take("VM a")
        with pytest.raises(ShimError, match="VM dead"):
            lab.take("VM b")
        holder.send_signal(signal.SIGKILL)
    assert lab.take("VM b").local.name == "0"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a\0", "x" * 65])
def test_what_is_no_name_is_a_bad_field(name: str) -> None:
    with pytest.raises(ShimError) as caught:
        check_name(name)
    assert caught.value.fields["field"] == "wire"


def test_a_path_too_long_for_a_socket_is_told_with_how_much(tmp_path: Path) -> None:
    """unix(7): sun_path has 108 bytes with its end."""
    room = 107 - len(os.fsencode(tmp_path / ".wires" / "x" / "0"))
    fits = "d" * (room - 1)
    Wire.of(tmp_path / fits, "x")
    with pytest.raises(ShimError, match="by 1 bytes") as caught:
        Wire.of(tmp_path / f"{fits}d", "x")
    assert caught.value.reason is Reason.BAD_FIELD


def test_vms_and_wires_of_one_name_are_apart(tmp_path: Path) -> None:
    """A VM's name begins with a letter or digit, so no VM's directory is a wire's."""
    assert Wire.of(tmp_path, "lab").directory.relative_to(tmp_path).parts[0].startswith(".")


def test_a_directory_that_can_not_be_written_is_what_the_host_lacks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShimError) as caught:
        Wire.of(tmp_path / "file", "lab").take("VM a")
    assert caught.value.reason is Reason.HOST_LACKS

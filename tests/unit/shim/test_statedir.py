"""One name, one daemon; and nothing of dead ones stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.statedir import StateDir, check_name, is_locked

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    # pytest's own directories leave too little of a socket's 107 bytes.
    return StateDir(root=Path(os.path.relpath(tmp_path)) / "s")


@pytest.mark.parametrize("name", ["a", "A1", "my-vm_2.old", "x" * 48])
def test_names_that_are(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "-rf", "a b", "a/b", "é", "x\n", "x" * 49])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(ShimError) as caught:
        check_name(name)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_claimed_name_is_in_use_until_it_is_closed(state: StateDir) -> None:
    with state.claim("web") as claim:
        assert is_locked(claim.paths)
        with pytest.raises(ShimError) as caught:
            state.claim("web")
        assert caught.value.reason is Reason.NAME_IN_USE
    assert not is_locked(state.paths("web"))


def test_asking_does_not_get_in_the_way_of_claiming(state: StateDir) -> None:
    """Who lists VMs while another starts one must not make it fail."""
    with state.claim("web"):
        pass
    assert not is_locked(state.paths("web"))
    with state.claim("web"):
        assert [name for name, _ in state.running()] == ["web"]


def test_a_process_that_inherits_the_descriptor_keeps_the_name(state: StateDir) -> None:
    """The daemon's starter ends, the daemon has the lock."""
    claim = state.claim("web")
    inherited = os.dup(claim.fd)
    claim.close()
    assert is_locked(state.paths("web"))
    os.close(inherited)
    assert not is_locked(state.paths("web"))


def test_a_new_claim_finds_an_empty_directory(state: StateDir) -> None:
    with state.claim("web") as claim:
        claim.paths.record.write_text("{}")
        (claim.paths.directory / "sub").mkdir()
    with state.claim("web") as claim:
        assert [path.name for path in claim.paths.directory.iterdir()] == ["lock"]


def test_listing_removes_what_the_dead_left(state: StateDir) -> None:
    with state.claim("dead") as claim:
        claim.paths.record.write_text("{}")
    with state.claim("alive"):
        assert [name for name, _ in state.running()] == ["alive"]
        assert sorted(path.name for path in state.root.iterdir()) == ["alive"]


def test_a_directory_removed_under_a_claim_is_made_again(state: StateDir) -> None:
    with state.claim("web") as claim:
        claim.remove()
        with state.claim("web") as again:
            assert again.paths.directory.is_dir()


def test_logs_of_a_failed_boot_are_kept_apart_from_vms(state: StateDir) -> None:
    with state.claim("web") as claim:
        claim.paths.daemon_log.write_text("why")
        kept = state.keep_logs("web")
        claim.remove()
    assert (kept / "daemon.log").read_text() == "why"
    assert list(state.running()) == []


def test_the_logs_of_the_last_ten_failures_are_kept(state: StateDir) -> None:
    """A name made up for one run comes once only, so no later boot replaces its logs."""
    for number in range(12):
        os.utime(state.keep_logs(f"run-{number}"), (number, number))
    kept = {path.name for path in state.failed("x").parent.iterdir()}
    # The eleventh and the twelfth were new when the oldest then had to go.
    assert kept == {f"run-{number}" for number in range(2, 12)}


def test_a_path_too_long_for_a_socket_is_said_before_anything_is_made(tmp_path: Path) -> None:
    """sockaddr_un has 108 bytes, unix(7)."""
    deep = StateDir(root=tmp_path / ("d" * 100))
    with pytest.raises(ShimError, match="too long for the sockets") as caught:
        deep.claim("web")
    assert caught.value.reason is Reason.BAD_FIELD
    assert not deep.root.exists()


def test_a_root_that_others_can_write_is_refused(state: StateDir) -> None:
    """In /tmp anybody may have made it first."""
    state.root.mkdir()
    state.root.chmod(0o777)
    with pytest.raises(ShimError, match="only this user can write"):
        state.claim("web")


def test_a_root_that_is_a_link_is_refused(state: StateDir, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    state.root.symlink_to(tmp_path / "target")
    with pytest.raises(ShimError, match="not a directory"):
        state.claim("web")


def test_the_environment_chooses_the_place() -> None:
    named = StateDir.default({"INNKEEPER_STATE_DIR": "/a", "XDG_RUNTIME_DIR": "/b"})
    assert named.root == Path("/a")
    assert StateDir.default({"XDG_RUNTIME_DIR": "/b"}).root == Path("/b/innkeeper")


def test_a_path_that_grpc_cannot_address_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ShimError) as caught:
        StateDir(root=tmp_path / "a,b").claim("web")
    assert caught.value.reason is Reason.HOST_LACKS
    assert not (tmp_path / "a,b").exists()


def test_a_file_in_the_directorys_place_is_no_bug_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShimError) as caught:
        StateDir(root=tmp_path / "file" / "vms").claim("web")
    assert caught.value.reason is Reason.HOST_LACKS
    assert "INNKEEPER_STATE_DIR" in caught.value.hint

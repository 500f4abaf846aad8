"""Targets of a container's mounts: made inside its root, and nowhere else."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.linux.mounttargets import ContainerMount, make_targets

pytestmark = [pytest.mark.unit, pytest.mark.containers]

PROC = ContainerMount(destination="/proc", fs_type="proc")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    (inside / "var").mkdir(parents=True)
    return inside


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory to bind, beside the root."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def make(root: Path, *mounts: ContainerMount | str) -> None:
    make_targets(
        str(root),
        [
            asdict(each if isinstance(each, ContainerMount) else ContainerMount(destination=each))
            for each in mounts
        ],
    )


def refused(root: Path, *mounts: ContainerMount | str) -> tuple[str, str]:
    """The errno's name and the destination that the refusal is about."""
    with pytest.raises(OSError, match="make_targets") as caught:
        make(root, *mounts)
    return errno.errorcode[caught.value.errno or 0], str(caught.value.filename)


def found(top: Path) -> set[str]:
    """Everything below `top` but links, which are not followed either."""
    return {
        str(Path(where, name).relative_to(top))
        for where, folders, files in os.walk(top)
        for name in (*folders, *files)
        if not Path(where, name).is_symlink()
    }


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_missing_parents_are_made(root: Path) -> None:
    make(root, "/a/b/c", "/a//./d/")
    assert found(root) == {"var", "a", "a/b", "a/b/c", "a/d"}
    assert {mode(root / name) for name in ("a", "a/b", "a/b/c")} == {0o755}


def test_a_file_is_made_for_a_file(root: Path, data: Path) -> None:
    (data / "hosts").write_text("content")
    make(root, ContainerMount(destination="/etc/hosts", source=str(data / "hosts")))
    assert (root / "etc/hosts").read_text() == ""
    assert (mode(root / "etc"), mode(root / "etc/hosts")) == (0o755, 0o644)


def test_a_link_without_its_target(root: Path) -> None:
    """/var/run is a link to /run, and the image lost its empty /run (case 56)."""
    (root / "var/run").symlink_to("/run")
    make(root, "/var/run/secrets/token")
    assert found(root) == {"var", "run", "run/secrets", "run/secrets/token"}


def test_a_chain_of_links(root: Path) -> None:
    """A chain of absolute links once ended in "File exists" (case 57)."""
    (root / "var/run2").symlink_to("/run2")
    (root / "run2").symlink_to("/tmp/run2")
    make(root, "/var/run2/secrets/x/y")
    assert "tmp/run2/secrets/x/y" in found(root)
    assert not {"run2", "var/run2"} & found(root)


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("/usr/share/zoneinfo/missing", "usr/share/zoneinfo/missing"),
        ("../usr/share/missing", "usr/share/missing"),
        # crun alone would make this one at the root.
        ("missing", "etc/missing"),
    ],
)
def test_a_file_over_a_dangling_link(root: Path, data: Path, link: str, place: str) -> None:
    """What the link names is made in the root (case 59)."""
    (data / "zone").write_text("zone")
    (root / "etc").mkdir()
    (root / "etc/localtime").symlink_to(link)
    make(root, ContainerMount(destination="/etc/localtime", source=str(data / "zone")))
    assert (root / place).is_file()
    assert (root / "etc/localtime").is_symlink()


def test_nothing_is_made_outside(root: Path) -> None:
    (root / "up").symlink_to("../../../../above/deep")
    (root / "out").symlink_to("/elsewhere")
    (root / "var/out").symlink_to(root.parent / "outside")
    make(root, "/up/x", "/out/x", "/var/out/x")
    assert {path.name for path in root.parent.iterdir()} == {"root"}
    # The absolute link counts from the root, as it does for the container.
    inner = str((root.parent / "outside").relative_to("/"))
    assert {"above/deep/x", "elsewhere/x", f"{inner}/x"} <= found(root)


def test_what_is_there_stays_as_it_is(root: Path, data: Path) -> None:
    (root / "run").mkdir(mode=0o700)
    (root / "var/run").symlink_to("../run")
    (root / "file").write_text("text")
    (data / "file").write_text("other")
    before = found(root)
    file = ContainerMount(destination="/file", source=str(data / "file"))
    make(root, "/run", "/var/run", "/var/.//run", file)
    assert found(root) == before
    assert mode(root / "run") == 0o700
    assert (root / "file").read_text() == "text"


@pytest.mark.parametrize("destination", ["/a", "/a/x", "/self/x"])
def test_a_circle_of_links_ends(root: Path, destination: str) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "self").symlink_to("/self")
    assert refused(root, destination) == ("ELOOP", destination)
    assert found(root) == {"var"}


def test_links_are_followed_as_far_as_the_kernel_does(root: Path) -> None:
    """40 in one path, not 41 (path_resolution(7))."""
    for number in range(41):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    make(root, "/l1/x")
    assert "l41/x" in found(root)
    assert refused(root, "/l0/x") == ("ELOOP", "/l0/x")


@pytest.mark.parametrize("link", ["/", ".", "..", "/var/.."])
def test_the_root_itself_is_no_target(root: Path, link: str) -> None:
    (root / "x").symlink_to(link)
    assert refused(root, "/x") == ("EBUSY", "/x")


@pytest.mark.parametrize(
    ("link", "destination"),
    [
        ("/proc", "/x/sys"),
        ("/proc/1/root", "/x/etc"),
        ("/proc/self/fd/3", "/x"),
        ("../proc/sys/kernel", "/x"),
        ("/proc", "/x"),
    ],
)
def test_a_link_into_proc_is_refused(root: Path, link: str, destination: str) -> None:
    (root / "x").symlink_to(link)
    assert refused(root, PROC, destination) == ("EXDEV", destination)
    # Only where it is mounted.
    assert found(root) == {"var", "proc"}


def test_proc_is_found_behind_bind_mounts_too(root: Path, data: Path) -> None:
    """A link in a storage, and a /proc that is the guest's own."""
    (data / "x").symlink_to("/host")
    bound = ContainerMount(destination="/host", fs_type="bind", source="/proc")
    storage = ContainerMount(destination="/data", fs_type="bind", source=str(data))
    assert refused(root, bound, storage, "/data/x/sys") == ("EXDEV", "/data/x/sys")


def test_what_a_host_names_itself_in_proc_is_its_business(root: Path) -> None:
    make(root, PROC, "/proc/cpuinfo", "/proc/1/root/x")
    assert found(root) == {"var", "proc"}


@pytest.mark.parametrize("fs_type", ["proc", "sysfs"])
def test_proc_and_sys_are_never_behind_a_link(root: Path, fs_type: str) -> None:
    (root / "p").symlink_to("/var")
    mount = ContainerMount(destination="/p", fs_type=fs_type)
    assert refused(root, mount) == ("ENOTDIR", "/p")


def test_what_lies_in_another_mount_is_left_alone(root: Path, data: Path) -> None:
    """A tmpfs hides what is in the root, and the content of a storage is not ours to make."""
    storage = ContainerMount(destination="/data", source=str(data))
    make(root, "/dev", "/dev/shm", storage, "/data/deep/er")
    assert found(root) == {"var", "dev", "data"}
    assert found(data) == set()


def test_links_in_a_storage_count_from_the_root(root: Path, data: Path) -> None:
    (data / "x").symlink_to("/srv/place")
    storage = ContainerMount(destination="/data", source=str(data))
    make(root, storage, "/data/x/y")
    assert found(root) == {"var", "data", "srv", "srv/place", "srv/place/y"}


def test_a_file_where_a_directory_should_be_and_the_reverse(root: Path, data: Path) -> None:
    (root / "file").write_text("text")
    (data / "one").write_text("text")
    over_folder = ContainerMount(destination="/var", source=str(data / "one"))
    assert refused(root, "/file/x") == ("ENOTDIR", "/file/x")
    assert refused(root, "/file") == ("ENOTDIR", "/file")
    assert refused(root, over_folder) == ("ENOTDIR", "/var")


def test_a_source_that_is_missing_is_for_the_runtime_to_name(root: Path, data: Path) -> None:
    make(root, ContainerMount(destination="/x/y", source=f"{data}/none"))
    assert found(root) == {"var"}


def test_targets_that_are_made_meanwhile_are_fine(root: Path) -> None:
    """Two containers with one root may ask for the same at the same moment."""
    make(root, "/a/b", "/a/b", "/a/b/c")
    assert found(root) == {"var", "a", "a/b"}

"""What `innkeeper run` knows to be wrong before there is a VM."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner

from innkeeper.cli.app import app
from innkeeper.cli.errors import CliError
from innkeeper.cli.options import DiskOption
from innkeeper.cli.run import RunCommand, run
from innkeeper.cli.running import RunRequest, check_files
from innkeeper.cli.workload import ProcessOptions
from innkeeper.shim.errors import ShimError
from innkeeper.shim.guest_disk import DiskError

pytestmark = [pytest.mark.unit, pytest.mark.operations]


def request(*disks: DiskOption, rootfs: Path | None = None) -> RunRequest:
    process = ProcessOptions(argv=("true",))
    return RunRequest(spec=None, process=process, disks=disks, rootfs=rootfs, container="run-1")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "data.img"
    path.write_bytes(bytes(4096))
    return path


def test_one_file_is_no_two_disks_unless_nobody_writes(image: Path) -> None:
    """Two writers of one ext4 destroy it; by another name it is still one file."""
    (image.parent / "link.img").symlink_to(image)
    first = DiskOption(file=image, mount="/a", read_only=True)
    second = DiskOption(file=image.parent / "link.img", mount="/b")
    with pytest.raises(CliError, match=r"link\.img: given twice"):
        check_files(request(first, second))
    check_files(request(first, DiskOption(file=image, mount="/b", read_only=True)))


def test_an_empty_disk_and_a_root_that_is_none_need_no_boot_to_be_refused(image: Path) -> None:
    with pytest.raises(DiskError, match="without members"):
        check_files(request(rootfs=image))
    image.write_bytes(b"")
    with pytest.raises(ShimError, match="is empty"):
        check_files(request(DiskOption(file=image, mount="/a")))


def test_ids_in_a_shared_vm_are_the_containers_own(image: Path) -> None:
    shared = request(DiskOption(file=image, mount="/a"))
    assert (shared.root_disk, list(shared.named_disks)) == ("run-1-root", ["run-1-disk1"])


def test_the_help_is_in_groups_and_every_option_is_in_one() -> None:
    grouped = [name for names in RunCommand.headings.values() for name in names]
    parameters = inspect.signature(run).parameters.keys() - {"context", "command"}
    assert (len(grouped), set(grouped)) == (len(parameters), parameters)
    lines = CliRunner().invoke(app, ["run", "--help"]).output.splitlines()
    headings = [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "]
    assert headings == ["Arguments", *RunCommand.headings, "Options"]
    assert lines[-1].split()[0] == "--help"

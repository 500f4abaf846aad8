"""What a start is made of: the spec, the image, the transport, and the steps that are told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from innkeeper.shim import images, link
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.logs import tail
from innkeeper.shim.progress import Phase, Progress, Reporter, parse
from innkeeper.shim.spec import ColdDisk, VmSpec
from innkeeper.shim.statedir import VmPaths
from innkeeper.shim.transport.choose import Host, Kind

pytestmark = [pytest.mark.unit, pytest.mark.boot]

PATHS = VmPaths(directory=Path("/vms/web"))
NOTHING = Host(vhost_vsock="/dev/vhost-vsock is not there", vhost_user="no such program")


def test_a_spec_comes_through_its_file_as_it_was() -> None:
    spec = VmSpec(
        name="web",
        cpus=2,
        cmdline=("agent.log=debug", '"agent.x=a b"'),
        tied=True,
        cold_disks=(ColdDisk(file=Path("/d.img"), serial="d", read_only=True),),
    )
    assert VmSpec.from_json(spec.to_json()) == spec


def image(directory: Path, *files: str) -> Path:
    directory.mkdir(parents=True)
    record = {"format": 1, "flavour": "cloud", "kernel": "k", "initrd": "i", "root": "r"}
    record |= {"cmdline": "", "inputs_hash": "", "kernel_version": "", "size": 0}
    (directory / "image.json").write_text(json.dumps(record))
    for name in files:
        (directory / name).touch()
    return directory


def test_an_image_is_found_by_flavour_and_by_directory(tmp_path: Path) -> None:
    built = image(tmp_path / "cloud", "k", "i", "r")
    by_flavour = images.find_image("cloud", {"INNKEEPER_IMAGE_DIR": str(tmp_path)})
    assert by_flavour.directory == built
    assert images.find_image(f"{built}/").kernel_path == built / "k"


def test_an_image_that_is_not_there_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(ShimError, match="innkeeper image build --flavour cloud") as caught:
        images.find_image("cloud", {"INNKEEPER_IMAGE_DIR": str(tmp_path)})
    assert caught.value.reason is Reason.IMAGE_NOT_FOUND


def test_an_image_in_the_directory_of_its_flavour_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image(tmp_path / "my" / "cloud", "k", "i", "r")
    monkeypatch.chdir(tmp_path)
    for name in ("./my", "./my/", "my"):
        with pytest.raises(ShimError) as caught:
            images.find_image(name, {"INNKEEPER_IMAGE_DIR": str(tmp_path)})
        assert caught.value.hint == "there is one at: ./my/cloud"


def test_a_flavour_that_is_none_is_not_to_be_built(tmp_path: Path) -> None:
    with pytest.raises(ShimError) as caught:
        images.find_image("nope", {"INNKEEPER_IMAGE_DIR": str(tmp_path)})
    assert caught.value.hint == "build one with: innkeeper image build"
    image(tmp_path / "generic")
    with pytest.raises(ShimError) as caught:
        images.find_image("nope", {"INNKEEPER_IMAGE_DIR": str(tmp_path)})
    assert caught.value.hint == "there is: generic"


def test_an_image_without_its_kernel_is_none(tmp_path: Path) -> None:
    built = image(tmp_path / "cloud", "i", "r")
    with pytest.raises(ShimError, match="k is missing"):
        images.find_image(f"{built}/")


def test_a_checkout_keeps_its_images_in_its_build_directory(root: Path) -> None:
    assert images.images_dir({}) == root / "build" / "images"


def test_serial_is_there_when_nothing_else_is() -> None:
    """QEMU's end and the bridge's are two sockets."""
    way = link.plan("auto", PATHS, NOTHING)
    assert way.choice.kind is Kind.SERIAL
    assert way.helper is None
    assert any(str(PATHS.guest) in word for word in way.qemu.arguments)
    assert PATHS.guest != PATHS.channel


def test_a_helper_reads_the_guests_memory() -> None:
    host = Host(vhost_vsock="none", vhost_user=Path("/usr/bin/vhost-device-vsock"))
    way = link.plan("auto", PATHS, host)
    assert way.choice.kind is Kind.VHOST_USER
    assert way.qemu.shared_memory
    assert way.helper is not None


def test_the_hosts_kernel_is_the_best_and_each_vm_has_a_context_of_its_own() -> None:
    """Context ids below 3 belong to hypervisor and host, vsock(7)."""
    host = Host(vhost_vsock=Path("/dev/vhost-vsock"), vhost_user=Path("/x"))
    ways = [link.plan("auto", PATHS, host) for _ in range(2)]
    assert [way.choice.kind for way in ways] == [Kind.VSOCK, Kind.VSOCK]
    cids = {way.qemu.arguments[-1].rpartition("guest-cid=")[2] for way in ways}
    assert len(cids) == 2
    assert all(2 < int(cid) < 0xFFFFFFFF for cid in cids)


@pytest.mark.parametrize(
    ("wanted", "reason"), [("vsock", Reason.HOST_LACKS), ("pigeon", Reason.BAD_FIELD)]
)
def test_what_the_host_lacks_is_told_apart_from_what_is_none(wanted: str, reason: Reason) -> None:
    with pytest.raises(ShimError) as caught:
        link.plan(wanted, PATHS, NOTHING)
    assert caught.value.reason is reason


def test_steps_and_failures_come_through_the_pipe() -> None:
    ours, theirs = os.pipe()
    reporter = Reporter(theirs)
    step = Progress(phase=Phase.PID1, seconds=1.5, text="innkeeper: booted")
    reporter.progress(step)
    reporter.failed(ShimError(Reason.BOOT_FAILED, "no\nanswer", hint="logs: /x"))
    reporter.close()
    with open(ours, "rb") as pipe:
        first, second = pipe.readlines()
    assert parse(first) == step
    with pytest.raises(ShimError) as caught:
        parse(second)
    told = caught.value
    assert (told.reason, told.message, told.hint) == (Reason.BOOT_FAILED, "no\nanswer", "logs: /x")


def test_a_starter_that_left_is_no_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    reporter = Reporter(theirs)
    reporter.progress(Progress(phase=Phase.BOOTING, seconds=0, text=""))
    reporter.close()
    reporter.progress(Progress(phase=Phase.AGENT, seconds=0, text=""))


def test_a_logs_tail_is_its_last_lines_without_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == ()
    log.write_bytes(b"".join(b"\x1b[1mline %d\r\n" % number for number in range(2000)))
    assert tail(log) == tuple(f"line {number}" for number in range(1990, 2000))

"""Which transport a host gives, and what it says of those it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.shim.transport.choose import Host, Kind, choose
from innkeeper.shim.transport.stream import TransportError
from innkeeper.shim.transport.vhost_user import VhostUserVsock

pytestmark = [pytest.mark.unit, pytest.mark.boot]

PROGRAM = "/usr/bin/vhost-device-vsock"


def host(tmp_path: Path, *, device: bool, program: bool) -> Host:
    if device:
        (tmp_path / "vhost-vsock").write_text("")
    return Host.look(dev=tmp_path, which=lambda _name: PROGRAM if program else None)


@pytest.mark.parametrize(
    ("device", "program", "kind"),
    [
        (True, True, Kind.VSOCK),
        (True, False, Kind.VSOCK),
        (False, True, Kind.VHOST_USER),
        (False, False, Kind.SERIAL),
    ],
)
def test_auto_takes_the_best(tmp_path: Path, device: bool, program: bool, kind: Kind) -> None:
    choice = choose("auto", host(tmp_path, device=device, program=program))
    assert choice.kind is kind
    assert choice.program == (Path(PROGRAM) if kind is Kind.VHOST_USER else None)


def test_auto_says_what_it_passed_over(tmp_path: Path) -> None:
    choice = choose("auto", host(tmp_path, device=False, program=False))
    assert f"{tmp_path / 'vhost-vsock'} is not there: load the module vhost_vsock" in choice.why
    assert "cargo install --locked vhost-device-vsock" in choice.why


def test_a_template_has_no_vhost_user_device(tmp_path: Path) -> None:
    """Such a VM cannot be migrated, and saving it is a migration."""
    bare = host(tmp_path, device=False, program=True)
    assert choose("auto", bare, migratable=True).kind is Kind.SERIAL
    with pytest.raises(TransportError, match="cannot be saved as a template"):
        choose("vhost-user-vsock", bare, migratable=True)


@pytest.mark.parametrize("wanted", list(Kind))
def test_what_is_there_can_be_asked_for(tmp_path: Path, wanted: Kind) -> None:
    assert choose(wanted, host(tmp_path, device=True, program=True)).kind is wanted


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("vsock", "load the module vhost_vsock"),
        ("vhost-user-vsock", "is not on PATH"),
        ("carrier-pigeon", "auto, vsock, vhost-user-vsock, serial"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, wanted: str, complaint: str) -> None:
    with pytest.raises(TransportError, match=complaint):
        choose(wanted, host(tmp_path, device=False, program=False))


def test_the_device_server_and_qemu_meet_at_one_socket() -> None:
    device = VhostUserVsock(program=Path(PROGRAM), directory=Path("/run/a,b"), cid=7)
    assert device.argv() == (
        PROGRAM,
        "--guest-cid=7",
        "--socket=/run/a,b/vhost.sock",
        "--uds-path=/run/a,b/vsock.sock",
    )
    assert device.qemu_arguments() == (
        "-chardev",
        "socket,id=vsock,path=/run/a,,b/vhost.sock",
        "-device",
        "vhost-user-vsock-pci,id=vsock0,chardev=vsock",
    )
    assert str(device.address(1024)) == "hvsock:///run/a,b/vsock.sock:1024"

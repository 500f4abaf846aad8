"""Interfaces by what is at their other end: `-netdev` and virtio-net's properties as QEMU's
qapi/net.json and its manual have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from innkeeper.shim import hardware, taps
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import Hardware, Names, Setting
from innkeeper.shim.qmp import QemuRefusedError
from innkeeper.v1 import host_pb2
from tests.fakes.passt import fake_passt

pytestmark = [pytest.mark.unit, pytest.mark.network]

NAMES = Names(id="x", number=7)
TAP, WIRE = host_pb2.NIC_BACKEND_TAP, host_pb2.NIC_BACKEND_WIRE
USER, PASST = host_pb2.NIC_BACKEND_USER, host_pb2.NIC_BACKEND_PASST


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(vm="web", directory=tmp_path / "web")


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tap is there, and no vhost."""
    monkeypatch.setattr(taps, "check", lambda name, _pairs: name)
    monkeypatch.setattr(taps, "has_vhost", lambda: False)


def nic(setting: Setting, device_id: str = "x", **fields: Any) -> Hardware:
    message = host_pb2.Hardware(nic=host_pb2.Nic(**fields))
    return hardware.parse(message, device_id, setting)


def netdev(made: Hardware) -> dict[str, object]:
    (backend,) = made.backends(NAMES)
    assert (backend.add, backend.remove) == ("netdev_add", "netdev_del")
    assert backend.arguments["id"] == backend.removal["id"] == "back7"
    return {key: value for key, value in backend.arguments.items() if key != "id"}


def properties(made: Hardware) -> dict[str, object]:
    (part,) = made.parts(NAMES)
    return part


def refusal(setting: Setting, **fields: Any) -> ShimError:
    with pytest.raises(ShimError) as caught:
        nic(setting, **fields)
    return caught.value


@pytest.mark.usefixtures("tap")
def test_a_tap_is_opened_by_name_and_no_script_is_run(setting: Setting) -> None:
    made = nic(setting, backend=TAP, tap="tap0")
    assert netdev(made) == {"type": "tap", "ifname": "tap0", "script": "no", "downscript": "no"}
    assert made.source == "tap tap0"
    assert "mq" not in properties(made)


@pytest.mark.usefixtures("tap")
def test_queue_pairs_have_an_interrupt_each_and_two_for_all(setting: Setting) -> None:
    """QEMU's documentation of multiqueue: vectors is 2 * queues + 2."""
    made = nic(setting, backend=TAP, tap="tap0", queue_pairs=4)
    assert netdev(made)["queues"] == 4
    assert (properties(made)["mq"], properties(made)["vectors"]) == (True, 10)


@pytest.mark.usefixtures("tap")
def test_the_hosts_kernel_moves_frames_where_it_can(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taps, "has_vhost", lambda: True)
    assert netdev(nic(setting, backend=TAP, tap="tap0"))["vhost"] is True


@pytest.mark.usefixtures("tap")
def test_a_tap_that_is_open_already_is_told_as_that(setting: Setting) -> None:
    text = "could not configure /dev/net/tun (tap0): Device or resource busy"
    made = nic(setting, backend=TAP, tap="tap0")
    assert made.explain(QemuRefusedError("netdev_add", "GenericError", text)).reason is (
        Reason.ADDRESS_IN_USE
    )
    other = QemuRefusedError("netdev_add", "GenericError", "something else")
    assert made.explain(other) is other


def test_a_wire_is_two_sockets_for_datagrams(setting: Setting, tmp_path: Path) -> None:
    ends = [nic(setting, backend=WIRE, wire="lab").claim() for _ in range(2)]
    told = [netdev(end) for end in ends]
    assert [each["type"] for each in told] == ["dgram", "dgram"]
    assert told[0]["local"] == told[1]["remote"]
    assert (
        told[0]["remote"]
        == told[1]["local"]
        == {
            "type": "unix",
            "path": str(tmp_path / ".wires/lab/1"),
        }
    )
    assert ends[0].source == "wire lab"
    for end in ends:
        end.release()
    assert list((tmp_path / ".wires").iterdir()) == []


def test_a_third_device_on_a_wire_is_told_both_others(setting: Setting) -> None:
    ends = [nic(setting, name, backend=WIRE, wire="lab").claim() for name in ("one", "two")]
    with pytest.raises(ShimError) as caught:
        nic(setting, backend=WIRE, wire="lab").claim()
    assert caught.value.reason is Reason.ADDRESS_IN_USE
    assert "VM web (device one) and VM web (device two)" in caught.value.message
    for end in ends:
        end.release()


def test_nothing_is_claimed_by_asking(setting: Setting, tmp_path: Path) -> None:
    nic(setting, backend=WIRE, wire="lab").release()
    assert not (tmp_path / ".wires").exists()


def test_passt_is_a_program_that_qemu_connects_to(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake_passt(tmp_path / "bin")))
    made = nic(setting, backend=PASST)
    helper = made.helper(NAMES)
    assert helper is not None
    assert helper.name == "passt"
    address = {"type": "unix", "path": str(helper.socket)}
    assert netdev(made) == {"type": "stream", "server": False, "addr": address}
    assert helper.socket.parent == setting.directory


def test_a_host_without_passt_refuses_it(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert refusal(setting, backend=PASST).reason is Reason.NOT_INSTALLED


def test_virtio_tells_the_guest_its_mtu(setting: Setting) -> None:
    made = nic(setting, backend=WIRE, wire="lab", mtu=9000).claim()
    assert properties(made)["host_mtu"] == 9000
    assert "host_mtu" not in properties(nic(setting))
    made.release()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mtu": 67, "backend": WIRE, "wire": "lab"}, "mtu"),
        ({"mtu": 65522, "backend": WIRE, "wire": "lab"}, "mtu"),
        # libslirp's IF_MTU_DEFAULT.
        ({"mtu": 1501, "backend": USER}, "mtu"),
        ({"mtu": 1501}, "mtu"),
        ({"mtu": 1400, "model": host_pb2.NIC_MODEL_E1000E}, "mtu"),
        ({"mtu": 1400, "model": host_pb2.NIC_MODEL_IGB}, "mtu"),
        ({"queue_pairs": 2}, "queue_pairs"),
        ({"queue_pairs": 65, "backend": TAP, "tap": "t"}, "queue_pairs"),
        ({"queue_pairs": 2, "backend": TAP, "tap": "t", "model": 2}, "queue_pairs"),
        ({"tap": "tap0", "backend": USER}, "tap"),
        ({"wire": "lab"}, "wire"),
        ({"backend": WIRE}, "wire"),
        ({"backend": TAP}, "tap"),
        ({"backend": 99}, "backend"),
        ({"model": 99}, "model"),
    ],
)
def test_what_can_not_be_names_its_field(
    setting: Setting, fields: dict[str, Any], field: str
) -> None:
    error = refusal(setting, **fields)
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, field)

"""Interfaces in the words of the command line, and the host's own way that passt shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from google.protobuf import json_format

from innkeeper.cli import hostnet, nics
from innkeeper.cli.errors import CliError
from innkeeper.cli.hostnet import HostWay
from innkeeper.cli.nics import Configuration, Nic, cold_devices, complete, default_route, parse_net
from innkeeper.v1 import devices_pb2, host_pb2, network_pb2

pytestmark = [pytest.mark.unit, pytest.mark.network]


def test_a_word_alone_is_a_backend() -> None:
    assert parse_net("isolated") == Nic(backend="isolated", configuration=Configuration())
    user = parse_net("user").configuration
    assert user == Configuration(
        addresses=("10.0.2.15/24",), gateways=("10.0.2.2",), servers=("10.0.2.3",)
    )


def test_everything_that_can_be_said() -> None:
    made = parse_net(
        "wire=lab,name=eth0,address=192.0.2.1/24,address=2001:db8::1/64,gateway=192.0.2.9"
        ",dns=192.0.2.53,mac=52:54:00:12:34:56,mtu=9000,model=e1000e"
    )
    assert made == Nic(
        backend="wire",
        backend_name="lab",
        model="e1000e",
        mac="52:54:00:12:34:56",
        mtu=9000,
        configuration=Configuration(
            name="eth0",
            addresses=("192.0.2.1/24", "2001:db8::1/64"),
            gateways=("192.0.2.9",),
            servers=("192.0.2.53",),
            mtu=9000,
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "bridge", "user=x", "wire", "wire=", "tap", "isolated="),
        *("user,address", "user,address=", "user,adress=192.0.2.1/24", "user,mtu=x"),
        *("user,mtu=65522", "user,model=x", "user,name=a,name=b", "user,address=192.0.2.1"),
        "user,",
    ],
)
def test_what_is_no_interface_is_a_wrong_use(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_net(text)


def test_only_virtio_is_told_its_mtu_by_the_host() -> None:
    for model, told in (("virtio", 9000), ("e1000e", 0)):
        made = complete(
            Nic(
                backend="wire",
                backend_name="x",
                model=model,
                mtu=9000,
                configuration=Configuration(),
            )
        )
        assert made.hardware.nic.mtu == told
        assert made.configuration is not None
        assert made.configuration.mtu == 9000


def test_interfaces_from_the_start_are_numbered() -> None:
    made = cold_devices([parse_net("user"), parse_net("wire=lab")])
    assert [each.id for each in made] == ["net0", "net1"]
    told = json_format.Parse(made[1].hardware, host_pb2.Hardware())
    assert (told.nic.backend, told.nic.wire) == (host_pb2.NIC_BACKEND_WIRE, "lab")


def test_passt_shows_the_hosts_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """passt(1): guest and host share addresses and routes unless it is told otherwise."""
    way = HostWay(address="192.0.2.77", gateway="192.0.2.1")
    monkeypatch.setattr(hostnet, "default_way", lambda: way)
    made = complete(Nic(backend="passt", configuration=Configuration())).configuration
    assert made == Configuration(addresses=("192.0.2.77/32",), gateways=("192.0.2.1",), onlink=True)


def test_a_host_without_a_way_out_has_no_address_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostnet, "default_way", lambda: None)
    with pytest.raises(CliError, match="no default route"):
        complete(Nic(backend="passt", configuration=Configuration()))


def test_a_second_default_route_is_the_next_choice() -> None:
    other = network_pb2.Route(destination="192.0.2.0/24", metric=900)
    assert default_route([other], "192.0.2.1", "a").metric == 0
    first = network_pb2.Route(destination="default", metric=20)
    assert default_route([other, first], "192.0.2.1", "a").metric == 120


def test_the_hosts_gateway_is_read_from_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """proc(5), /proc/net/route: addresses in hex, in the machine's order of bytes (here
    little-endian); flag 2 is RTF_GATEWAY."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net/route").write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    )
    monkeypatch.setattr(hostnet, "_source", lambda: "192.0.2.2")
    assert hostnet.default_way(tmp_path) == HostWay(address="192.0.2.2", gateway="192.0.2.1")
    (tmp_path / "net/route").write_text("Iface\tDestination\n")
    assert hostnet.default_way(tmp_path) is None


def test_what_was_only_plugged_says_so() -> None:
    device = devices_pb2.AttachedDevice(device=devices_pb2.Device(id="x"))
    (line,) = nics.in_words(nics.Attached(device=device))
    assert line.endswith("not configured")

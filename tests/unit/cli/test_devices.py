"""`innkeeper devices`: what people and programs are told of a host's functions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from innkeeper.cli import devices
from innkeeper.cli.app import app
from innkeeper.cli.errors import CliError
from innkeeper.shim.candidates import CandidatesError, candidates
from innkeeper.shim.host_use import HostUse
from tests.fakes.udev import FakeHost

pytestmark = [pytest.mark.unit, pytest.mark.devices]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A bridge, a NIC that can be given, one that is bound, a display with its sound."""
    made = FakeHost(tmp_path)
    made.function("0000:3b:00.0", "0x020000", group=14, driver="i40e", numa_node="1")
    made.function("0000:3b:00.1", "0x020000", group=15, driver="vfio-pci")
    made.function("0000:01:00.0", "0x030000", group=16, driver="nouveau")
    made.function("0000:01:00.1", "0x040300", group=16, driver="snd_hda_intel")
    monkeypatch.setattr(devices, "survey", lambda: candidates(made.devices, HostUse(), made.sys))
    return made


def told(*words: str) -> Result:
    return CliRunner().invoke(app, ["devices", *words])


def test_the_table(host: FakeHost) -> None:
    lines = told().stdout.splitlines()
    assert lines[0].split("  ")[0] == "ADDRESS"
    assert [line.split()[0] for line in lines[1:]] == [
        "0000:01:00.0",
        "0000:01:00.1",
        "0000:3b:00.0",
        "0000:3b:00.1",
    ]
    assert "16, with 0000:01:00.1" in lines[1]
    assert "no: 0000:01:00.1 (audio device) of its group 16 has the driver" in lines[1]
    assert re.split("  +", lines[3])[3:] == ["i40e", "14", "1", "yes, after 3 commands"]
    assert re.split("  +", lines[4])[3:] == ["vfio-pci", "15", "-", "yes, vfio-pci has it"]


def test_bridges_are_there_when_asked_for(host: FakeHost) -> None:
    assert "0000:00:00.0" not in told().stdout
    assert "0000:00:00.0" in told("--all").stdout


def test_what_programs_are_told(host: FakeHost) -> None:
    records = json.loads(told("--json").stdout)
    assert [record["can_be_given"] for record in records] == [False, False, True, True]
    assert records[2] == {
        "address": "0000:3b:00.0",
        "name": "8086:1572",
        "kind": "Ethernet controller",
        "pci_class": "0x020000",
        "pci_id": "8086:1572",
        "driver": "i40e",
        "group": 14,
        "members": [{"address": "0000:3b:00.0", "kind": "Ethernet controller", "driver": "i40e"}],
        "numa_node": 1,
        "objections": [],
        "bind": [
            "echo vfio-pci > /sys/bus/pci/devices/0000:3b:00.0/driver_override",
            "echo 0000:3b:00.0 > /sys/bus/pci/devices/0000:3b:00.0/driver/unbind",
            "echo 0000:3b:00.0 > /sys/bus/pci/drivers_probe",
        ],
        "release": [],
        "can_be_given": True,
    }
    assert records[0]["objections"][0]["obstacle"] == "GROUP_MEMBER"


@pytest.mark.parametrize("address", ["0000:01:00.0", "01:00.0", "0000:01:00.0".upper()])
def test_one_function_with_what_to_do(host: FakeHost, address: str) -> None:
    text = told(address).stdout
    assert text.startswith("0000:01:00.0  VGA controller: 8086:1572\n")
    assert "    0000:01:00.1  audio device, driver snd_hda_intel\n" in text
    assert "  can be given away: no\n" in text
    assert "      what to do: bind 0000:01:00.1 to vfio-pci too" in text
    assert "    echo 0000:01:00.1 > /sys/bus/pci/drivers_probe\n" in text


def test_one_function_that_is_bound_has_the_way_back(host: FakeHost) -> None:
    text = told("3b:00.1").stdout
    assert "  can be given away: yes\n  give back to the host, as root:\n    echo > " in text


def test_a_bridge_can_be_asked_for_by_its_address(host: FakeHost) -> None:
    assert "the host's own buses hang on it" in told("00:00.0").stdout


def test_an_address_that_is_none(host: FakeHost) -> None:
    answer = told("eth0")
    assert answer.exit_code == 2
    assert "write a PCI address as in 0000:3b:00.0 or 3b:00.0" in answer.output


def test_a_function_that_is_not_there(host: FakeHost) -> None:
    error = told("0000:3b:00.7").exception
    assert isinstance(error, CliError)
    assert error.message == "this host has no PCI function 0000:3b:00.7"


def test_a_host_of_which_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def survey() -> None:
        raise CandidatesError("this host has no PCI bus", hint="is sysfs mounted?")

    monkeypatch.setattr(devices, "survey", survey)
    error = told().exception
    assert isinstance(error, CliError)
    assert (error.message, error.hint) == ("this host has no PCI bus", "is sysfs mounted?")


def test_a_host_with_bridges_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakeHost(tmp_path)
    monkeypatch.setattr(devices, "survey", lambda: candidates(made.devices, HostUse(), made.sys))
    answer = told()
    assert answer.exit_code == 0
    assert "no PCI functions but bridges" in answer.stderr


@pytest.mark.parametrize(("uid", "said"), [(0, False), (1000, True)])
def test_a_user_does_not_see_all(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, uid: int, *, said: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert ("only known to root" in told().stderr) is said


def test_help_teaches_by_example() -> None:
    text = told("--help").output
    assert "innkeeper devices 0000:3b:00.0" in text
    assert "--json" in text
    assert "--all" in text

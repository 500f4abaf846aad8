"""PCIDEVICE_ variables: the guest's addresses for the host's, all of a variable or nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.kinds import VfioInfo, VfioMode
from agent.core.model import AttachedDevice, DeviceGrant, HostTuple, NodeType
from agent.handlers.runtime.grants import Granted, grant_device
from agent.handlers.runtime.spec.environment import translate_env
from tests.fakes.managers import attached, node

pytestmark = [pytest.mark.unit, pytest.mark.containers]

NET = "PCIDEVICE_EXAMPLE_COM_NET"


def device(name: str, host: str, guest: str, *more: HostTuple) -> AttachedDevice:
    known = (HostTuple(type="pci", id=host), *more)
    group = node("/dev/vfio/7", 240, 0, NodeType.CHAR)
    return replace(attached(name, group, host=known), bdf=guest)


def granted(*devices: AttachedDevice) -> list[Granted]:
    return [grant_device(DeviceGrant(device_id=each.request.id), each) for each in devices]


FIRST = device("a", "0000:3B:02.1", "0000:01:00.0")
SECOND = device("b", "0000:3b:02.3", "0000:02:00.0")
USER_SPACE = VfioInfo(mode=VfioMode.VFIO, group=7)


def translated(*env: str, of: list[Granted]) -> list[str]:
    return translate_env(env, of, "c1")


def test_addresses_in_their_order_and_nothing_else() -> None:
    other = "OTHER=0000:3b:02.1"
    env = (other, f"{NET}=0000:3b:02.3,0000:3b:02.1", "PCIDEVICEX=0000:3b:02.1", "EMPTY=")
    assert translated(*env, of=granted(FIRST, SECOND)) == [
        other,
        f"{NET}=0000:02:00.0,0000:01:00.0",
        "PCIDEVICEX=0000:3b:02.1",
        "EMPTY=",
    ]


def test_addresses_that_swap_are_put_in_place_once() -> None:
    """One's address in the guest is the other's on the host."""
    there = granted(
        device("a", "0000:01:00.0", "0000:02:00.0"), device("b", "0000:02:00.0", "0000:01:00.0")
    )
    info = json.dumps({"0000:01:00.0": {"generic": {"deviceID": "0000:01:00.0"}}})
    found = translated(f"{NET}=0000:01:00.0,0000:02:00.0", f"{NET}_INFO={info}", of=there)
    assert found[0] == f"{NET}=0000:02:00.0,0000:01:00.0"
    assert json.loads(found[1].partition("=")[2]) == {
        "0000:02:00.0": {"generic": {"deviceID": "0000:02:00.0"}}
    }


@pytest.mark.parametrize("there", [[], [FIRST], [SECOND]])
def test_for_the_guests_own_driver_what_is_not_known_stays(
    there: list[AttachedDevice], caplog: pytest.LogCaptureFixture
) -> None:
    """The creation failed once, since no map had been made; half of a list is no use either."""
    env = [f"{NET}=0000:3b:02.1,0000:3b:02.3", f'{NET}_INFO={{"0000:3b:02.1":{{}}}}']
    assert translated(*env, of=granted(*there)) == env
    assert f"{NET} stays as it is" in caplog.text


def test_for_drivers_in_user_space_what_is_not_known_is_an_error() -> None:
    vfio = replace(FIRST, info=USER_SPACE)
    with pytest.raises(AgentError, match=r"0000:3b:02\.3") as caught:
        translated(f"{NET}=0000:3b:02.1,0000:3b:02.3", of=granted(vfio))
    assert caught.value.reason is Reason.BAD_FIELD
    assert caught.value.fields["missing"] == "0000:3b:02.3"


def test_auxiliary_devices_are_not_addresses() -> None:
    env = [f"{NET}=mlx5_core.sf.4,0000:3b:02.1"]
    assert translated(*env, of=granted(replace(FIRST, info=USER_SPACE))) == env


def test_information_about_devices_in_user_space() -> None:
    """Keys and values, and the group's node; what only contains an address is left alone."""
    vfio = replace(
        device("a", "0000:3b:02.1", "0000:01:00.0", HostTuple(type="path", id="/dev/vfio/45")),
        info=USER_SPACE,
    )
    info = {
        "0000:3b:02.1": {
            "generic": {"deviceID": "0000:3b:02.1"},
            "vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/45"},
            "extra": {"text": "at 0000:3b:02.1", "list": ["0000:3b:02.1", 5, None]},
        }
    }
    found = translated(f"{NET}=0000:3b:02.1", f"{NET}_INFO={json.dumps(info)}", of=granted(vfio))
    assert json.loads(found[1].partition("=")[2]) == {
        "0000:01:00.0": {
            "generic": {"deviceID": "0000:01:00.0"},
            "vfio": {"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/7"},
            "extra": {"text": "at 0000:3b:02.1", "list": ["0000:01:00.0", 5, None]},
        }
    }


def test_information_about_devices_of_the_guests_driver_has_no_vfio() -> None:
    info = '{"0000:3b:02.1":{"generic":{"deviceID":"0000:3b:02.1"},"vfio":{"mount":"x"}}}'
    found = translated(f"{NET}_INFO={info}", f"{NET}=0000:3b:02.1", of=granted(FIRST))
    assert found == [
        f'{NET}_INFO={{"0000:01:00.0":{{"generic":{{"deviceID":"0000:01:00.0"}}}}}}',
        f"{NET}=0000:01:00.0",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", "[" * 50_000, '{"a": 1}'])
def test_information_of_another_shape_is_no_reason_to_fail(text: str) -> None:
    found = translated(f"{NET}=0000:3b:02.1", f"{NET}_INFO={text}", of=granted(FIRST))
    assert found[0] == f"{NET}=0000:01:00.0"
    assert found[1].replace(" ", "") == f"{NET}_INFO={text}".replace(" ", "")


def test_a_resource_may_be_called_info() -> None:
    """Only its base variable makes a variable one of information."""
    assert translated("PCIDEVICE_X_INFO=0000:3b:02.1", of=granted(FIRST)) == [
        "PCIDEVICE_X_INFO=0000:01:00.0"
    ]

"""Which interfaces a specification and a request ask for, together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.network import InterfaceGrant
from agent.handlers.runtime.spec import configuration as oci
from agent.handlers.runtime.spec.network import WantedInterfaces, wanted_interfaces

pytestmark = [pytest.mark.unit, pytest.mark.containers]

OWN = [{"type": "mount"}, {"type": "network"}]
BY_PATH = [{"type": "mount"}, {"type": "network", "path": "/run/netns/a"}]
ETH0 = InterfaceGrant(name="eth0")


def spec(**linux: Any) -> dict[str, Any]:
    data = {"process": {"args": ["/bin/sh"]}, "linux": linux}
    return oci.parse_spec(json.dumps(data).encode())


def test_those_of_the_request_and_those_of_the_specification() -> None:
    devices = {"eth1": {"name": "net%d"}, "eth2": {}, "eth3": {"name": ""}}
    wanted = wanted_interfaces(spec(namespaces=OWN, netDevices=devices), (ETH0,))
    assert wanted == WantedInterfaces(
        lent=(ETH0,),
        moved=(
            InterfaceGrant(name="eth1", container_name="net%d"),
            InterfaceGrant(name="eth2"),
            InterfaceGrant(name="eth3"),
        ),
    )
    assert wanted


@pytest.mark.parametrize("linux", [{}, {"netDevices": {}}, {"netDevices": None}])
def test_none(linux: dict[str, Any]) -> None:
    assert not wanted_interfaces(spec(**linux), ())


def test_the_runtime_does_not_get_them() -> None:
    around = oci.Surroundings(root="/r", cgroup="/c", mounts=())
    config = oci.complete(spec(namespaces=OWN, netDevices={"eth0": {}}), around)
    assert "netDevices" not in config["linux"]


def test_devices_go_into_a_namespace_that_is_given_by_a_path() -> None:
    """The specification has it so; see config-linux.md, Namespace Lifecycle."""
    wanted = wanted_interfaces(spec(namespaces=BY_PATH, netDevices={"eth0": {}}), ())
    assert wanted.moved == (ETH0,)


@pytest.mark.parametrize("namespaces", [None, [{"type": "mount"}], BY_PATH])
def test_nothing_is_lent_without_an_own_namespace(namespaces: Any) -> None:
    with pytest.raises(AgentError) as caught:
        wanted_interfaces(spec(namespaces=namespaces), (ETH0,))
    assert caught.value.reason is Reason.BAD_FIELD
    assert caught.value.fields["field"] == "interfaces"


@pytest.mark.parametrize("namespaces", [None, [{"type": "mount"}]])
def test_devices_need_a_namespace(namespaces: Any) -> None:
    with pytest.raises(AgentError) as caught:
        wanted_interfaces(spec(namespaces=namespaces, netDevices={"eth0": {}}), ())
    assert caught.value.reason is Reason.BAD_SPEC
    assert caught.value.fields["path"] == "linux.netDevices"


def test_one_name_for_two() -> None:
    with pytest.raises(AgentError) as caught:
        wanted_interfaces(spec(namespaces=OWN, netDevices={"eth1": {"name": "eth0"}}), (ETH0,))
    assert caught.value.reason is Reason.BAD_FIELD


def test_one_template_for_two() -> None:
    devices = {"a": {"name": "net%d"}, "b": {"name": "net%d"}}
    assert len(wanted_interfaces(spec(namespaces=OWN, netDevices=devices), ()).moved) == 2

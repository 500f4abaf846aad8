"""Containers: requests and their status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import Reason, invalid
from agent.core.model import (
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    ContainerUpdate,
    DeviceGrant,
    RootPath,
    RootStorage,
    StorageMount,
)
from agent.core.names import check_id
from agent.core.network import InterfaceGrant
from agent.handlers.runtime.spec.namespaces import check_shared
from agent.server.convert import fields, linknames
from agent.server.convert.life import stream_options, thresholds
from agent.server.convert.processes import exit_status
from agent.server.limits import INTERFACE_BATCH
from innkeeper.v1 import containers_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNBUILT = ("cdi_devices",)
_ALL_PERMISSIONS = "rwm"


def container_request(asked: containers_pb2.CreateContainerRequest) -> ContainerRequest:
    """What to create; the specification itself is the runtime's to judge."""
    fields.refuse_unbuilt(asked, _UNBUILT, "container")
    if not asked.spec:
        raise invalid("spec: an OCI specification is needed", reason=Reason.BAD_SPEC, field="spec")
    return ContainerRequest(
        id=check_id("container", asked.id),
        spec=asked.spec,
        rootfs=_rootfs(asked),
        writable_layer=asked.writable_layer,
        storages=tuple(_mount(m, f"storages[{i}]") for i, m in enumerate(asked.storages)),
        devices=_grants(asked.devices, "devices"),
        exclusive_cpus=asked.exclusive_cpus,
        interfaces=_interfaces(asked.interfaces),
        shared_namespaces=_shared(asked.shared_namespaces),
        streams=stream_options(asked.streams, "streams"),
        pressure=thresholds(asked.pressure, "pressure"),
        timeout=fields.seconds(asked.timeout_seconds, "timeout_seconds"),
    )


def _shared(kinds: Sequence[str]) -> tuple[str, ...]:
    """In the order of their names, so that the same wish is the same request."""
    return tuple(sorted(check_shared(kinds)))


def _interfaces(
    grants: Sequence[containers_pb2.InterfaceGrant],
) -> tuple[InterfaceGrant, ...]:
    """None twice, and no two of one name in the container."""
    fields.at_most(INTERFACE_BATCH, grants, "interfaces")
    found = tuple(
        InterfaceGrant(
            name=linknames.device(grant.name, f"interfaces[{number}].name"),
            container_name=(
                linknames.new(grant.container_name, f"interfaces[{number}].container_name")
                if grant.container_name
                else ""
            ),
        )
        for number, grant in enumerate(grants)
    )
    fields.no_doubles((grant.name for grant in found), "interfaces")
    fields.no_doubles((grant.container_name or grant.name for grant in found), "interfaces")
    return found


def container_update(asked: containers_pb2.UpdateContainerRequest) -> ContainerUpdate:
    """What to change; an absent message or number means: as it is."""
    return ContainerUpdate(
        id=check_id("container", asked.id),
        resources=asked.resources or None,
        devices=(
            _grants(asked.devices.grants, "devices.grants") if asked.HasField("devices") else None
        ),
        exclusive_cpus=asked.exclusive_cpus if asked.HasField("exclusive_cpus") else None,
        pressure=(
            thresholds(asked.pressure.thresholds, "pressure.thresholds")
            if asked.HasField("pressure")
            else None
        ),
        timeout=fields.seconds(asked.timeout_seconds, "timeout_seconds"),
    )


def _rootfs(asked: containers_pb2.CreateContainerRequest) -> RootStorage | RootPath:
    if fields.choice(asked, "rootfs", "rootfs") == "storage_id":
        return RootStorage(storage_id=check_id("storage", asked.storage_id))
    return RootPath(path=fields.absolute_path(asked.path, "path"))


def _mount(mount: containers_pb2.StorageMount, field: str) -> StorageMount:
    return StorageMount(
        storage_id=check_id("storage", mount.storage_id),
        destination=fields.absolute_path(mount.destination, f"{field}.destination"),
        options=tuple(fields.plain_text(word, f"{field}.options") for word in mount.options),
    )


def _grants(grants: Sequence[containers_pb2.DeviceGrant], field: str) -> tuple[DeviceGrant, ...]:
    fields.require_room(len(grants) - 1, field)
    return tuple(_grant(grant, f"{field}[{number}]") for number, grant in enumerate(grants))


def _grant(grant: containers_pb2.DeviceGrant, field: str) -> DeviceGrant:
    path, node = grant.container_path, grant.node
    return DeviceGrant(
        device_id=check_id("device", grant.device_id),
        container_path=fields.absolute_path(path, f"{field}.container_path") if path else None,
        permissions=_permissions(grant.permissions, f"{field}.permissions"),
        node=fields.absolute_path(node, f"{field}.node") if node else None,
    )


def _permissions(letters: str, field: str) -> str:
    if len(set(letters)) != len(letters) or not set(letters) <= set(_ALL_PERMISSIONS):
        raise invalid(f"{field}: {letters!r} is not made of r, w and m, each once", field=field)
    return letters


_STATES = {
    ContainerState.CREATED: containers_pb2.CONTAINER_STATE_CREATED,
    ContainerState.RUNNING: containers_pb2.CONTAINER_STATE_RUNNING,
    ContainerState.PAUSED: containers_pb2.CONTAINER_STATE_PAUSED,
    ContainerState.STOPPED: containers_pb2.CONTAINER_STATE_STOPPED,
}


def container_status(status: ContainerStatus) -> containers_pb2.ContainerStatus:
    """A container, as the host gets to know it."""
    return containers_pb2.ContainerStatus(
        id=status.id,
        state=_STATES[status.state],
        pid=status.pid,
        exit=None if status.exit is None else exit_status(status.exit),
        devices=[
            containers_pb2.DeviceGrant(
                device_id=grant.device_id,
                container_path=grant.container_path or "",
                permissions=grant.permissions,
                node=grant.node or "",
            )
            for grant in status.devices
        ],
        exclusive_cpus=status.exclusive_cpus,
        created_unix_micros=round(status.created * fields.MICROS),
        started_unix_micros=round(status.started * fields.MICROS),
        arguments=status.arguments,
        cgroup=status.cgroup,
        terminal=status.terminal,
    )

"""Bad input in every method that is built: a typed error, and nothing has changed.

The table below has an entry for every method of the protocol's descriptors that
doesn't answer NOT_BUILT_YET, so a new one can't be forgotten.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from grpc import aio

from innkeeper.shim.client import ColdDisk, VmSpec
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import devices_pb2 as devices
from innkeeper.v1 import files_pb2 as files
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import network_pb2 as network
from innkeeper.v1 import processes_pb2 as processes
from innkeeper.v1 import sandbox_pb2 as sandbox
from innkeeper.v1 import sockets_pb2 as sockets
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from innkeeper.v1.network_pb2_grpc import NetworkStub
from tests.fakes.plugs import disk_plug, plug
from tests.vm.disks import mounted
from tests.vm.guest import DEFAULT_ROOT, Guest, booted, create_request, reason, refused
from tests.vm.observer import Observer, observing

pytestmark = [pytest.mark.vm, pytest.mark.operations]

Refusal: TypeAlias = tuple[grpc.StatusCode, str]
Case: TypeAlias = tuple[tuple[Message, ...], Refusal]
"""Frames (one, but for Attach), and what they must be answered with."""

FILES = (containers, devices, files, host, network, processes, sandbox, sockets, storages)
GARBAGE = b"\xff\xff\xff\xff"

_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
BAD_ID: Refusal = (_INVALID, "BAD_ID")
BAD_FIELD: Refusal = (_INVALID, "BAD_FIELD")
BAD_ADDRESS: Refusal = (_INVALID, "BAD_ADDRESS")
BAD_SPEC: Refusal = (_INVALID, "BAD_SPEC")
WRONG_STATE: Refusal = (_PRECONDITION, "WRONG_STATE")
STILL_IN_USE: Refusal = (_PRECONDITION, "STILL_IN_USE")
RUNTIME_REFUSED: Refusal = (_PRECONDITION, "RUNTIME_REFUSED")
MOUNT_REFUSED: Refusal = (_PRECONDITION, "MOUNT_REFUSED")
NO_TERMINAL: Refusal = (_PRECONDITION, "NO_TERMINAL")
ID_IN_USE: Refusal = (grpc.StatusCode.ALREADY_EXISTS, "ID_IN_USE")
NOT_SUPPORTED: Refusal = (_PRECONDITION, "NOT_SUPPORTED")
UNKNOWN_USER: Refusal = (_PRECONDITION, "UNKNOWN_USER")
HOOK_FAILED: Refusal = (_PRECONDITION, "HOOK_FAILED")
NO_LOG: Refusal = (_PRECONDITION, "NO_LOG")
NOT_BUILT: Refusal = (grpc.StatusCode.UNIMPLEMENTED, "NOT_BUILT_YET")
CONNECTION_REFUSED: Refusal = (grpc.StatusCode.UNAVAILABLE, "CONNECTION_REFUSED")
GAP: Refusal = (grpc.StatusCode.OUT_OF_RANGE, "BAD_FIELD")

IDS = ("", ".", "..", "a/b", "../x", "-rf", "a..b", "a b", "\u00e9", "a\n", "x" * 65, "a\0b")
FORBIDDEN_SYSCTLS = ("kernel.core_pattern", "kernel/modprobe")
SECONDS = (-1.0, float("nan"), float("inf"), 86_401.0)


def unknown(what: str) -> Refusal:
    return (grpc.StatusCode.NOT_FOUND, f"UNKNOWN_{what}")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def furnished(image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    """A VM with one of everything, in each state that an object can be in."""
    directory = tmp_path_factory.mktemp("furniture")
    cold = directory / "cold.img"
    cold.write_bytes(bytes(1 << 20))
    tree = directory / "data"
    tree.mkdir()
    spec = VmSpec(
        name="bad-input",
        image=f"{image}/",
        transport="serial",
        ports=2,
        cold_disks=(ColdDisk(file=cold, serial="cold"),),
    )
    async with booted(spec) as guest, mounted(guest, "data", tree):
        await guest.sandbox.Create(sandbox.CreateSandboxRequest(id="pod", hostname="pod-1"))
        await guest.devices.Attach(devices.AttachDevicesRequest(devices=[device()]))
        await _containers(guest)
        await _warm_worker(guest)
        yield guest
        for name in ("running", "stopped", "created"):
            await guest.remove(name)


async def _containers(guest: Guest) -> None:
    mount = containers.StorageMount(storage_id="data", destination="/data")
    await guest.start("sleep 3000", id="running", storages=(mount,))
    await guest.start("exit 3", id="stopped")
    await guest.wait("stopped")
    await guest.containers.Create(create_request("created", "exit 0"))
    for name, terminal in (("plain", False), ("tty", True)):
        await guest.processes.Exec(execution(exec_id=name, terminal=terminal))


async def _warm_worker(guest: Guest) -> None:
    """The agent keeps the first process that looked for a socket by its path."""
    nowhere = sockets.SocketAddress(unix="/no/such/socket")
    opening = sockets.ForwardRequest(open=nowhere).SerializeToString()
    method = every_method()["Sockets.Forward"]
    assert await answer(guest, method, [opening]) == CONNECTION_REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Everything that the agent and the daemon list."""

    devices: bytes
    storages: bytes
    containers: bytes
    plugged: bytes
    network: bytes
    sandbox: str

    @classmethod
    async def of(cls, guest: Guest) -> Tables:
        listed = (
            await guest.devices.List(devices.ListDevicesRequest()),
            await guest.storages.List(storages.ListStoragesRequest()),
            await guest.containers.List(containers.ListContainersRequest()),
            await guest.host.ListPlugged(host.ListPluggedRequest()),
            await _network(guest),
        )
        texts = [each.SerializeToString(deterministic=True) for each in listed]
        described = await guest.describe()
        return cls(
            devices=texts[0],
            storages=texts[1],
            containers=texts[2],
            plugged=texts[3],
            network=texts[4],
            sandbox=described.sandbox_id,
        )


async def _network(guest: Guest) -> Message:
    """Interfaces, routes and rules, but for what traffic counts."""
    stub = NetworkStub(guest.channel)
    listed = await stub.ListInterfaces(network.ListInterfacesRequest())
    for interface in listed.interfaces:
        interface.ClearField("statistics")
    routes = await stub.ListRoutes(network.ListRoutesRequest())
    routes.changed.extend(str(each) for each in listed.interfaces)
    return routes


@pytest_asyncio.fixture(loop_scope="session")
async def unchanged(furnished: Guest) -> AsyncIterator[Observer]:
    """Lists, descriptors, processes, mounts, cgroups and files as before the test."""
    async with observing(furnished) as observer:
        tables, census = await Tables.of(furnished), await observer.census()
        yield observer
        assert await Tables.of(furnished) == tables
        await observer.returns_to(census)


# Requests that are good, but for what a case changes.


def device(**parts: Any) -> devices.Device:
    """The cold disk."""
    fields: dict[str, Any] = {
        "id": "cold",
        "address": devices.DeviceAddress(pci_path="05"),
        "timeout_seconds": 2.0,
        "block": devices.BlockDevice(),
    }
    return devices.Device(**{**fields, **parts})


def attach(*wanted: devices.Device) -> devices.AttachDevicesRequest:
    return devices.AttachDevicesRequest(devices=wanted)


def storage(**parts: Any) -> storages.AttachStorageRequest:
    """One on the cold disk, which has no file system."""
    fields: dict[str, Any] = {"id": "new", "block": block()}
    return storages.AttachStorageRequest(storage=storages.Storage(**{**fields, **parts}))


def block(**parts: Any) -> storages.BlockSource:
    return storages.BlockSource(**{"device_id": "cold", "fs_type": "ext4", **parts})


def container(**parts: Any) -> containers.CreateContainerRequest:
    fields: dict[str, Any] = {"id": "new", "spec": spec(), "path": DEFAULT_ROOT}
    return containers.CreateContainerRequest(**{**fields, **parts})


def update(**parts: Any) -> containers.UpdateContainerRequest:
    return containers.UpdateContainerRequest(**{"id": "running", **parts})


def spec(**process: Any) -> bytes:
    return json.dumps({"process": {"args": ["true"], "cwd": "/", **process}}).encode()


def execution(**parts: Any) -> processes.ExecRequest:
    fields: dict[str, Any] = {"container_id": "running", "exec_id": "new"}
    process = {"args": ["sleep", "3000"], "cwd": "/"}
    for name in ("args", "terminal", "cwd", "user"):
        if name in parts:
            process[name] = parts.pop(name)
    fields["process"] = json.dumps(process).encode()
    return processes.ExecRequest(**{**fields, **parts})


def ref(container_id: str = "running", exec_id: str = "") -> types.ProcessRef:
    return types.ProcessRef(container_id=container_id, exec_id=exec_id)


# Cases, one function a service.


def same(refusal: Refusal, *requests: Message) -> list[Case]:
    return [((request,), refusal) for request in requests]


def sandbox_cases() -> dict[str, list[Case]]:
    names = ("a b", "x\n127.0.0.1 evil", "-a", "a-", "\u00e9", "a..b", ".", "x" * 65, "a\0b")
    create = sandbox.CreateSandboxRequest
    late = grpc.StatusCode.OUT_OF_RANGE, "OFFSET_NOT_KEPT"
    forbidden = (grpc.StatusCode.PERMISSION_DENIED, "SYSCTL_NOT_ALLOWED")
    return {
        "Sandbox.Create": [
            *same(BAD_ID, *(create(id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(create(id="pod", hostname=bad) for bad in names)),
            *same(ID_IN_USE, create(id="other"), create(id="pod", hostname="pod-2")),
            *same(ID_IN_USE, create(id="pod", hostname="pod-1", shared_namespaces=["pid"])),
            *same(BAD_FIELD, *(create(id="pod", **bad) for bad in _bad_setups())),
            *same(forbidden, *(create(id="pod", sysctls={bad: "x"}) for bad in FORBIDDEN_SYSCTLS)),
            *same(BAD_FIELD, *(create(id="pod", timeout_seconds=bad) for bad in SECONDS)),
        ],
        "Sandbox.Destroy": same(
            BAD_FIELD, *(sandbox.DestroySandboxRequest(timeout_seconds=bad) for bad in SECONDS)
        ),
        "Sandbox.Describe": [],
        "Sandbox.SetTime": same(
            BAD_FIELD,
            sandbox.SetTimeRequest(seconds=-1),
            sandbox.SetTimeRequest(seconds=2**63 - 1),
            sandbox.SetTimeRequest(seconds=2_000_000_000, microseconds=-1),
            sandbox.SetTimeRequest(seconds=2_000_000_000, microseconds=1_000_000),
        ),
        "Sandbox.SeedEntropy": same(
            BAD_FIELD,
            sandbox.SeedEntropyRequest(),
            sandbox.SeedEntropyRequest(data=bytes(513)),
        ),
        "Sandbox.OnlineResources": same(
            BAD_FIELD,
            sandbox.OnlineResourcesRequest(cpus=0),
            sandbox.OnlineResourcesRequest(memory=0),
            sandbox.OnlineResourcesRequest(memory=2**64 - 1),
            sandbox.OnlineResourcesRequest(cpus=1, more_cpus=1),
            sandbox.OnlineResourcesRequest(memory=1, more_memory=1),
            *(sandbox.OnlineResourcesRequest(timeout_seconds=bad) for bad in SECONDS),
        ),
        "Sandbox.Watch": same(late, sandbox.WatchRequest(after_sequence=2**40)),
        "Sandbox.Shutdown": same(BAD_FIELD, sandbox.ShutdownRequest(action=99)),  # type: ignore[arg-type]
    }


def _bad_setups() -> Iterable[dict[str, Any]]:
    yield {"modules": [sandbox.KernelModule(name=name) for name in ("-r", "loop")]}
    yield {"modules": [sandbox.KernelModule(name="a/b")]}
    yield {"modules": [sandbox.KernelModule(name="loop", parameters=["no equals sign"])]}
    yield {"sysctls": {"../core_pattern": "x"}}
    yield {"sysctls": {"vm.swappiness": "a\0b"}}
    yield {"shared_namespaces": ["mount"]}
    yield {"shared_namespaces": ["pid", "pid"]}
    yield {"modules": [sandbox.KernelModule(name="loop")] * 65}
    yield {"guest_hooks": "relative"}
    yield {"dns": network.ApplyDnsRequest(servers=["not an address"])}
    yield {"dns": network.ApplyDnsRequest(hostname="another")}
    yield {"pressure": list(_bad_thresholds())[:1]}


def device_cases() -> dict[str, list[Case]]:
    pci, detach = devices.DeviceAddress, devices.DetachDeviceRequest
    mode = devices.ReconfigureDeviceRequest
    paths = (
        "",
        "/",
        "2/",
        "20",
        "02/",
        "02.8",
        "g0",
        "02//00",
        "0000:00",
        "02/03.1/",
        " 02",
        "02\0",
    )
    bdfs = ("", "00:05.0", "0000:00:05", "0000:00:05.8", "0000:00:20.0", "0000:00:05.0 ", "x")
    prepare, complete = devices.DETACH_PHASE_PREPARE, devices.DETACH_PHASE_COMPLETE
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    used = grpc.StatusCode.ALREADY_EXISTS, "ADDRESS_IN_USE"
    quick = {"id": "new", "timeout_seconds": 0.2}
    return {
        "Devices.Attach": [
            *same(BAD_ID, *(attach(device(id=bad)) for bad in IDS)),
            *same(BAD_ADDRESS, *(attach(device(address=pci(pci_path=bad))) for bad in paths)),
            *same(BAD_ADDRESS, *(attach(device(address=pci(pci_bdf=bad))) for bad in bdfs)),
            *same(BAD_ADDRESS, attach(device(address=None))),
            *same(BAD_FIELD, *(attach(device(timeout_seconds=bad)) for bad in SECONDS)),
            *same(BAD_FIELD, attach(), attach(*(device(id=f"d{n}") for n in range(65)))),
            *same(BAD_FIELD, attach(device(), device()), attach(device(block=None))),
            *same(BAD_FIELD, attach(device(block=devices.BlockDevice(expect_serial="a\0b")))),
            *same(ID_IN_USE, attach(device(block=None, vfio=devices.VfioDevice()))),
            *same(ID_IN_USE, attach(device(address=pci(path="/dev/vda")))),
            *same(ID_IN_USE, attach(device(id="data")), attach(device(address=pci(pci_path="06")))),
            *same(ID_IN_USE, attach(device(block=devices.BlockDevice(expect_size=5)))),
            *same(used, attach(device(id="new")), attach(device(id="n1"), device(id="n2"))),
            *same((late, "DEVICE_NOT_READY"), attach(device(**quick, address=pci(pci_path="1e")))),
            # One that would come, and one that never does: neither is left.
            *same(used, attach(device(id="n1", address=pci(pci_path="01")), device(id="n2"))),
        ],
        "Devices.Holders": [
            *same(BAD_ID, *(devices.DeviceHoldersRequest(id=bad) for bad in IDS)),
            *same(unknown("DEVICE"), devices.DeviceHoldersRequest(id="none")),
        ],
        "Devices.Reconfigure": [
            *same(BAD_ID, *(mode(id=bad, driver="vfio-pci") for bad in IDS)),
            *same(unknown("DEVICE"), mode(id="none", driver="vfio-pci")),
            *same(BAD_FIELD, mode(id="data"), mode(id="data", driver="../x")),
            *same(STILL_IN_USE, mode(id="data", driver="vfio-pci")),
        ],
        "Devices.Detach": [
            *same(BAD_ID, *(detach(id=bad, phase=prepare) for bad in IDS)),
            *same(unknown("DEVICE"), *(detach(id="none", phase=n) for n in (1, 2, 3))),  # type: ignore[arg-type]
            *same(BAD_FIELD, detach(id="cold"), detach(id="cold", phase=99)),  # type: ignore[arg-type]
            *same(
                BAD_FIELD,
                *(detach(id="cold", phase=complete, timeout_seconds=bad) for bad in SECONDS),
            ),
            *same(
                STILL_IN_USE, detach(id="data", phase=prepare), detach(id="data", phase=complete)
            ),
        ],
        "Devices.Get": [
            *same(BAD_ID, *(devices.GetDeviceRequest(id=bad) for bad in IDS)),
            *same(unknown("DEVICE"), devices.GetDeviceRequest(id="none")),
        ],
        "Devices.List": [],
    }


def storage_cases() -> dict[str, list[Case]]:
    get, detach = storages.GetStorageRequest, storages.DetachStorageRequest
    freeze = storages.FreezeStorageRequest
    places = ("relative", "/etc", "/mnt", "/mnt/../etc", "/mnt//a", "/mnt/a/", "/run/innkeeper/x")
    used = grpc.StatusCode.ALREADY_EXISTS, "MOUNT_POINT_IN_USE"
    below = "/run/innkeeper/storages"
    return {
        "Storages.Attach": [
            *same(BAD_FIELD, storages.AttachStorageRequest()),
            *same(BAD_ID, *(storage(id=bad) for bad in IDS)),
            *same(BAD_ID, *(storage(block=block(device_id=bad)) for bad in IDS if bad)),
            *same(BAD_FIELD, storage(block=block(device_id=""))),
            *same(BAD_FIELD, *(storage(mount_point=bad) for bad in (*places, "/mnt/a\0b"))),
            *same(BAD_ID, storage(mount_point=f"{below}/-rf")),
            *same(BAD_FIELD, *(storage(timeout_seconds=bad) for bad in SECONDS)),
            *same(BAD_FIELD, storage(block=None), storage(block=block(fs_type=""))),
            *same(BAD_FIELD, storage(block=block(fs_type="tmpfs")), storage(options=["a\0b"])),
            *same(BAD_FIELD, storage(block=block(fs_type="../ext4"))),
            *same(BAD_FIELD, *(storage(block=None, **bad) for bad in _bad_sources())),
            *same(BAD_FIELD, storage(fs_group=2**32 - 1), storage(fs_group=1, fs_group_policy=9)),
            *same(unknown("STORAGE"), storage(block=None, bind=_bind("none"))),
            *same(unknown("DEVICE"), storage(block=block(device_id="none"))),
            *same(ID_IN_USE, storage(id="data"), storage(id="data", read_only=True)),
            *same(used, storage(mount_point=f"{below}/data")),
            # The disk is empty, and the kernel without one of the types.
            *same(MOUNT_REFUSED, storage(), storage(block=block(fs_type="xfs"))),
            *same(MOUNT_REFUSED, storage(options=["no-such-option"])),
        ],
        "Storages.Detach": [
            *same(BAD_ID, *(detach(id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(detach(id="data", timeout_seconds=bad) for bad in SECONDS)),
            *same(unknown("STORAGE"), detach(id="none")),
            *same(STILL_IN_USE, detach(id="data")),
        ],
        "Storages.Get": [
            *same(BAD_ID, *(get(id=bad) for bad in IDS)),
            *same(unknown("STORAGE"), get(id="none")),
        ],
        "Storages.List": [],
        "Storages.Stats": _by_id(storages.StorageStatsRequest),
        "Storages.Resize": _by_id(storages.ResizeStorageRequest),
        "Storages.Trim": _by_id(storages.TrimStorageRequest),
        "Storages.Thaw": _by_id(storages.ThawStorageRequest),
        "Storages.Freeze": [
            *_by_id(freeze),
            *same(BAD_FIELD, *(freeze(id="data", timeout_seconds=bad) for bad in SECONDS)),
        ],
        "Storages.Refresh": [
            *_by_id(storages.RefreshStorageRequest),
            *same(WRONG_STATE, storages.RefreshStorageRequest(id="data")),
        ],
    }


def _by_id(request: Any) -> list[Case]:
    return [
        *same(BAD_ID, *(request(id=bad) for bad in IDS)),
        *same(unknown("STORAGE"), request(id="none")),
    ]


def _bind(storage_id: str) -> storages.BindSource:
    return storages.BindSource(directory=storages.StorageDirectory(storage_id=storage_id))


def _bad_sources() -> list[dict[str, Message]]:
    return [
        {"virtiofs": storages.VirtiofsSource()},
        {"nine_p": storages.NinePSource()},
        {"tmpfs": storages.TmpfsSource(mode=0o20000)},
        {"hugetlb": storages.HugetlbSource(page_size=3)},
        {"bind": storages.BindSource(path="relative")},
        {"overlay": storages.OverlaySource()},
        {"nfs": storages.NfsSource(path="/x")},
        {"cifs": storages.CifsSource(server="x")},
        {"ceph": storages.CephSource()},
        {"watched": storages.WatchedSource()},
    ]


def files_cases() -> dict[str, list[Case]]:
    missing = grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND"
    root = files.FileRoot(storage_id="data")

    def start(**parts: Any) -> files.CopyInRequest:
        return files.CopyInRequest(start=files.CopyStart(**parts))

    out = files.CopyOutRequest
    return {
        "Files.CopyIn": [
            *same(BAD_FIELD, files.CopyInRequest(), start(), start(root=root, path="../x")),
            *same(BAD_ID, *(start(root=files.FileRoot(storage_id=bad)) for bad in IDS)),
            *same(unknown("STORAGE"), start(root=files.FileRoot(storage_id="none"))),
            *same(unknown("CONTAINER"), start(root=files.FileRoot(container_id="none"))),
        ],
        "Files.CopyOut": [
            *same(BAD_FIELD, out(), out(root=root, path=".."), out(root=root, path="a\0b")),
            *same(BAD_ID, *(out(root=files.FileRoot(container_id=bad)) for bad in IDS)),
            *same(unknown("STORAGE"), out(root=files.FileRoot(storage_id="none"))),
            *same(missing, out(root=root, path="no/such/file")),
        ],
    }


def container_cases() -> dict[str, list[Case]]:
    start, remove = containers.StartContainerRequest, containers.RemoveContainerRequest
    watch = containers.WatchStatsRequest
    no_cpus = grpc.StatusCode.RESOURCE_EXHAUSTED, "CPUS_EXHAUSTED"
    return {
        "Containers.Create": [
            *same(BAD_ID, *(container(id=bad) for bad in IDS)),
            *same(BAD_ID, *(container(path=None, storage_id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(container(timeout_seconds=bad) for bad in SECONDS)),
            *same(BAD_SPEC, *(container(spec=bad) for bad in _bad_specs())),
            *same(BAD_FIELD, container(path=None)),
            *same(BAD_FIELD, *(container(path=bad) for bad in _bad_roots())),
            *same(NOT_BUILT, container(cdi_devices=["a.b/c=d"])),
            *same(BAD_FIELD, container(shared_namespaces=["moon"])),
            *same(WRONG_STATE, container(shared_namespaces=["pid"])),
            *same(BAD_FIELD, *(container(streams=bad) for bad in _bad_streams())),
            *same(BAD_FIELD, *(container(pressure=[bad]) for bad in _bad_thresholds())),
            *same(BAD_FIELD, container(pressure=[_threshold()] * 17)),
            *same(NOT_SUPPORTED, *(container(spec=bad) for bad in _specs_beyond_this_guest())),
            *same(UNKNOWN_USER, container(spec=spec(user={"username": "nobody-here"}))),
            *same(HOOK_FAILED, container(spec=_hooked("/bin/false"))),
            *same(unknown("STORAGE"), container(path=None, storage_id="none")),
            *_bad_mounts(),
            *_bad_grants(lambda grants: container(devices=grants)),
            *same(no_cpus, container(exclusive_cpus=1), container(exclusive_cpus=2**32 - 1)),
            *same(ID_IN_USE, container(id="running"), container(id="stopped")),
            *same(RUNTIME_REFUSED, container(spec=spec(args=["/no/such/program"]))),
            *same(RUNTIME_REFUSED, container(spec=spec(cwd="/no/such/directory"))),
        ],
        "Containers.Start": [
            *same(BAD_ID, *(start(id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(start(id="created", timeout_seconds=bad) for bad in SECONDS)),
            *same(unknown("CONTAINER"), start(id="none")),
        ],
        "Containers.Pause": [
            *_by_container(containers.PauseContainerRequest),
            *same(WRONG_STATE, containers.PauseContainerRequest(id="stopped")),
            *same(WRONG_STATE, containers.PauseContainerRequest(id="created")),
        ],
        "Containers.Resume": [
            *_by_container(containers.ResumeContainerRequest),
            *same(WRONG_STATE, containers.ResumeContainerRequest(id="stopped")),
        ],
        "Containers.Stats": _by_container(containers.ContainerStatsRequest),
        "Containers.WatchStats": [
            *same(BAD_ID, *(watch(ids=[bad]) for bad in IDS)),
            *same(unknown("CONTAINER"), watch(ids=["none"]), watch(ids=["running", "none"])),
            *same(BAD_FIELD, *(watch(interval_seconds=bad) for bad in (*SECONDS, 0.05, 4000))),
        ],
        "Containers.Update": [
            *same(BAD_ID, *(update(id=bad) for bad in IDS)),
            *same(BAD_SPEC, *(update(resources=bad) for bad in _bad_resources())),
            *same(unknown("CONTAINER"), update(id="none")),
            *same(WRONG_STATE, update(id="stopped"), update(id="stopped", exclusive_cpus=1)),
            *same(no_cpus, update(exclusive_cpus=1), update(exclusive_cpus=2**32 - 1)),
            *same(BAD_FIELD, *(_update_pressure(bad) for bad in _bad_thresholds())),
            *same(BAD_FIELD, *(update(timeout_seconds=bad) for bad in SECONDS)),
            *same(RUNTIME_REFUSED, update(resources=b'{"unified": {"memory.max": "many"}}')),
            # A limit of cgroup v1's alone.
            *same(NOT_SUPPORTED, update(resources=b'{"memory": {"kernel": 1}}')),
            *_bad_grants(_update_granting),
        ],
        "Containers.Remove": [
            *same(BAD_ID, *(remove(id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(remove(id="running", grace_seconds=bad) for bad in SECONDS)),
            *same(BAD_FIELD, *(remove(id="running", timeout_seconds=bad) for bad in SECONDS)),
            *same(unknown("CONTAINER"), remove(id="none")),
        ],
        "Containers.List": [],
    }


def _by_container(request: Any) -> list[Case]:
    return [
        *same(BAD_ID, *(request(id=bad) for bad in IDS)),
        *same(unknown("CONTAINER"), request(id="none")),
    ]


def _bad_streams() -> Iterable[types.StreamOptions]:
    for size in (1, (64 << 10) - 1, (64 << 20) + 1, 2**64 - 1):
        yield types.StreamOptions(buffer_bytes=size)
    yield types.StreamOptions(when_full=9)  # type: ignore[arg-type]
    yield types.StreamOptions(log=types.OutputLog(max_bytes=1))
    yield types.StreamOptions(log=types.OutputLog(files=17))


def _threshold() -> types.PressureThreshold:
    cpu = types.PRESSURE_RESOURCE_CPU
    return types.PressureThreshold(resource=cpu, stall_micros=1, window_micros=10**6)


def _bad_thresholds() -> Iterable[types.PressureThreshold]:
    cpu = types.PRESSURE_RESOURCE_CPU
    yield types.PressureThreshold()
    yield types.PressureThreshold(resource=9, stall_micros=1, window_micros=10**6)  # type: ignore[arg-type]
    for stall, window in ((0, 10**6), (1, 0), (1, 499_999), (1, 10_000_001), (2 * 10**6, 10**6)):
        yield types.PressureThreshold(resource=cpu, stall_micros=stall, window_micros=window)


def _update_pressure(bad: types.PressureThreshold) -> containers.UpdateContainerRequest:
    return update(pressure=containers.PressureThresholds(thresholds=[bad]))


def _specs_beyond_this_guest() -> Iterable[bytes]:
    """The image's kernel has no SELinux, and this crun no policy for memory."""
    yield spec(selinuxLabel="system_u:system_r:container_t:s0")
    whole = b'{"process": {"args": ["true"]}, "linux": %s}'
    yield whole % b'{"mountLabel": "system_u:object_r:container_file_t:s0"}'
    yield whole % b'{"memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0"}}'


def _hooked(path: str) -> bytes:
    hooks = {"createRuntime": [{"path": path}]}
    return json.dumps({"process": {"args": ["true"]}, "hooks": hooks}).encode()


def _bad_specs() -> Iterable[bytes]:
    yield from (b"", b"{", b"[]", b"null", b"1", b"\xff", b"{}", b'{"process": 5}', b"[" * 100_000)
    yield from (spec(args=[]), spec(args="true"), spec(args=[""]), spec(args=["a\0b"]))
    yield from (spec(cwd="relative"), spec(env=["NOVALUE"]), spec(env=["=x"]), spec(env=[5]))
    yield from (spec(terminal="yes"), spec(user={"uid": -1}), spec(args=["x" * 131_072]))
    for part in (
        '"linux": {"namespaces": [{"type": "pid"}]}',
        '"linux": {"namespaces": [{"type": "moon"}]}',
        '"linux": {"netDevices": []}',
        '"linux": {"netDevices": {"eth0": {}}}',
        '"linux": {"netDevices": {"e/0": {}}}',
        '"linux": {"devices": [{"path": "/dev/x"}]}',
        '"linux": {"devices": [{"path": "x", "type": "c", "major": 1, "minor": 3}]}',
        '"linux": {"devices": [{"path": "/x", "type": "c", "major": -1, "minor": 3}]}',
        '"linux": {"resources": {"devices": [{"allow": true, "access": "x"}]}}',
        '"linux": {"resources": {"devices": [{"allow": true, "type": "c", "major": "1"}]}}',
        '"linux": []',
        '"mounts": [{}]',
        '"mounts": [{"destination": "relative"}]',
        '"annotations": {"run.oci.handler": "x"}',
        '"windows": {}',
        '"ociVersion": "2.0"',
        '"process": {"args": ["true"]}',
    ):
        yield b'{"process": {"args": ["true"]}, ' + part.encode() + b"}"


def _bad_roots() -> Iterable[str]:
    return (
        "relative",
        "/",
        "/..",
        "/usr/../etc",
        "/usr//lib",
        "/no/such/root",
        "/etc/passwd",
        "/a\0b",
    )


def _bad_resources() -> Iterable[bytes]:
    yield from (b"{", b"[]", b"null", b"1", b"\xff", b"[" * 100_000)
    yield from (b'{"devices": []}', b'{"devices": [{"allow": true}]}', b'{"unified": []}')
    yield from (b'{"unified": {"cgroup.procs": "1"}}', b'{"unified": {"../memory.max": "1"}}')


def _update_granting(grants: list[containers.DeviceGrant]) -> containers.UpdateContainerRequest:
    return update(devices=containers.DeviceGrants(grants=grants))


def _bad_grants(asking: Callable[[list[containers.DeviceGrant]], Message]) -> list[Case]:
    grant = containers.DeviceGrant

    def granting(**parts: Any) -> Message:
        return asking([grant(**{"device_id": "cold", **parts})])

    cold = grant(device_id="cold")
    return [
        *same(BAD_ID, *(granting(device_id=bad) for bad in IDS)),
        *same(unknown("DEVICE"), granting(device_id="none")),
        *same(BAD_FIELD, *(granting(permissions=bad) for bad in ("x", "rr", "rwmx"))),
        *same(BAD_FIELD, *(granting(container_path=bad) for bad in ("dev/x", "/a/../b", "/a\0b"))),
        *same(BAD_FIELD, *(granting(node=bad) for bad in ("vda", "/dev/none", "/a\0b"))),
        *same(BAD_FIELD, asking([cold, cold])),
    ]


def _bad_mounts() -> list[Case]:
    mount = containers.StorageMount

    def mounting(**parts: Any) -> containers.CreateContainerRequest:
        return container(storages=[mount(**{"storage_id": "data", "destination": "/d", **parts})])

    return [
        *same(BAD_ID, *(mounting(storage_id=bad) for bad in IDS)),
        *same(unknown("STORAGE"), mounting(storage_id="none")),
        *same(BAD_FIELD, *(mounting(destination=bad) for bad in ("", "relative", "/a\0b"))),
        *same(BAD_FIELD, *(mounting(options=[bad]) for bad in ("nonsense", "upperdir=/", "a\0b"))),
    ]


def process_cases() -> dict[str, list[Case]]:
    number, wait, size = processes.SignalRequest, processes.WaitRequest, processes.ResizeRequest
    listing = processes.ListProcessesRequest
    window = types.WindowSize(rows=24, columns=80)
    sizes = ((0, 80), (24, 0), (70_000, 80), (24, 65_536))
    return {
        "Processes.Exec": [
            *same(BAD_ID, *(execution(container_id=bad) for bad in IDS)),
            *same(BAD_ID, *(execution(exec_id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(execution(timeout_seconds=bad) for bad in SECONDS)),
            *same(BAD_FIELD, execution(process=b"")),
            *same(BAD_SPEC, *(execution(process=bad) for bad in (b"{", b"[]", b"{}", b"\xff"))),
            *same(BAD_FIELD, *(execution(streams=bad) for bad in _bad_streams())),
            *same(BAD_FIELD, *(execution(more_environment=[bad]) for bad in ("", "A", "=b"))),
            *same(UNKNOWN_USER, execution(user={"username": "nobody-here"})),
            *same(BAD_SPEC, execution(args=[]), execution(cwd="x"), execution(terminal=1)),
            *same(unknown("CONTAINER"), execution(container_id="none")),
            *same(WRONG_STATE, execution(container_id="stopped")),
            *same(WRONG_STATE, execution(container_id="created")),
            *same(ID_IN_USE, execution(exec_id="plain", args=["true"])),
            *same(RUNTIME_REFUSED, execution(args=["/no/such/program"])),
        ],
        "Processes.Signal": [
            *_bad_refs(lambda process: number(process=process, signal=15)),
            *same(
                BAD_FIELD, *(number(process=ref(), signal=bad) for bad in (0, -1, 65, 2**31 - 1))
            ),
            *same(BAD_FIELD, number(process=ref(exec_id="tty"), signal=15, all_processes=True)),
            *same(
                BAD_FIELD, *(number(process=ref(), name=bad) for bad in ("", "TREM", "SIG", "9"))
            ),
            *same(BAD_FIELD, number(process=ref(), name="TERM", signal=9)),
        ],
        "Processes.Wait": [
            *_bad_refs(lambda process: wait(process=process)),
            *same(BAD_FIELD, wait(process=ref(), stderr_tail_bytes=65_537)),
        ],
        "Processes.Logs": [
            *_bad_refs(lambda process: processes.LogsRequest(process=process)),
            *same(NO_LOG, processes.LogsRequest(process=ref())),
            *same(BAD_FIELD, processes.LogsRequest(process=ref(), since_unix_micros=-1)),
        ],
        "Processes.List": [
            *same(BAD_ID, *(listing(container_id=bad) for bad in IDS)),
            *same(unknown("CONTAINER"), listing(container_id="none")),
        ],
        "Processes.Resize": [
            *_bad_refs(lambda process: size(process=process, size=window)),
            *same(BAD_FIELD, size(process=ref(exec_id="tty"))),
            *same(
                BAD_FIELD,
                *(
                    size(
                        process=ref(exec_id="tty"),
                        size=types.WindowSize(rows=rows, columns=columns),
                    )
                    for rows, columns in sizes
                ),
            ),
            *same(NO_TERMINAL, size(process=ref(exec_id="plain"), size=window)),
        ],
        "Processes.Attach": _attach_cases(),
    }


def _bad_refs(request: Any) -> list[Case]:
    """A reference to no process, in all the ways there are."""
    return [
        *same(BAD_ID, request(None), *(request(ref(container_id=bad)) for bad in IDS)),
        *same(BAD_ID, *(request(ref(exec_id=bad)) for bad in IDS if bad)),
        *same(unknown("CONTAINER"), request(ref(container_id="none"))),
        *same(unknown("PROCESS"), request(ref(exec_id="none"))),
    ]


def _attach_cases() -> list[Case]:
    def frames(*parts: dict[str, Any]) -> tuple[Message, ...]:
        return tuple(processes.AttachRequest(**each) for each in parts)

    def opening(process: types.ProcessRef | None, **offsets: Any) -> dict[str, Any]:
        return {"open": processes.OpenStreams(process=process, **offsets)}

    plain, tty = opening(ref(exec_id="plain")), opening(ref(exec_id="tty"))
    stdin, nothing = types.STREAM_KIND_STDIN, types.STREAM_KIND_UNSPECIFIED
    resize = {"resize": types.WindowSize(rows=24, columns=80)}
    return [
        *(
            (frames({"open": case.open}), refusal)
            for (case,), refusal in _bad_refs(_opening_of)
            if isinstance(case, processes.AttachRequest)
        ),
        *((frames(opening(ref(exec_id="plain"), reader=bad)), BAD_ID) for bad in IDS if bad),
        (frames(opening(ref(exec_id="plain"), until=9)), BAD_FIELD),
        (frames({}), BAD_FIELD),
        (frames(resize), BAD_FIELD),
        (frames(plain, plain), BAD_FIELD),
        (frames(plain, resize), NO_TERMINAL),
        (frames(tty, {"resize": types.WindowSize(rows=0, columns=5)}), BAD_FIELD),
        (frames(opening(ref(exec_id="plain"), stdout_offset=1)), GAP),
        (frames(opening(ref(exec_id="plain"), stderr_offset=2**63)), GAP),
        (frames(plain, {"input": processes.InputFrame(offset=1, data=b"x")}), GAP),
        (frames(plain, {"input": processes.InputFrame(data=bytes((1 << 20) + 1))}), BAD_FIELD),
        (frames(plain, {"close_input": processes.CloseInput(offset=1)}), GAP),
        (frames(plain, {"ack": processes.OutputAck(stream=stdin)}), BAD_FIELD),
        (frames(plain, {"ack": processes.OutputAck(stream=nothing)}), BAD_FIELD),
        (frames(plain, {"ack": processes.OutputAck(stream=2, offset=1)}), GAP),  # type: ignore[arg-type]
    ]


def _opening_of(process: types.ProcessRef | None) -> processes.AttachRequest:
    return processes.AttachRequest(open=processes.OpenStreams(process=process))


def bad_plugs() -> list[Case]:
    """Hardware that can't be, or not here; nothing of it reaches QEMU."""
    precondition = _PRECONDITION
    unknown_port = grpc.StatusCode.NOT_FOUND, "UNKNOWN_PORT"
    no_function = grpc.StatusCode.NOT_FOUND, "UNKNOWN_HOST_FUNCTION"
    virtual, lun = host.GPU_MODEL_VIRTIO, host.ScsiDisk
    content = host.DiskFile(file=str(Path(__file__)))
    device = devices.Device(address=devices.DeviceAddress(pci_path="10/00"))
    return [
        *same(BAD_FIELD, host.PlugRequest(), plug("new")),
        *same(BAD_FIELD, plug("new", rng=host.Rng(), guest=device)),
        *same(BAD_FIELD, plug("new", nic=host.Nic(mac="52:54:00:12:34"))),
        *same(BAD_FIELD, plug("new", nic=host.Nic(mac="01:00:5e:00:00:01"))),
        *same(BAD_FIELD, plug("new", nic=host.Nic(model=99))),  # type: ignore[arg-type]
        *same(BAD_FIELD, plug("new", scsi_disk=lun(content=content))),
        *same(BAD_FIELD, plug("new", scsi_disk=lun(content=content, controller="c", target=256))),
        *same(unknown("CONTROLLER"), plug("new", scsi_disk=lun(content=content, controller="c"))),
        *same(BAD_FIELD, plug("new", host_function=host.HostFunction(bdf="3b:00.0"))),
        *same(no_function, plug("new", host_function=host.HostFunction(bdf="fffe:00:00.0"))),
        *same(unknown_port, plug("new", rng=host.Rng(), port="none")),
        *same((precondition, "NOT_PLUGGABLE"), plug("new", gpu=host.Gpu(model=virtual))),
        *same((precondition, "NOT_PLUGGABLE"), plug("new", memory=host.Memory(size=1 << 27))),
        *same(BAD_FIELD, plug("new", cpus=host.Cpus())),
    ]


def host_cases() -> dict[str, list[Case]]:
    unplug, stop = host.UnplugRequest, host.StopVmRequest
    query = host.QueryQemuRequest
    missing = grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND"
    here = str(Path(__file__))
    return {
        "Host.Describe": [],
        "Host.Plug": [
            *same(BAD_FIELD, *(disk_plug(bad, here) for bad in IDS)),
            *same(BAD_FIELD, *(disk_plug("new", bad) for bad in ("", "relative", "/"))),
            *same(BAD_FIELD, disk_plug("new", here, format="vmdk")),
            *same(BAD_FIELD, disk_plug("new", here, format="qcow2")),
            *same(BAD_FIELD, *(disk_plug("new", here, timeout_seconds=bad) for bad in SECONDS)),
            *same(missing, disk_plug("new", "/no/such/file")),
            *same(ID_IN_USE, disk_plug("data", here)),
            *bad_plugs(),
        ],
        "Host.ListPorts": [],
        "Host.ResizeDisk": [
            *same(BAD_FIELD, *(host.ResizeDiskRequest(id=bad) for bad in IDS)),
            *same(BAD_FIELD, host.ResizeDiskRequest(id="data", size=1)),
            *same(unknown("DEVICE"), host.ResizeDiskRequest(id="none")),
        ],
        "Host.Unplug": [
            *same(BAD_FIELD, *(unplug(id=bad) for bad in IDS)),
            *same(BAD_FIELD, *(unplug(id="data", timeout_seconds=bad) for bad in SECONDS)),
            *same(unknown("DEVICE"), unplug(id="none")),
            *same(STILL_IN_USE, unplug(id="data")),
        ],
        "Host.ListPlugged": [],
        "Host.Query": [
            *same(BAD_FIELD, *(query(command=bad) for bad in ("", "quit", "query-", "query-a b"))),
            *same(BAD_FIELD, query(command="device_del"), query(command="query-" + "x" * 61)),
            *same((_PRECONDITION, "QEMU_REFUSED"), query(command="query-nothing")),
        ],
        "Host.Stop": same(BAD_FIELD, *(stop(grace_seconds=bad) for bad in SECONDS)),
    }


def network_cases() -> dict[str, list[Case]]:
    remove, neighbors = network.RemoveInterfaceRequest, network.ApplyNeighborsRequest
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    fixed = (_PRECONDITION, "NOT_REMOVABLE")
    forbidden = (grpc.StatusCode.PERMISSION_DENIED, "SYSCTL_NOT_ALLOWED")
    empty = at(pci_path="1e")
    several = network.ApplyInterfacesRequest
    both = several(interfaces=[lo(), lo()])
    unfound = several(interfaces=[lo(mtu=9000), lo(current_name="none", timeout_seconds=0.2)])
    return {
        "Network.ApplyInterface": [
            *same(BAD_FIELD, *(lo(**bad) for bad in _bad_interfaces())),
            *same(BAD_ADDRESS, *(at(**bad) for bad in _bad_places())),
            *same((late, "DEVICE_NOT_READY"), empty),
            *same(unknown("INTERFACE"), lo(current_name="none", timeout_seconds=0.2)),
            *same(unknown("INTERFACE"), at(mac="02:00:00:00:00:77"), lo(master="none")),
        ],
        "Network.ApplyInterfaces": [
            *same(
                BAD_FIELD, both, several(interfaces=[lo(current_name=f"e{n}") for n in range(65)])
            ),
            *same(BAD_FIELD, *(several(interfaces=[lo(**bad)]) for bad in _bad_interfaces())),
            *same(unknown("INTERFACE"), unfound),
        ],
        "Network.RemoveInterface": [
            *same(BAD_FIELD, *(remove(name=bad) for bad in ("", "a b", "a\n", "a\0b", "x" * 128))),
            *same(fixed, remove(name="lo")),
        ],
        "Network.ListInterfaces": [],
        "Network.ApplyRoutes": [
            *same(BAD_FIELD, *(routed(**bad) for bad in _bad_routes())),
            *same(BAD_FIELD, *(ruled(**bad) for bad in _bad_rules())),
            *same(BAD_FIELD, *_bad_sets()),
            *same(unknown("INTERFACE"), routed(device="none")),
        ],
        "Network.ListRoutes": same(BAD_FIELD, network.ListRoutesRequest(family=9)),  # type: ignore[arg-type]
        "Network.ApplyNeighbors": [
            *same(BAD_FIELD, *(neighbors(neighbors=[bad]) for bad in _bad_neighbors())),
            *same(BAD_FIELD, *(neighbors(forwarding=[bad]) for bad in _bad_forwarding())),
            *same(BAD_FIELD, neighbors(exact_devices=[""])),
            *same(unknown("INTERFACE"), neighbors(exact_devices=["none"])),
        ],
        "Network.ListNeighbors": [],
        "Network.ApplyDns": same(
            BAD_FIELD, *(network.ApplyDnsRequest(**bad) for bad in _bad_dns())
        ),
        "Network.GetDns": [],
        "Network.ApplySysctls": [
            *same(BAD_FIELD, sysctl(""), sysctl("a b"), sysctl("net.x\n"), sysctl("net.ipv4/../x")),
            *same(BAD_FIELD, sysctl("net.ipv4.ip_forward", "1\n"), sysctl("../net", "1")),
            *same(forbidden, sysctl("kernel.panic"), sysctl("net.core.rmem_max")),
            *same(forbidden, sysctl("vm/overcommit_memory")),
        ],
        "Network.GetFirewall": same(BAD_FIELD, network.GetFirewallRequest(format=9)),  # type: ignore[arg-type]
        "Network.SetFirewall": [
            *same(BAD_FIELD, ruleset(format=0), ruleset(format=9), ruleset(rules=b"a\0b")),
            *same(BAD_FIELD, ruleset(rules=bytes((8 << 20) + 1))),
            *same(BAD_FIELD, *(ruleset(timeout_seconds=bad) for bad in SECONDS)),
        ],
    }


def lo(**parts: Any) -> network.ApplyInterfaceRequest:
    """The loopback, which every guest has."""
    return network.ApplyInterfaceRequest(**{"current_name": "lo", "keep_addresses": True, **parts})


def at(**form: Any) -> network.ApplyInterfaceRequest:
    return lo(current_name="", address=devices.DeviceAddress(**form), timeout_seconds=0.2)


def routed(**parts: Any) -> network.ApplyRoutesRequest:
    route = network.Route(**{"destination": "198.51.100.0/24", "device": "lo", **parts})
    routes = network.RouteSet(family=network.ADDRESS_FAMILY_V4, table=99, routes=[route])
    return network.ApplyRoutesRequest(sets=[routes])


def ruled(**parts: Any) -> network.ApplyRoutesRequest:
    rule = network.Rule(**{"priority": 99, "table": 99, **parts})
    rules = network.RuleSet(family=network.ADDRESS_FAMILY_V4, rules=[rule])
    return network.ApplyRoutesRequest(rules=[rules])


def sysctl(name: str, value: str = "1") -> network.ApplySysctlsRequest:
    return network.ApplySysctlsRequest(values={name: value})


def ruleset(**parts: Any) -> network.SetFirewallRequest:
    nftables = network.FIREWALL_FORMAT_NFTABLES
    return network.SetFirewallRequest(**{"format": nftables, "rules": b"{}", **parts})


def _bad_interfaces() -> Iterable[dict[str, Any]]:
    names = ("x" * 16, "\u00e9" * 8, "a/b", "a b", ".", "..", "a:b", "e%d", "a\0b", "a\n")
    cidrs = ("", "10.0.0.1", "10.0.0.1/33", "10.0.0.01/8", "::1%lo/128", "ff02::1/64", "0.0.0.0/0")
    yield from ({"name": bad} for bad in names)
    yield from ({"addresses": [network.InterfaceAddress(cidr=bad)]} for bad in cidrs)
    yield from ({"mac": bad} for bad in ("x", "01:00:5e:00:00:01", "00:00:00:00:00:00"))
    yield from ({"timeout_seconds": bad} for bad in SECONDS)
    yield {"current_name": ""}
    yield {"address": devices.DeviceAddress(pci_path="05")}
    yield {"mtu": 2**31}
    yield {"offloads": {"T S O": True}}
    yield {"alternative_names": ["a b"]}
    yield {"vlan": network.VlanLink(parent="lo", vlan_id=4095)}
    yield {"bond": network.BondLink(mode="x")}
    yield {"vrf": network.VrfLink()}
    yield {"veth": network.VethLink()}


def _bad_places() -> Iterable[dict[str, Any]]:
    yield from ({"pci_path": bad} for bad in ("", "/", "2/", "02.8", "02//00"))
    yield from ({"pci_bdf": bad} for bad in ("", "00:05.0", "0000:00:05.8"))
    yield from ({"mac": bad} for bad in ("", "02:00:00:aa:bb", "01:00:5e:00:00:01"))
    yield {"path": "/dev/vda"}
    yield {}


def _bad_routes() -> Iterable[dict[str, Any]]:
    yield from ({"destination": bad} for bad in ("198.51.100.1/24", "::/0", "x", "1.2.3.4/33"))
    yield from ({"gateway": bad} for bad in ("0.0.0.0", "x", "fe80::1%lo", "192.0.2.1/32"))
    yield from ({"type": bad} for bad in (6, 7, 8, 9, 99))
    yield {"device": ""}
    yield {"source": "::1"}
    yield {"scope": "x"}
    yield {"mtu": 65_536}
    yield {"onlink": True}
    yield {"next_hops": [network.NextHop(device="lo")]}


def _bad_rules() -> Iterable[dict[str, Any]]:
    yield from ({"priority": bad} for bad in (0, 32_766, 2**32 - 1))
    yield {"table": 0}
    yield {"action": 99}
    yield {"source": "10.0.0.1/8"}
    yield {"incoming": "a b"}
    yield {"ip_protocol": 256}
    yield {"suppress_prefix_length": 33}


def _bad_sets() -> Iterable[network.ApplyRoutesRequest]:
    routes, request = network.RouteSet, network.ApplyRoutesRequest
    version = network.ADDRESS_FAMILY_V4
    yield request(sets=[routes(table=99)])
    yield request(sets=[routes(family=9, table=99)])  # type: ignore[arg-type]
    yield request(sets=[routes(family=version, table=255)])
    yield request(sets=[routes(family=version, table=99)] * 2)
    yield request(rules=[network.RuleSet(family=version)] * 2)
    yield request(sets=[routes(family=version, table=99, routes=[network.Route()] * 100_001)])


def _bad_neighbors() -> Iterable[network.Neighbor]:
    good: dict[str, Any] = {"address": "192.0.2.9", "mac": "02:00:00:00:00:09", "device": "lo"}
    for bad in ({"address": "x"}, {"address": "::"}, {"mac": ""}, {"mac": "02"}, {"device": ""}):
        yield network.Neighbor(**{**good, **bad})
    yield network.Neighbor(**good, state="failed")


def _bad_forwarding() -> Iterable[network.ForwardingEntry]:
    good: dict[str, Any] = {"mac": "02:00:00:00:00:09", "device": "lo"}
    for bad in ({"mac": ""}, {"device": ""}, {"vlan_id": 4095}, {"state": "x"}):
        yield network.ForwardingEntry(**{**good, **bad})


def _bad_dns() -> Iterable[dict[str, Any]]:
    evil = "192.0.2.53\nnameserver 192.0.2.66"
    yield from ({"servers": [bad]} for bad in ("", "dns", evil, "2001:db8::1%lo", "0.0.0.0"))
    yield from ({"searches": [bad]} for bad in ("", "a b", "a\nb", "x" * 64))
    yield from ({"options": [bad]} for bad in ("", "a b", "a\nb"))
    yield from ({"hostname": bad} for bad in ("a b", "a\nb", "x" * 65))
    yield {"servers": ["192.0.2.53"] * 33}
    yield {"hosts": [network.HostEntry(address="192.0.2.1", names=["a\n192.0.2.66 b"])]}


def sockets_cases() -> dict[str, list[Case]]:
    taken = grpc.StatusCode.ALREADY_EXISTS, "ADDRESS_IN_USE"
    where = sockets.SocketAddress
    tcp = ("", "80", "host", "127.0.0.1:x", "127.0.0.1:65536", "[::1:80", "a b:80", "a\0b:80")
    paths = ("", "relative", "/a\0b")
    opened = [sockets.ForwardRequest(open=where(tcp="127.0.0.1:1"))]

    def forward(*addresses: sockets.SocketAddress) -> list[Message]:
        return [sockets.ForwardRequest(open=each) for each in addresses]

    def listen(*addresses: sockets.SocketAddress) -> list[Message]:
        return [sockets.ListenRequest(address=each) for each in addresses]

    return {
        "Sockets.Forward": [
            *same(BAD_FIELD, sockets.ForwardRequest(), sockets.ForwardRequest(data=b"x")),
            *same(BAD_FIELD, *forward(where(), *(where(unix=bad) for bad in paths))),
            *same(BAD_FIELD, *forward(where(tcp=":80"), where(tcp="127.0.0.1:0"))),
            *same(BAD_ADDRESS, *forward(*(where(tcp=bad) for bad in tcp))),
            *same(BAD_ID, *forward(*(where(tcp="a:1", container_id=bad) for bad in IDS if bad))),
            *same(unknown("CONTAINER"), *forward(where(tcp="127.0.0.1:1", container_id="none"))),
            *same(CONNECTION_REFUSED, *opened, *forward(*map(_path, ("/no/such/socket", "/etc")))),
        ],
        "Sockets.Listen": [
            *same(BAD_FIELD, sockets.ListenRequest(), *listen(where())),
            *same(BAD_FIELD, *listen(*(where(unix=bad) for bad in paths))),
            *same(BAD_ADDRESS, *listen(*(where(tcp=bad) for bad in tcp))),
            *same(unknown("CONTAINER"), *listen(where(tcp=":0", container_id="none"))),
            *same(taken, *listen(where(unix="/run/innkeeper/agent.sock"))),
        ],
        "Sockets.Accept": [
            *same(BAD_FIELD, sockets.AcceptRequest(), sockets.AcceptRequest(end=True)),
            *same(unknown("CONNECTION"), sockets.AcceptRequest(connection=2**63)),
        ],
    }


def _path(path: str) -> sockets.SocketAddress:
    return sockets.SocketAddress(unix=path)


CASES = {
    **sandbox_cases(),
    **device_cases(),
    **storage_cases(),
    **files_cases(),
    **container_cases(),
    **process_cases(),
    **network_cases(),
    **sockets_cases(),
    **host_cases(),
}


# The tests.


def every_method() -> dict[str, MethodDescriptor]:
    """All methods of the protocol, `Devices.Attach` and so on."""
    return {
        f"{service.name}.{method.name}": method
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


async def answer(guest: Guest, method: MethodDescriptor, frames: Iterable[bytes]) -> Refusal | None:
    """Code and reason of a call with these frames; None when it isn't refused.

    All kinds of methods are the same on the wire, as bytes.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: Any = guest.channel.stream_stream(path)(timeout=20)
    try:
        for frame in frames:
            await call.write(frame)
        if not method.client_streaming:
            await call.done_writing()
        while (await call.read()) is not aio.EOF:
            pass
    except aio.AioRpcError as error:
        return error.code(), reason(error)
    assert await call.code() is grpc.StatusCode.OK
    return None


async def built_methods(guest: Guest) -> dict[str, MethodDescriptor]:
    """Asked with what no message is, so that nothing can come of it."""
    return {
        name: method
        for name, method in every_method().items()
        if await answer(guest, method, [GARBAGE]) != NOT_BUILT
    }


async def test_every_method_that_is_built_has_cases(furnished: Guest) -> None:
    assert set(CASES) == set(await built_methods(furnished))


async def test_what_is_no_message_is_refused(furnished: Guest, unchanged: Observer) -> None:
    for name, method in (await built_methods(furnished)).items():
        assert await answer(furnished, method, [GARBAGE]) == BAD_FIELD, name


@pytest.mark.parametrize("service", sorted({name.partition(".")[0] for name in CASES}))
async def test_bad_input_is_refused_and_changes_nothing(
    furnished: Guest, unchanged: Observer, service: str
) -> None:
    wrong = []
    for name, method in every_method().items():
        if not name.startswith(f"{service}."):
            continue
        for frames, refusal in CASES.get(name, ()):
            got = await answer(furnished, method, [frame.SerializeToString() for frame in frames])
            if got != refusal:
                wrong.append(f"{name} {str(frames)[:300]}: {got}, not {refusal}")
    assert wrong == []


async def test_the_same_request_twice_is_answered_twice(
    furnished: Guest, unchanged: Observer
) -> None:
    """A host that lost an answer asks again: nothing is done again, and the answer is the same."""
    guest = furnished
    created = sandbox.CreateSandboxRequest(id="pod", hostname="pod-1")
    await guest.sandbox.Create(created)
    assert await guest.devices.Attach(attach(device())) == await guest.devices.Attach(
        attach(device())
    )
    again = storage(id="data", block=block(device_id="data"))
    mounted_again = await guest.storages.Attach(again)
    assert list(mounted_again.users) == ["running"]
    waiting = await guest.containers.Create(create_request("created", "exit 0"))
    assert waiting.state == containers.CONTAINER_STATE_CREATED
    for name, state in (("running", 2), ("stopped", 3)):
        status = await guest.containers.Start(containers.StartContainerRequest(id=name))
        assert status.state == state
    pids = {
        (await guest.processes.Exec(execution(exec_id="plain", terminal=False))).pid
        for _ in range(2)
    }
    assert len(pids) == 1
    window = processes.ResizeRequest(
        process=ref(exec_id="tty"), size=types.WindowSize(rows=30, columns=90)
    )
    for _ in range(2):
        await guest.processes.Resize(window)


async def test_what_was_removed_once_is_unknown_then(furnished: Guest, unchanged: Observer) -> None:
    guest = furnished
    for _ in range(2):
        # Also: an id that was removed can be used at once.
        await guest.run("true", id="once")
        assert await refused(guest.remove("once")) == unknown("CONTAINER")
    prepare, cancel = (
        devices.DetachDeviceRequest(id="cold", phase=phase)
        for phase in (devices.DETACH_PHASE_PREPARE, devices.DETACH_PHASE_CANCEL)
    )
    for request in (prepare, prepare, cancel, cancel):
        await guest.devices.Detach(request)

"""Stand-ins for the managers that containers depend on: who holds what, and what was said."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, exhausted, not_found, wrong_state
from agent.core.fileops import ContainerMount, Location, MountCall
from agent.core.kinds import BlockExpectation, BlockInfo
from agent.core.life import OutOfMemory, PressureThreshold
from agent.core.model import (
    AttachedDevice,
    DeviceNode,
    DeviceRequest,
    HostTuple,
    MountedStorage,
    NodeType,
    StorageRequest,
)
from agent.core.pci import PciPath
from agent.core.sources import BlockSource
from agent.handlers.runtime.grants import PlacedNode
from agent.handlers.runtime.nodes import Place
from agent.linux import pseudo
from agent.linux.accounts import Found
from agent.linux.mounting import UnmountFlag


def node(path: str, major: int, minor: int, kind: NodeType = NodeType.BLOCK) -> DeviceNode:
    return DeviceNode(path=path, type=kind, major=major, minor=minor)


def attached(
    device_id: str, *nodes: DeviceNode, host: tuple[HostTuple, ...] = ()
) -> AttachedDevice:
    """An attached device with these nodes."""
    path = PciPath.parse("02/00")
    return AttachedDevice(
        request=DeviceRequest(id=device_id, address=path, kind=BlockExpectation(), host=host),
        pci_path=path,
        bdf="0000:01:00.0",
        sysfs_path="/sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0",
        driver="virtio-pci",
        numa_node=None,
        iommu_group=None,
        nodes=nodes,
        info=BlockInfo(size=1 << 20, logical_block_size=512, read_only=False),
    )


class FakeDevices:
    """Attached devices, at first one disk, `disk`; who holds which."""

    def __init__(self) -> None:
        self.table = {"disk": attached("disk", node("/dev/vdb", 254, 16))}
        self.held: set[tuple[str, str]] = set()

    @property
    def users(self) -> set[str]:
        """Those who hold a device."""
        return {user for _, user in self.held}

    def add(self, device: AttachedDevice) -> None:
        self.table[device.request.id] = device

    def hold(self, device_id: str, user: str) -> AttachedDevice:
        if device_id not in self.table:
            raise not_found(f"no device {device_id}", reason=Reason.UNKNOWN_DEVICE)
        self.held.add((device_id, user))
        return self.table[device_id]

    def release(self, device_id: str, user: str) -> None:
        self.held.discard((device_id, user))


class FakeNodes:
    """Nodes in containers, by their container; `problem` is what one change
    ends with, or all of them while it is `broken`."""

    def __init__(self) -> None:
        self.there: dict[str, set[str]] = {}
        self.problem: AgentError | None = None
        self.broken = False
        self.stranger = False

    def check(self, place: Place) -> None:
        if self.stranger:
            raise wrong_state("the process is in another cgroup")

    async def change(
        self,
        place: Place,
        *,
        remove: Sequence[PlacedNode],
        make: Sequence[PlacedNode],
        deadline: Deadline,
    ) -> None:
        if self.problem is not None:
            problem, self.problem = self.problem, self.problem if self.broken else None
            raise problem
        there = self.there.setdefault(place.container_id, set())
        there -= {_shown(each) for each in remove}
        there |= {_shown(each) for each in make}


def _shown(placed: PlacedNode) -> str:
    return f"{placed.path} {placed.node.type.value} {placed.node.major}:{placed.node.minor}"


class FakeExclusiveCpus:
    """Counts; the numbers go up from 1. There are `room` of them."""

    def __init__(self) -> None:
        self.room = 3
        self.counts: dict[str, int] = {}
        self.asserted: list[tuple[str, int]] = []

    async def grant(self, container_id: str, cgroup: str, count: int) -> tuple[int, ...]:
        others = sum(n for name, n in self.counts.items() if name != container_id)
        if count > self.room - others:
            raise exhausted("no CPUs left", reason=Reason.CPUS_EXHAUSTED)
        self.counts[container_id] = count
        self.asserted.append((container_id, count))
        return self.of(container_id)

    async def release(self, container_id: str) -> None:
        self.counts.pop(container_id, None)

    def of(self, container_id: str) -> tuple[int, ...]:
        return tuple(range(1, self.counts.get(container_id, 0) + 1))

    async def restore(self, granted: Mapping[str, tuple[str, int]]) -> None:
        self.counts = {name: count for name, (_, count) in granted.items()}


class FakePressure:
    """Thresholds that are watched, by container."""

    def __init__(self) -> None:
        self.watched: dict[str, tuple[PressureThreshold, ...]] = {}
        self.refused: AgentError | None = None

    def set(self, subject: str, cgroup: str, thresholds: Sequence[PressureThreshold]) -> None:
        if self.refused is not None:
            raise self.refused
        self.watched[subject] = tuple(thresholds)

    def drop(self, subject: str) -> None:
        self.watched.pop(subject, None)


class FakeOomKills:
    """Kills of the kernel's that a test has made up, by pid."""

    def __init__(self) -> None:
        self.tracked: dict[str, str] = {}
        self.kills: dict[int, OutOfMemory] = {}

    def track(self, container_id: str, cgroup: str) -> None:
        self.tracked[container_id] = cgroup

    def untrack(self, container_id: str) -> None:
        self.tracked.pop(container_id, None)

    def kill_of(self, pid: int, cgroup: str) -> OutOfMemory | None:
        return self.kills.get(pid)


class FakeNamespaces:
    """Paths that only tell what they stand for; `open` are those in use now."""

    def __init__(self) -> None:
        self.open = 0

    @contextlib.contextmanager
    def paths(self, kinds: Sequence[str]) -> Iterator[Mapping[str, str]]:
        self.open += 1
        try:
            yield {kind: f"/namespaces/{kind}" for kind in kinds}
        finally:
            self.open -= 1


class FakeStorages:
    """Storages that are plain directories, by id."""

    def __init__(self, mount_points: Mapping[str, Path]) -> None:
        self._points = dict(mount_points)
        self.users: set[tuple[str, str]] = set()
        self.waited: list[str] = []

    async def awaited(self, storage_id: str, timeout: float | None = None) -> None:
        self.waited.append(storage_id)

    def acquire(self, storage_id: str, container_id: str) -> MountedStorage:
        if storage_id not in self._points:
            raise not_found(f"no storage {storage_id}", reason=Reason.UNKNOWN_STORAGE)
        self.users.add((storage_id, container_id))
        source = BlockSource(device_id="disk", fs_type="ext4")
        return MountedStorage(
            request=StorageRequest(id=storage_id, source=source),
            mount_point=str(self._points[storage_id]),
        )

    def release(self, storage_id: str, container_id: str) -> None:
        self.users.discard((storage_id, container_id))

    def keep_users(self, containers: Collection[str]) -> None:
        self.users = {user for user in self.users if user[1] in containers}


class FakeEvents:
    """Remembers what was published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str, dict[str, str]]] = []

    def publish(self, kind: str, subject: str, details: Mapping[str, str] | None = None) -> object:
        self.published.append((kind, subject, dict(details or {})))
        return None

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.published]


class FakeFiles:
    """Mounts that are only noted; `fail` are targets (last components) that refuse."""

    def __init__(self) -> None:
        self.mounts: list[tuple[str, MountCall]] = []
        self.targets: list[tuple[str, list[str]]] = []
        self.targets_refused: OSError | None = None
        self.refuse_targets: dict[str, OSError] = {}
        self.fail: set[str] = set()

    async def mount(self, call: MountCall, target: str, deadline: Deadline) -> None:
        if Path(target).name in self.fail:
            raise OSError(errno.EINVAL, "mount: Invalid argument", target)
        self.mounts.append((target, call))

    async def find_account(
        self, root: str, user: str, group: str | None, deadline: Deadline
    ) -> Found:
        """Numbers are what they say; the only name is `app`, 1000."""
        if user == "app":
            return Found(uid=1000, gid=1000, home="/home/app")
        return Found(uid=int(user), gid=int(user)) if user.isdigit() else Found(missing="user")

    async def find_home(self, root: str, uid: int, deadline: Deadline) -> str:
        return "/home/app" if uid == 1000 else ""

    async def list_processes(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]:
        """Pids and arguments, of the real processes that the fake crun has started."""
        texts = {pid: pseudo.read_optional(f"/proc/{pid}/cmdline") for pid in question["pids"]}
        return [{"pid": pid, "arguments": (texts[pid] or "").split("\0")} for pid in texts]

    async def unmount(self, target: str, flags: UnmountFlag, deadline: Deadline) -> None:
        if Path(target).name in self.fail:
            raise OSError(errno.EBUSY, "umount2: Device or resource busy", target)
        kept = [each for each in self.mounts if each[0] != target]
        if len(kept) == len(self.mounts):
            raise OSError(errno.EINVAL, "umount2: Invalid argument", target)
        self.mounts = kept

    async def make_targets(
        self, root: str, mounts: Sequence[ContainerMount], deadline: Deadline
    ) -> None:
        if self.targets_refused is not None:
            raise self.targets_refused
        for mount in mounts:
            if mount.destination in self.refuse_targets:
                raise self.refuse_targets[mount.destination]
        self.targets.append((root, [mount.destination for mount in mounts]))

    async def is_directory(self, location: Location, deadline: Deadline) -> bool:
        return str(location).endswith("folder")

    async def check_directory(self, path: str, deadline: Deadline) -> None:
        if not os.path.isdir(path):  # noqa: ASYNC240 - a fake's own directory
            raise OSError(errno.ENOENT, "No such file or directory", path)

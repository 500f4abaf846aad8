"""More CPUs: as many of QEMU's free places as are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import Growth, Hardware, Names, Place, Setting, bad_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innkeeper.shim.qmp import Monitor
    from innkeeper.v1 import host_pb2


def parse(message: host_pb2.Cpus, device_id: str, setting: Setting) -> Hardware:
    if not message.count:
        raise bad_field("count", f"device {device_id}: no CPUs asked for")
    if message.count > setting.more_cpus:
        raise exhausted(message.count, setting.more_cpus)
    return EmulatedCpus(count=message.count) if setting.emulated else Cpus(count=message.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpus(Hardware):
    """Each CPU is a device of its own in QEMU; they come one after the other."""

    place: ClassVar[Place] = Place.MACHINE
    in_turn: ClassVar[bool] = True

    count: int
    places: tuple[Mapping[str, Any], ...] = ()
    """Where they go, as `query-hotpluggable-cpus` tells it."""

    @property
    def driver(self) -> str:
        return "cpu"

    @property
    def growth(self) -> Growth:
        return Growth(cpus=self.count)

    async def resolve(self, names: Names, monitor: Monitor) -> Hardware:  # noqa: ARG002 - no name
        """Lowest numbers first, so that the guest's numbers have no gaps. Raises CPUS_EXHAUSTED."""
        found = await monitor.execute("query-hotpluggable-cpus")
        free = [each for each in found if "qom-path" not in each]
        if len(free) < self.count:
            raise exhausted(self.count, len(free))
        free.sort(key=lambda each: sorted(each["props"].items(), key=_by_weight))
        return replace(self, places=tuple(free[: self.count]))

    def parts(self, names: Names) -> tuple[dict[str, object], ...]:
        return tuple(
            {"driver": place["type"], "id": names.part(index), **place["props"]}
            for index, place in enumerate(self.places)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedCpus(Cpus):
    """Under TCG they come for good: QEMU (seen with 7.2 and 10.0) ends with a corrupted
    heap at a plug that follows the unplug of one."""

    not_removable: ClassVar[str] = "QEMU can't unplug an emulated CPU without harm (TCG)"


def _by_weight(item: tuple[str, int]) -> int:
    order = ("node-id", "socket-id", "die-id", "cluster-id", "core-id", "thread-id")
    return order.index(item[0]) if item[0] in order else len(order)


def exhausted(wanted: int, free: int) -> ShimError:
    return ShimError(
        Reason.CPUS_EXHAUSTED,
        f"{wanted} more CPUs: the VM has room for {free}",
        hint="start it with more --max-cpus",
        fields={"wanted": wanted, "free": free},
    )

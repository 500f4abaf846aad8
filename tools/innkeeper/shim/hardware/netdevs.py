"""What is at the other end of a network interface: QEMU's `netdev`s, a file's worth each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim import passt, taps
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import Backend, Helper, Names, Setting, bad_field
from innkeeper.shim.wires import Wire
from innkeeper.v1 import host_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.shim.passt import Passt
    from innkeeper.shim.qmp import QemuRefusedError
    from innkeeper.shim.wires import End

# What libslirp takes, as QEMU sets it up (IF_MTU_DEFAULT of its slirp.h).
_SLIRP_MTU = 1500
# What host.proto says; passt's own limit (ETH_MAX_MTU, less its header).
MTUS = range(68, 65522)
QUEUE_PAIRS = range(1, 65)

# What QEMU says of a tap that another process has open.
_BUSY = "Device or resource busy"


class Netdev(ABC):
    """One kind of other end."""

    __slots__ = ()

    largest_mtu: ClassVar[int] = MTUS[-1]

    @property
    def source(self) -> str:
        """As `ListPlugged` tells it."""
        return ""

    @abstractmethod
    def arguments(self, names: Names) -> dict[str, object]:
        """`netdev_add`'s, besides the id."""

    def backend(self, names: Names) -> Backend:
        return Backend(
            add="netdev_add",
            arguments={"id": names.backend, **self.arguments(names)},
            remove="netdev_del",
            removal={"id": names.backend},
        )

    def claim(self) -> Netdev:
        """See `Hardware.claim`."""
        return self

    def release(self) -> None:  # noqa: B027 - most kinds took nothing
        """See `Hardware.release`."""

    def helper(self, names: Names) -> Helper | None:  # noqa: ARG002 - for kinds that have one
        return None

    def explain(self, error: QemuRefusedError) -> ShimError:
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class User(Netdev):
    """QEMU's user mode network, with the world behind it or not."""

    largest_mtu: ClassVar[int] = _SLIRP_MTU

    isolated: bool

    @property
    def source(self) -> str:
        return "" if self.isolated else "user network"

    def arguments(self, names: Names) -> dict[str, object]:  # noqa: ARG002 - the base's
        # Restricted, it still advertises itself as an IPv6 router: a default route to nowhere.
        of_v6 = {"ipv6": False} if self.isolated else {}
        return {"type": "user", "restrict": self.isolated, **of_v6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap(Netdev):
    """A tap interface that somebody else made, and owns."""

    name: str
    queue_pairs: int = 1
    vhost: bool = False

    @property
    def source(self) -> str:
        return f"tap {self.name}"

    def arguments(self, names: Names) -> dict[str, object]:  # noqa: ARG002 - the base's
        # QEMU starts no program: the sandbox it is in would not let it.
        given: dict[str, object] = {"ifname": self.name, "script": "no", "downscript": "no"}
        queues = {"queues": self.queue_pairs} if self.queue_pairs > 1 else {}
        vhost = {"vhost": True} if self.vhost else {}
        return {"type": "tap"} | given | queues | vhost

    def explain(self, error: QemuRefusedError) -> ShimError:
        if _BUSY not in error.text:
            return error
        return ShimError(
            Reason.ADDRESS_IN_USE,
            f"tap {self.name}: another program has it open: {error.text}",
            hint="a tap has one user; make another: ip tuntap add NAME mode tap user $USER",
            fields={"tap": self.name},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnWire(Netdev):
    """One end of a wire to another VM."""

    wire: Wire
    user: str
    """The device, as the third one that comes is told."""
    end: End | None = None

    @property
    def source(self) -> str:
        return f"wire {self.wire.name}"

    def claim(self) -> OnWire:
        """Raises ADDRESS_IN_USE, HOST_LACKS."""
        return replace(self, end=self.wire.take(self.user))

    def release(self) -> None:
        if self.end is not None:
            self.end.give_back()

    def arguments(self, names: Names) -> dict[str, object]:  # noqa: ARG002 - the base's
        if self.end is None:
            raise RuntimeError("a wire is claimed before QEMU is told of it")
        return {
            "type": "dgram",
            "local": {"type": "unix", "path": str(self.end.local)},
            "remote": {"type": "unix", "path": str(self.end.remote)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPasst(Netdev):
    """passt, as a process beside QEMU."""

    passt: Passt
    vm_directory: Path

    @property
    def source(self) -> str:
        return "passt"

    def helper(self, names: Names) -> Helper:
        return Helper(name=passt.PROGRAM, socket=self._socket(names), argv=self.passt.argv)

    def arguments(self, names: Names) -> dict[str, object]:
        address = {"type": "unix", "path": str(self._socket(names))}
        return {"type": "stream", "server": False, "addr": address}

    def _socket(self, names: Names) -> Path:
        return self.vm_directory / f"net{names.number}.sock"


def parse(message: host_pb2.Nic, device_id: str, setting: Setting) -> Netdev:
    """Raises BAD_FIELD, NOT_INSTALLED, HOST_LACKS."""
    _check_fields(message)
    match message.backend:
        case host_pb2.NIC_BACKEND_UNSPECIFIED | host_pb2.NIC_BACKEND_ISOLATED:
            return User(isolated=True)
        case host_pb2.NIC_BACKEND_USER:
            return User(isolated=False)
        case host_pb2.NIC_BACKEND_TAP:
            queue_pairs = message.queue_pairs or 1
            name = taps.check(message.tap, queue_pairs)
            return Tap(name=name, queue_pairs=queue_pairs, vhost=taps.has_vhost())
        case host_pb2.NIC_BACKEND_WIRE:
            wire = Wire.of(setting.directory.parent, message.wire)
            return OnWire(wire=wire, user=f"VM {setting.vm} (device {device_id})")
        case host_pb2.NIC_BACKEND_PASST:
            return OnPasst(passt=passt.find(), vm_directory=setting.directory)
        case _:
            raise bad_field("backend", f"NIC backend {message.backend}: unknown")


_OF_ONE = {"tap": host_pb2.NIC_BACKEND_TAP, "wire": host_pb2.NIC_BACKEND_WIRE}


def _check_fields(message: host_pb2.Nic) -> None:
    """What is said of one backend and given with another is a mistake in one of both."""
    for field, backend in _OF_ONE.items():
        if getattr(message, field) and message.backend != backend:
            name = host_pb2.NicBackend.Name(backend)
            raise bad_field(field, f"{field} {getattr(message, field)}: only with {name}")
    if message.queue_pairs and message.queue_pairs not in QUEUE_PAIRS:
        hint = f"{QUEUE_PAIRS[0]} to {QUEUE_PAIRS[-1]}"
        raise bad_field("queue_pairs", f"queue_pairs {message.queue_pairs}: not possible", hint)
    if message.queue_pairs > 1 and message.backend != host_pb2.NIC_BACKEND_TAP:
        raise bad_field("queue_pairs", "queue_pairs: more than one is for a tap alone")

"""What can go wrong on the host's side, as data.

A `ShimError` is what the daemon answers with and what the client raises: a
gRPC code (what kind), a stable reason (which rule was broken, for programs), a
message (what, on which object, why, for people), fields (the values involved)
and a hint (what to do next). On the wire it is a `google.rpc.Status` with an
`ErrorInfo` of the domain "innkeeper", as the guest's own errors are; when the
guest was the one to refuse, its `ErrorInfo` follows ours.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

import grpc
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from google.protobuf.any_pb2 import Any

DOMAIN = "innkeeper"
STATUS_TRAILER = "grpc-status-details-bin"

# A status travels in an HTTP/2 header block, which gRPC limits to 8 KiB: its
# text twice, percent-encoded and, in the details, as base64.
_MESSAGE_LIMIT = 2800
_FIELD_LIMIT = 512

# ECMA-48: control sequences, strings (window titles), and two-character escapes.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[ -/]*[0-~])")


class Reason(StrEnum):
    """Stable reasons of the host's side: `google.rpc.ErrorInfo.reason`.

    A reason is never renamed and never reused.
    """

    BAD_FIELD = "BAD_FIELD"
    """INVALID_ARGUMENT: a field's value can never be right."""
    ID_IN_USE = "ID_IN_USE"
    """ALREADY_EXISTS: a device of that id is plugged, coming or leaving."""
    UNKNOWN_DEVICE = "UNKNOWN_DEVICE"
    """NOT_FOUND: no device of that id is plugged."""
    PORT_POOL_EMPTY = "PORT_POOL_EMPTY"
    """RESOURCE_EXHAUSTED: every port for hot-plug is taken."""
    UNKNOWN_PORT = "UNKNOWN_PORT"
    """NOT_FOUND: the VM has no port of that name."""
    PORT_IN_USE = "PORT_IN_USE"
    """ALREADY_EXISTS: something else is in the port that was asked for."""
    ADDRESS_IN_USE = "ADDRESS_IN_USE"
    """ALREADY_EXISTS: the SCSI controller has a disk at that target and unit, another
    share has that tag, the wire has two users, the tap has one, or
    the port or path that is to be forwarded is taken on this host."""
    UNKNOWN_CONTROLLER = "UNKNOWN_CONTROLLER"
    """NOT_FOUND: no SCSI controller of that id is plugged."""
    STILL_IN_USE = "STILL_IN_USE"
    """FAILED_PRECONDITION: other plugged devices stand on it (a controller's disks)."""
    NOT_REMOVABLE = "NOT_REMOVABLE"
    """FAILED_PRECONDITION: QEMU can't unplug this kind of hardware."""
    NOT_PLUGGABLE = "NOT_PLUGGABLE"
    """FAILED_PRECONDITION: QEMU has no hot-plug for it, or this VM is not made for it."""
    QEMU_TOO_OLD = "QEMU_TOO_OLD"
    """FAILED_PRECONDITION: this QEMU does not have the device."""
    CPUS_EXHAUSTED = "CPUS_EXHAUSTED"
    """RESOURCE_EXHAUSTED: the VM has no room for so many more CPUs."""
    MEMORY_EXHAUSTED = "MEMORY_EXHAUSTED"
    """RESOURCE_EXHAUSTED: the VM has no room for so much more memory."""
    UNKNOWN_HOST_FUNCTION = "UNKNOWN_HOST_FUNCTION"
    """NOT_FOUND: the host has no PCI function at that address."""
    NOT_GIVEN_AWAY = "NOT_GIVEN_AWAY"
    """FAILED_PRECONDITION: the host's function is not bound to vfio-pci."""
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    """NOT_FOUND: the image file of a disk is not there or may not be read."""
    FILE_IN_USE = "FILE_IN_USE"
    """FAILED_PRECONDITION: somebody else holds the image file's lock."""
    QEMU_REFUSED = "QEMU_REFUSED"
    """FAILED_PRECONDITION: QEMU answered a command with an error."""
    GUEST_REFUSED = "GUEST_REFUSED"
    """The guest's own code: the agent answered with an error, which follows."""
    AGENT_AWAY = "AGENT_AWAY"
    """UNAVAILABLE: the agent did not answer; nothing is known of the guest."""
    DEVICE_LOST = "DEVICE_LOST"
    """ABORTED: the device was removed again though nobody asked for it."""
    BUSY = "BUSY"
    """FAILED_PRECONDITION: another call works on this device now."""
    REMOVAL_PENDING = "REMOVAL_PENDING"
    """FAILED_PRECONDITION: the guest has not let go of the device yet."""
    OPERATION_TIMED_OUT = "OPERATION_TIMED_OUT"
    """DEADLINE_EXCEEDED: not done in the time that was given."""
    QEMU_GONE = "QEMU_GONE"
    """ABORTED: QEMU has ended, and the VM with it."""
    BOOT_FAILED = "BOOT_FAILED"
    """ABORTED: the VM did not come to its agent's first answer."""
    STOPPING = "STOPPING"
    """FAILED_PRECONDITION: the VM is on its way down."""
    UNKNOWN_VM = "UNKNOWN_VM"
    """NOT_FOUND: no VM of that name runs."""
    NAME_IN_USE = "NAME_IN_USE"
    """ALREADY_EXISTS: a VM of that name runs."""
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    """NOT_FOUND: no guest image there."""
    HOST_LACKS = "HOST_LACKS"
    """FAILED_PRECONDITION: the host has no such program, device or directory."""
    NOT_INSTALLED = "NOT_INSTALLED"
    """FAILED_PRECONDITION: a program that only this needs is not installed on the host."""
    RESIZE_REFUSED = "RESIZE_REFUSED"
    """FAILED_PRECONDITION: the disk can't be made so large: smaller than it is, read-only, ..."""
    INTERNAL_ERROR = "INTERNAL_ERROR"
    """INTERNAL: a bug of ours; the daemon's log has the traceback."""


_CODES = {
    Reason.BAD_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.UNKNOWN_DEVICE: grpc.StatusCode.NOT_FOUND,
    Reason.PORT_POOL_EMPTY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.UNKNOWN_PORT: grpc.StatusCode.NOT_FOUND,
    Reason.PORT_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.ADDRESS_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.UNKNOWN_CONTROLLER: grpc.StatusCode.NOT_FOUND,
    Reason.STILL_IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_REMOVABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_PLUGGABLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.QEMU_TOO_OLD: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.CPUS_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.MEMORY_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.UNKNOWN_HOST_FUNCTION: grpc.StatusCode.NOT_FOUND,
    Reason.NOT_GIVEN_AWAY: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.FILE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.FILE_IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.QEMU_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.GUEST_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.AGENT_AWAY: grpc.StatusCode.UNAVAILABLE,
    Reason.DEVICE_LOST: grpc.StatusCode.ABORTED,
    Reason.BUSY: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.REMOVAL_PENDING: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.OPERATION_TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.QEMU_GONE: grpc.StatusCode.ABORTED,
    Reason.BOOT_FAILED: grpc.StatusCode.ABORTED,
    Reason.STOPPING: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_VM: grpc.StatusCode.NOT_FOUND,
    Reason.NAME_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.IMAGE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.HOST_LACKS: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_INSTALLED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.RESIZE_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.INTERNAL_ERROR: grpc.StatusCode.INTERNAL,
}


class ShimError(Exception):
    """One failure, complete: see the module's docstring.

    `code` follows from the reason unless the guest gave one. `details` are
    further details of the status, the guest's own.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        hint: str = "",
        fields: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.hint = hint
        self.fields = {name: str(value) for name, value in (fields or {}).items()}
        self.code: grpc.StatusCode = _CODES[reason]
        self.details: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    @classmethod
    def from_guest(cls, doing: str, error: grpc.aio.AioRpcError) -> ShimError:
        """The agent's answer to a call of ours, kept whole behind our own words."""
        text = error.details() or error.code().name
        info, details = _details_of(error)
        if error.code() is grpc.StatusCode.UNAVAILABLE and info is None:
            return cls(Reason.AGENT_AWAY, f"{doing}: the guest's agent is away: {text}")
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and info is None:
            return cls(Reason.OPERATION_TIMED_OUT, f"{doing}: the guest's agent did not answer")
        fields = dict(info.metadata) if info is not None else {}
        reason = info.reason if info is not None else ""
        refusal = cls(
            Reason.GUEST_REFUSED,
            f"{doing}: the guest refused: {text}",
            fields={**fields, "guest_reason": reason},
        )
        refusal.code = error.code()
        refusal.details = details
        return refusal

    @classmethod
    def from_call(cls, error: grpc.aio.AioRpcError) -> ShimError | None:
        """What a daemon answered; None when it is no error of the host's side.

        Its fields are the guest's too, where the guest was the one to refuse.
        """
        info, details = _details_of(error)
        if info is None or info.reason not in _CODES:
            return None
        fields: dict[str, object] = dict(info.metadata)
        for more in _infos(details[1:]):
            fields |= dict(more.metadata)
        hint = str(fields.pop("hint", ""))
        told = cls(Reason(info.reason), error.details() or "", hint=hint, fields=fields)
        told.code = error.code()
        return told

    def to_status(self) -> status_pb2.Status:
        # What the guest's own details tell is not told twice: there is little room.
        told = {key for info in _infos(self.details) for key in info.metadata}
        fields = {name: text for name, text in self.fields.items() if name not in told}
        info = error_details_pb2.ErrorInfo(
            reason=self.reason, domain=DOMAIN, metadata=clean_fields(fields)
        )
        status = status_pb2.Status(code=self.code.value[0], message=clip(str(self)))
        status.details.add().Pack(info)
        status.details.extend(self.details)
        return status

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Trailing metadata that carries the whole status."""
        return ((STATUS_TRAILER, self.to_status().SerializeToString()),)


def clip(text: str) -> str:
    """`text`, short enough for a status; the end is what tells."""
    room = _MESSAGE_LIMIT
    for start in range(len(text), 0, -1):
        char = text[start - 1]
        room -= 1 if " " <= char <= "~" else 3 * len(char.encode(errors="replace"))
        if room < 0:
            return "..." + text[start:]
    return text


def clean_fields(fields: dict[str, str]) -> dict[str, str]:
    """ErrorInfo's metadata; a status as a whole must stay below 8 KiB."""
    return {name: value[:_FIELD_LIMIT] for name, value in fields.items()}


def with_tail(message: str, title: str, lines: Sequence[str]) -> str:
    """`message`, followed by the last lines of something."""
    return "\n".join([message, f"{title}:", *(f"  {line}" for line in lines)]) if lines else message


def printable(text: str) -> str:
    """One line of a console without its escape sequences and control characters."""
    return "".join(char for char in _ESCAPES.sub("", text) if char.isprintable() or char == "\t")


def _details_of(
    error: grpc.aio.AioRpcError,
) -> tuple[error_details_pb2.ErrorInfo | None, tuple[Any, ...]]:
    """The first ErrorInfo of ours, and all details, of a failed call."""
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_TRAILER and isinstance(value, bytes):
            status.ParseFromString(value)
    return _first_info(status.details), tuple(status.details)


def _first_info(details: Iterable[Any]) -> error_details_pb2.ErrorInfo | None:
    return next(_infos(details), None)


def _infos(details: Iterable[Any]) -> Iterator[error_details_pb2.ErrorInfo]:
    for detail in details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            yield info

"""What can go wrong, as data.

Every failure that a host may see is an `AgentError`: a code (what kind), a
stable reason (which rule was broken, for programs), a message (what, on which
object, why, for people), fields (the values involved) and a hint (what to do
next). The server turns the code into a gRPC status in one table; nothing else
in the agent knows about gRPC.

`Code.INTERNAL` is for our own bugs and is never raised on purpose.
"""

from __future__ import annotations

import os
from enum import StrEnum


class Code(StrEnum):
    """The kind of a failure; the names are those of gRPC status codes."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    FAILED_PRECONDITION = "failed_precondition"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PERMISSION_DENIED = "permission_denied"
    OUT_OF_RANGE = "out_of_range"
    ABORTED = "aborted"
    UNAVAILABLE = "unavailable"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"


class Reason(StrEnum):
    """Stable reasons, part of the protocol: `google.rpc.ErrorInfo.reason`.

    A reason is never renamed and never reused. protocol/innkeeper/v1/README.md
    says of each what it means and what a host can do.
    """

    BAD_ID = "BAD_ID"
    BAD_ADDRESS = "BAD_ADDRESS"
    BAD_FIELD = "BAD_FIELD"
    BAD_SPEC = "BAD_SPEC"
    UNKNOWN_SANDBOX = "UNKNOWN_SANDBOX"
    UNKNOWN_DEVICE = "UNKNOWN_DEVICE"
    UNKNOWN_STORAGE = "UNKNOWN_STORAGE"
    UNKNOWN_CONTAINER = "UNKNOWN_CONTAINER"
    UNKNOWN_PROCESS = "UNKNOWN_PROCESS"
    UNKNOWN_INTERFACE = "UNKNOWN_INTERFACE"
    UNKNOWN_CONNECTION = "UNKNOWN_CONNECTION"
    UNKNOWN_METHOD = "UNKNOWN_METHOD"
    ID_IN_USE = "ID_IN_USE"
    ADDRESS_IN_USE = "ADDRESS_IN_USE"
    NAME_IN_USE = "NAME_IN_USE"
    MOUNT_POINT_IN_USE = "MOUNT_POINT_IN_USE"
    WRONG_STATE = "WRONG_STATE"
    STILL_IN_USE = "STILL_IN_USE"
    DEVICE_NOT_READY = "DEVICE_NOT_READY"
    DEVICE_STILL_PRESENT = "DEVICE_STILL_PRESENT"
    DEVICE_FAILED = "DEVICE_FAILED"
    UNEXPECTED_DEVICE = "UNEXPECTED_DEVICE"
    DRIVER_REFUSED = "DRIVER_REFUSED"
    FIRMWARE_MISSING = "FIRMWARE_MISSING"
    NO_BAR_ADDRESS = "NO_BAR_ADDRESS"
    MODULE_REFUSED = "MODULE_REFUSED"
    NO_IOMMU_GROUP = "NO_IOMMU_GROUP"
    GROUP_MISMATCH = "GROUP_MISMATCH"
    GROUP_NOT_VIABLE = "GROUP_NOT_VIABLE"
    NOT_REMOVABLE = "NOT_REMOVABLE"
    MODE_REFUSED = "MODE_REFUSED"
    RESOURCES_NOT_ONLINE = "RESOURCES_NOT_ONLINE"
    CPUS_EXHAUSTED = "CPUS_EXHAUSTED"
    MOUNT_REFUSED = "MOUNT_REFUSED"
    UNMOUNT_REFUSED = "UNMOUNT_REFUSED"
    MAPPING_REFUSED = "MAPPING_REFUSED"
    FORMAT_REFUSED = "FORMAT_REFUSED"
    RESIZE_REFUSED = "RESIZE_REFUSED"
    NO_HUGE_PAGES = "NO_HUGE_PAGES"
    NAME_NOT_RESOLVED = "NAME_NOT_RESOLVED"
    LEADS_OUTSIDE = "LEADS_OUTSIDE"
    FILE_EXISTS = "FILE_EXISTS"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    OFFLOAD_REFUSED = "OFFLOAD_REFUSED"
    SYSCTL_NOT_ALLOWED = "SYSCTL_NOT_ALLOWED"
    FIREWALL_REFUSED = "FIREWALL_REFUSED"
    NOT_INSTALLED = "NOT_INSTALLED"
    CONNECTION_REFUSED = "CONNECTION_REFUSED"
    CONNECTION_RESET = "CONNECTION_RESET"
    RUNTIME_REFUSED = "RUNTIME_REFUSED"
    HOOK_FAILED = "HOOK_FAILED"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    UNKNOWN_USER = "UNKNOWN_USER"
    NO_LOG = "NO_LOG"
    OPERATION_TIMED_OUT = "OPERATION_TIMED_OUT"
    OFFSET_NOT_KEPT = "OFFSET_NOT_KEPT"
    INPUT_CLOSED = "INPUT_CLOSED"
    NO_TERMINAL = "NO_TERMINAL"
    LIMIT_REACHED = "LIMIT_REACHED"
    NO_SPACE = "NO_SPACE"
    KERNEL_REFUSED = "KERNEL_REFUSED"
    AGENT_AWAY = "AGENT_AWAY"
    NOT_BUILT_YET = "NOT_BUILT_YET"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class AgentError(Exception):
    """One failure, complete: see the module's docstring."""

    def __init__(
        self,
        message: str,
        *,
        code: Code,
        reason: Reason,
        fields: dict[str, str] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.fields = dict(fields or {})
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def invalid(
    message: str, *, reason: Reason = Reason.BAD_FIELD, hint: str | None = None, **fields: object
) -> AgentError:
    """A request that can never succeed as it is."""
    return _error(Code.INVALID_ARGUMENT, reason, message, hint, fields)


def not_found(
    message: str, *, reason: Reason, hint: str | None = None, **fields: object
) -> AgentError:
    return _error(Code.NOT_FOUND, reason, message, hint, fields)


def already_exists(
    message: str, *, reason: Reason, hint: str | None = None, **fields: object
) -> AgentError:
    return _error(Code.ALREADY_EXISTS, reason, message, hint, fields)


def wrong_state(
    message: str, *, reason: Reason = Reason.WRONG_STATE, hint: str | None = None, **fields: object
) -> AgentError:
    """The request is fine, but not now: something else has to happen first."""
    return _error(Code.FAILED_PRECONDITION, reason, message, hint, fields)


def timed_out(
    message: str,
    *,
    reason: Reason = Reason.OPERATION_TIMED_OUT,
    hint: str | None = None,
    **fields: object,
) -> AgentError:
    return _error(Code.DEADLINE_EXCEEDED, reason, message, hint, fields)


def exhausted(
    message: str, *, reason: Reason, hint: str | None = None, **fields: object
) -> AgentError:
    return _error(Code.RESOURCE_EXHAUSTED, reason, message, hint, fields)


def kernel_refused(
    error: OSError, *, doing: str, reason: Reason = Reason.KERNEL_REFUSED, hint: str | None = None
) -> AgentError:
    """The kernel said no: the errno's name, the call and its object go along."""
    name = _errno_name(error)
    fields: dict[str, object] = {"errno": name, "object": error.filename or ""}
    text = f"{doing}: {os.strerror(error.errno) if error.errno else error} [{name}]"
    return _error(Code.FAILED_PRECONDITION, reason, text, hint, fields)


def _errno_name(error: OSError) -> str:
    import errno

    return errno.errorcode.get(error.errno or 0, str(error.errno))


def _error(
    code: Code, reason: Reason, message: str, hint: str | None, fields: dict[str, object]
) -> AgentError:
    texts = {name: str(value) for name, value in fields.items()}
    return AgentError(message, code=code, reason=reason, fields=texts, hint=hint)

"""Sysctls of the network, each way; which of them may be set is the handler's to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid
from agent.server.convert import fields
from agent.server.limits import SYSCTLS
from innkeeper.v1 import network_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_NAME: Final = 255
# A page, of which proc_dostring and the like take less one byte.
_LONGEST_VALUE: Final = 4095


def sysctl_values(told: pb.ApplySysctlsRequest) -> dict[str, str]:
    """By name; raises BAD_FIELD for what is no name or no line of text."""
    return values_of(told.values, "values")


def values_of(told: Mapping[str, str], where: str) -> dict[str, str]:
    """The same, of the field `where`."""
    fields.at_most(SYSCTLS, told, where)
    for name, value in told.items():
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or " " in name:
            raise invalid(f"{where}: {name[:80]!r} is not the name of a sysctl", field=where)
        field = f"{where}[{name}]"
        if len(value.encode()) > _LONGEST_VALUE:
            raise invalid(f"{field}: longer than {_LONGEST_VALUE} bytes", field=field)
        if not value.replace("\t", " ").isprintable():
            # Not shown: some are secrets (net.ipv6.conf.*.stable_secret).
            raise invalid(f"{field}: the value is not one line of text", field=field)
    return dict(told)


def sysctls_state(now: Mapping[str, str], former: Mapping[str, str]) -> pb.SysctlsState:
    """By the names of the request."""
    return pb.SysctlsState(values=now, former=former)

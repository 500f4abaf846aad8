"""IP versions: the protocol's and ours."""

from __future__ import annotations

from typing import Final

from agent.core.errors import invalid
from agent.core.network import Family
from innkeeper.v1 import network_pb2 as pb

_FAMILIES: Final = {pb.ADDRESS_FAMILY_V4: Family.V4, pb.ADDRESS_FAMILY_V6: Family.V6}
_WORDS: Final = {family: word for word, family in _FAMILIES.items()}


def family_of(told: pb.AddressFamily.ValueType, field: str) -> Family:
    """The one that must be said; raises BAD_FIELD."""
    family = _FAMILIES.get(told)
    if family is None:
        raise invalid(
            f"{field}: {told} is neither ADDRESS_FAMILY_V4 nor ADDRESS_FAMILY_V6", field=field
        )
    return family


def family_or_any(told: pb.AddressFamily.ValueType, field: str) -> Family | None:
    """None where both are meant; raises BAD_FIELD for a number without meaning."""
    return family_of(told, field) if told else None


def family_word(family: Family) -> pb.AddressFamily.ValueType:
    return _WORDS[family]

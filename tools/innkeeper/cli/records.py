"""Messages as JSON for scripts: numbers are numbers, and enumerations are words."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.message import Message

UNLIMITED = 2**64 - 1


def record(message: Message) -> dict[str, object]:
    """Every field by its name in the .proto files; messages that are absent are null, and so
    is a limit that there is not."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def line(value: object) -> str:
    """One line of JSON, for a stream of them."""
    return json.dumps(value, separators=(",", ":"))


def word(enumeration: EnumDescriptor, number: int) -> str:
    """END_CAUSE_OUT_OF_MEMORY is "out-of-memory"; a number that we do not know is itself."""
    value = enumeration.values_by_number.get(number)
    if value is None:
        return str(number)
    return value.name.removeprefix(_prefix(enumeration)).lower().replace("_", "-")


def words(enumeration: EnumDescriptor) -> list[str]:
    """All of them but the one that means none."""
    return [word(enumeration, value.number) for value in enumeration.values if value.number]


def _prefix(enumeration: EnumDescriptor) -> str:
    """What all names begin with, by the first one: "END_CAUSE_" of END_CAUSE_UNSPECIFIED."""
    return str(enumeration.values[0].name.removesuffix("UNSPECIFIED"))


def _value(message: Message, field: Any) -> object:
    value: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_single(field, each) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(field, value)


def _single(field: Any, value: Any) -> object:
    if field.message_type is not None:
        return record(value)
    if field.enum_type is not None:
        return word(field.enum_type, value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if value == UNLIMITED else value

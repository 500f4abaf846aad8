"""Compares the protocol with what was recorded of it.

    python protocol/compat.py      says what differs, and the record's digest

The record (innkeeper/v1/recorded.binpb) is one FileDescriptorSet. `breaks` are
differences that an old host or agent would stumble over: something removed,
renamed or renumbered, another type. `additions` are the harmless ones. Both are
found on flat facts ("field innkeeper.v1.Device.1" -> "id: string"), so a
difference reads as what was and what is.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from google.protobuf import descriptor_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = Path(__file__).resolve().parent / "innkeeper/v1/recorded.binpb"
DIGEST_LENGTH = 12

Fact: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one protocol differs from another one, as lines to read."""

    breaks: tuple[str, ...]
    additions: tuple[str, ...]


def compare(old: pb.FileDescriptorSet, new: pb.FileDescriptorSet) -> Difference:
    """What became of each fact of `old`, and what is new."""
    before, after = dict(_facts(old)), dict(_facts(new))
    breaks = [
        f"{subject}: was {fact}, {f'is {after[subject]}' if subject in after else 'is gone'}"
        for subject, fact in before.items()
        if after.get(subject) != fact
    ]
    additions = [f"{subject}: {fact}" for subject, fact in after.items() if subject not in before]
    return Difference(breaks=tuple(breaks), additions=tuple(additions))


def read(path: Path) -> pb.FileDescriptorSet:
    """A FileDescriptorSet from a file."""
    return pb.FileDescriptorSet.FromString(path.read_bytes())


def digest(path: Path = RECORD) -> str:
    """The record's digest; CHANGELOG.md cites it as `protocol: DIGEST`."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST_LENGTH]


def _facts(described: pb.FileDescriptorSet) -> Iterator[Fact]:
    for file in described.file:
        for message in file.message_type:
            yield from _message_facts(message, f"{file.package}.{message.name}")
        for enum in file.enum_type:
            yield from _enum_facts(enum, f"{file.package}.{enum.name}")
        for service in file.service:
            yield from _service_facts(service, f"{file.package}.{service.name}")


def _message_facts(message: pb.DescriptorProto, name: str) -> Iterator[Fact]:
    yield f"message {name}", "a message"
    oneofs = [oneof.name for oneof in message.oneof_decl]
    for field in message.field:
        yield f"field {name}.{field.number}", _field_fact(field, oneofs)
    for nested in message.nested_type:
        yield from _message_facts(nested, f"{name}.{nested.name}")
    for enum in message.enum_type:
        yield from _enum_facts(enum, f"{name}.{enum.name}")


def _field_fact(field: pb.FieldDescriptorProto, oneofs: list[str]) -> str:
    kind = field.type_name or pb.FieldDescriptorProto.Type.Name(field.type).lower()[5:]
    words = [f"{field.name}:", kind.removeprefix(".")]
    if field.label == pb.FieldDescriptorProto.LABEL_REPEATED:
        words.insert(1, "repeated")
    if field.proto3_optional:
        words.insert(1, "optional")
    elif field.HasField("oneof_index"):
        words.append(f"in oneof {oneofs[field.oneof_index]}")
    return " ".join(words)


def _enum_facts(enum: pb.EnumDescriptorProto, name: str) -> Iterator[Fact]:
    yield f"enum {name}", "an enum"
    for value in enum.value:
        yield f"value {name}.{value.number}", value.name


def _service_facts(service: pb.ServiceDescriptorProto, name: str) -> Iterator[Fact]:
    yield f"service {name}", "a service"
    for method in service.method:
        asked = _streamed(method.input_type, streaming=method.client_streaming)
        answered = _streamed(method.output_type, streaming=method.server_streaming)
        yield f"method {name}.{method.name}", f"{asked} -> {answered}"


def _streamed(kind: str, *, streaming: bool) -> str:
    name = kind.removeprefix(".")
    return f"stream {name}" if streaming else name


def _current() -> pb.FileDescriptorSet:
    # Imported here: only this needs the compiler, comparing does not.
    import generate

    with tempfile.NamedTemporaryFile(suffix=".binpb") as target:
        generate.record(Path(target.name))
        return read(Path(target.name))


def main() -> int:
    """Print the differences; the exit status is 1 when there are any."""
    difference = compare(read(RECORD), _current())
    lines = [f"break: {line}" for line in difference.breaks]
    lines += [f"addition: {line}" for line in difference.additions]
    lines.append(f"the record's line in CHANGELOG.md is `protocol: {digest()}`")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if difference.breaks or difference.additions else 0


if __name__ == "__main__":
    sys.exit(main())

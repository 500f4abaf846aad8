"""The protocol is kept: generated code fresh, record true, everything commented.

The record (recorded.binpb) is what the protocol was when it was last changed on
purpose. A change of a .proto file fails here until `make protocol ARGS=--record`
updates it and a line under Unreleased in CHANGELOG.md cites its digest, as
`protocol: 0123456789ab`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2 as pb

from agent.core.errors import Reason
from agent.handlers.guest.describe import FEATURES
from agent.server import limits
from innkeeper.shim.errors import Reason as HostReason

pytestmark = [pytest.mark.style, pytest.mark.operations]

# Numbers of the lists in descriptor.proto, as paths of source_code_info use them.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _VALUES, _METHODS = 2, 3, 4, 2, 2


def _tool(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / f"protocol/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate(root: Path) -> Iterator[ModuleType]:
    """The generator; protoc finds its mypy plugins beside this interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
        yield _tool(root, "generate")


@pytest.fixture(scope="module")
def compat(root: Path) -> ModuleType:
    return _tool(root, "compat")


def test_the_generated_code_is_fresh(root: Path, generate: ModuleType, tmp_path: Path) -> None:
    generate.generate(tmp_path)
    made = {path.name: path.read_bytes() for path in (tmp_path / "innkeeper/v1").iterdir()}
    kept = {
        path.name: path.read_bytes() for path in (root / "protocol/innkeeper/v1").glob("*_pb2*")
    }
    stale = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    assert stale == [], "run `make protocol`"


@pytest.fixture(scope="module")
def current(
    generate: ModuleType, compat: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> pb.FileDescriptorSet:
    target = tmp_path_factory.mktemp("protocol") / "current.binpb"
    generate.record(target)
    described = compat.read(target)
    assert isinstance(described, pb.FileDescriptorSet)
    return described


def test_nothing_differs_from_the_record(compat: ModuleType, current: pb.FileDescriptorSet) -> None:
    difference = compat.compare(compat.read(compat.RECORD), current)
    hint = "if it is on purpose: `make protocol ARGS=--record` and a line in CHANGELOG.md"
    assert (difference.breaks, difference.additions) == ((), ()), hint


def test_the_changelog_cites_the_record(root: Path, compat: ModuleType) -> None:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## Unreleased")[2].partition("\n## ")[0]
    wanted = f"protocol: {compat.digest()}"
    # After a release the record stays cited where it was made.
    place = unreleased if "protocol: " in unreleased else text
    assert wanted in place, f"CHANGELOG.md needs a line that says what changed and `{wanted}`"


def test_everything_has_a_comment(generate: ModuleType, compat: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "commented.binpb"
    generate.record(target, comments=True)
    described = compat.read(target)
    assert [name for file in described.file for name in _uncommented(file)] == []


def _uncommented(file: pb.FileDescriptorProto) -> Iterator[str]:
    comments = {
        tuple(place.path): place.leading_comments.strip()
        for place in file.source_code_info.location
    }
    for path, name in _subjects(file):
        if not comments.get(path):
            yield f"{file.name}: {name}"


def _subjects(file: pb.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, message in enumerate(file.message_type):
        yield from _of_message(message, (_MESSAGES, index), message.name)
    for index, enum in enumerate(file.enum_type):
        yield from _of_enum(enum, (_ENUMS, index), enum.name)
    for index, service in enumerate(file.service):
        yield (_SERVICES, index), service.name
        for number, method in enumerate(service.method):
            yield (_SERVICES, index, _METHODS, number), f"{service.name}.{method.name}"


def _of_message(
    message: pb.DescriptorProto, path: tuple[int, ...], name: str
) -> Iterator[tuple[tuple[int, ...], str]]:
    if message.options.map_entry:
        return
    yield path, name
    for index, field in enumerate(message.field):
        yield (*path, _FIELDS, index), f"{name}.{field.name}"
    for index, nested in enumerate(message.nested_type):
        yield from _of_message(nested, (*path, _NESTED, index), f"{name}.{nested.name}")
    for index, enum in enumerate(message.enum_type):
        yield from _of_enum(enum, (*path, _NESTED_ENUMS, index), f"{name}.{enum.name}")


def _of_enum(
    enum: pb.EnumDescriptorProto, path: tuple[int, ...], name: str
) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, name
    for index, value in enumerate(enum.value):
        yield (*path, _VALUES, index), f"{name}.{value.name}"


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "protocol/innkeeper/v1/README.md").read_text(encoding="utf-8")


def test_the_readme_explains_every_reason_and_no_other(readme: str) -> None:
    """The agent's and the host's; one that both have is explained once."""
    told = [
        word
        for row in re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \|", readme, re.MULTILINE)
        for word in re.findall(r"[A-Z_]+", row)
    ]
    assert sorted(told) == sorted({*map(str, Reason), *map(str, HostReason)})


def test_the_readme_explains_every_feature_and_no_other(readme: str) -> None:
    rows = re.findall(r"^\| `([a-z.]+)` \|", readme, re.MULTILINE)
    assert sorted(rows) == sorted(FEATURES)


def test_the_readme_states_the_limits_that_are_kept(readme: str) -> None:
    for number in (
        limits.MESSAGE_BYTES,
        limits.INPUT_FRAME_BYTES,
        limits.DEVICE_BATCH,
        limits.OBJECTS,
        limits.CALLS_IN_FLIGHT,
    ):
        assert f"{number:,}" in readme

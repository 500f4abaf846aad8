"""Which changes of a protocol are breaks: what an old host or agent would stumble over."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.operations]

FIELD = pb.FieldDescriptorProto


@pytest.fixture(scope="module")
def compat(root: Path) -> ModuleType:
    """protocol/ is a folder of tools, not a package."""
    spec = importlib.util.spec_from_file_location("compat", root / "protocol/compat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compat"] = module
    spec.loader.exec_module(module)
    return module


def protocol() -> pb.FileDescriptorSet:
    """package p: message M {oneof o {string a = 1;} repeated uint32 b = 2; message N {}}
    enum E {Z = 0; ONE = 1;} service S {rpc Do(M) returns (stream M);}"""
    file = pb.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    message.oneof_decl.add(name="o")
    message.field.add(
        name="a", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL, oneof_index=0
    )
    message.field.add(name="b", number=2, type=FIELD.TYPE_UINT32, label=FIELD.LABEL_REPEATED)
    message.nested_type.add(name="N")
    enum = file.enum_type.add(name="E")
    enum.value.add(name="Z", number=0)
    enum.value.add(name="ONE", number=1)
    method = file.service.add(name="S").method.add(name="Do", input_type=".p.M")
    method.output_type = ".p.M"
    method.server_streaming = True
    return pb.FileDescriptorSet(file=[file])


def test_the_same_protocol_does_not_differ(compat: ModuleType) -> None:
    same = compat.compare(protocol(), protocol())
    assert (same.breaks, same.additions) == ((), ())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("f.message_type[0].field[0].number = 3", "field p.M.1: was a: string in oneof o, is gone"),
        ("f.message_type[0].field[0].name = 'c'", "field p.M.1: was a: string in oneof o, is c:"),
        ("f.message_type[0].field[0].type = 12", "is a: bytes in oneof o"),
        ("f.message_type[0].field[0].ClearField('oneof_index')", "is a: string"),
        ("f.message_type[0].field[1].label = 1", "was b: repeated uint32, is b: uint32"),
        ("f.message_type[0].field[1].type = 4", "is b: repeated uint64"),
        ("del f.message_type[0].field[1]", "field p.M.2: was b: repeated uint32, is gone"),
        ("del f.message_type[0].nested_type[0]", "message p.M.N: was a message, is gone"),
        ("del f.message_type[0]", "message p.M: was a message, is gone"),
        ("f.enum_type[0].value[1].number = 2", "value p.E.1: was ONE, is gone"),
        ("f.enum_type[0].value[1].name = 'TWO'", "value p.E.1: was ONE, is TWO"),
        ("del f.enum_type[0]", "enum p.E: was an enum, is gone"),
        ("del f.service[0].method[0]", "method p.S.Do: was p.M -> stream p.M, is gone"),
        ("f.service[0].method[0].server_streaming = False", "is p.M -> p.M"),
        ("f.service[0].method[0].client_streaming = True", "is stream p.M -> stream p.M"),
        ("f.service[0].method[0].input_type = '.p.N'", "is p.N -> stream p.M"),
        ("f.package = 'q'", "service p.S: was a service, is gone"),
    ],
)
def test_a_break_is_told_as_what_was_and_what_is(
    compat: ModuleType, change: str, line: str
) -> None:
    changed = protocol()
    exec(change, {"f": changed.file[0]})
    breaks = compat.compare(protocol(), changed).breaks
    assert any(line in one for one in breaks), breaks


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("f.message_type[0].field.add(name='c', number=3, type=9)", "field p.M.3: c: string"),
        ("f.message_type.add(name='New')", "message p.New: a message"),
        ("f.enum_type[0].value.add(name='TWO', number=2)", "value p.E.2: TWO"),
        ("f.service[0].method.add(name='More')", "method p.S.More:"),
    ],
)
def test_an_addition_is_no_break(compat: ModuleType, change: str, line: str) -> None:
    changed = protocol()
    exec(change, {"f": changed.file[0]})
    difference = compat.compare(protocol(), changed)
    assert difference.breaks == ()
    assert any(one.startswith(line) for one in difference.additions), difference.additions


def test_a_field_that_moves_to_another_file_is_the_same(compat: ModuleType) -> None:
    """The wire knows packages, not files."""
    moved = protocol()
    moved.file[0].name = "q.proto"
    assert compat.compare(protocol(), moved).breaks == ()

"""YAML as a tree of texts that knows its lines.

Nothing is guessed from how a text looks: in YAML 1.1, which netplan's files are, a MAC
address can be a number in base 60, and `no` is false. What a text means is its key's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

_LARGEST = 1 << 20


class NetplanError(Exception):
    """What is wrong, and in which line (0: in none)."""

    def __init__(self, line: int, message: str, *, hint: str = "") -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A scalar."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A sequence."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A mapping."""

    line: int
    entries: dict[str, Node]
    lines: dict[str, int]
    """Of the keys."""


Node: TypeAlias = "Text | Items | Table"


def parse(text: str) -> Node:
    """Raises NetplanError for what is no YAML, for keys that are there twice, and for
    more than one document."""
    if len(text) > _LARGEST:
        raise NetplanError(0, f"{len(text)} characters: too large for a network's description")
    try:
        root = YAML(typ="rt", pure=True).compose(text)
        if root is None:
            raise NetplanError(0, "nothing is in it", hint="it begins with `network:`")
        return _node(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        raise NetplanError(line, f"no YAML: {error.problem or error.context}") from error
    except YAMLError as error:
        raise NetplanError(0, f"no YAML: {error}") from error
    except RecursionError:
        raise NetplanError(0, "no YAML: nested too deeply") from None


def _node(node: object) -> Node:
    match node:
        case MappingNode():
            return _table(node)
        case SequenceNode():
            items = tuple(_node(item) for item in node.value)
            return Items(line=_line(node), items=items)
        case ScalarNode():
            return Text(line=_line(node), text=_scalar(node))
        case _:
            raise NetplanError(0, f"no YAML: a {type(node).__name__} in it")


def _table(node: MappingNode) -> Table:
    entries: dict[str, Node] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise NetplanError(_line(key), "a key that is no plain word")
        name = str(key.value)
        if name in entries:
            raise NetplanError(_line(key), f"{name}: is there twice, first in line {lines[name]}")
        lines[name] = _line(key)
        entries[name] = _node(value)
    return Table(line=_line(node), entries=entries, lines=lines)


def _scalar(node: ScalarNode) -> str:
    """Empty for what YAML has for nothing, unless it is quoted."""
    is_plain = not node.style
    return "" if is_plain and node.value in ("~", "null", "Null", "NULL") else str(node.value)


def _line(node: MappingNode | SequenceNode | ScalarNode) -> int:
    return int(node.start_mark.line) + 1

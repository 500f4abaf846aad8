"""Functions are short: median at most 8 lines, nine in ten at most 25, none over 40.

Counted as lines of the body without its docstring, over the code that ships.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

import pytest

pytestmark = [pytest.mark.style, pytest.mark.operations]

CAP = 40


def _functions(root: Path) -> Iterator[tuple[str, int]]:
    for top in ("agent", "tools", "protocol"):
        for path in sorted((root / top).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{path.relative_to(root)}:{node.lineno} {node.name}", _lines(node)


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_functions_are_short(root: Path) -> None:
    sizes = dict(_functions(root))
    assert {name: size for name, size in sizes.items() if size > CAP} == {}
    assert median(sizes.values()) <= 8
    assert quantiles(sizes.values(), n=10)[-1] <= 25

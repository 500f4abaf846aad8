"""The floor plan holds: imports point down, and each door has one doorkeeper."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.style, pytest.mark.operations]

# The agent's layers, the lowest first. A module imports from its own layer and
# from lower ones.
LAYERS = ("agent.linux", "agent.core", "agent.handlers", "agent.server")
# Processes of their own: standard library and agent.linux, nothing else.
SMALL = ("agent.init", "agent.pid1", "agent.relay", "agent.console")
GUEST_RUNNER = "agent.core.commands"
HOST_RUNNER = "innkeeper.shim.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One source file and what it imports."""

    name: str
    path: Path
    imports: frozenset[str]


def _modules(root: Path) -> Iterator[Module]:
    for top in ("agent", "protocol/innkeeper", "tools/innkeeper"):
        base = root / top
        for path in sorted(base.rglob("*.py")):
            if "_pb2" in path.name:
                continue
            name = ".".join((base.name, *path.relative_to(base).with_suffix("").parts))
            name = name.removesuffix(".__init__")
            yield Module(name=name, path=path, imports=frozenset(_imports(path)))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


def _inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _offenders(root: Path, *, imported: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{module.name} imports {name}"
        for module in _modules(root)
        for name in sorted(module.imports)
        if _inside(name, *imported) and not _inside(module.name, *allowed)
    ]


def test_there_is_something_to_check(root: Path) -> None:
    names = {module.name for module in _modules(root)}
    assert {"agent.init", "agent.core.hotplug", "innkeeper.shim.daemon"} <= names


def test_imports_point_down(root: Path) -> None:
    upward = [
        f"{module.name} imports {name}"
        for module in _modules(root)
        for below, layer in enumerate(LAYERS)
        if _inside(module.name, layer)
        for name in sorted(module.imports)
        if _inside(name, *LAYERS[below + 1 :])
    ]
    assert upward == []


def test_init_and_relay_use_linux_alone(root: Path) -> None:
    """Beside the standard library; the relay also knows the serial port's framing."""
    allowed = (*SMALL, "agent.linux", "innkeeper.v1.session")
    strangers = [
        f"{module.name} imports {name}"
        for module in _modules(root)
        if _inside(module.name, *SMALL, "agent.linux", "innkeeper.v1.session")
        for name in sorted(module.imports)
        if not _is_standard(name) and not _inside(name, *allowed) and name not in PREFIXES
    ]
    assert strangers == []


# `from innkeeper.v1 import session` names the package as well as the module.
PREFIXES = ("agent", "innkeeper.v1")


def _is_standard(name: str) -> bool:
    import sys

    return name.split(".")[0] in sys.stdlib_module_names


def test_the_agent_knows_nothing_of_the_host_side(root: Path) -> None:
    upward = ("innkeeper.shim", "innkeeper.cli", "innkeeper.image", "tools")
    assert _offenders(root, imported=upward, allowed=upward) == []


def test_the_host_side_knows_nothing_of_the_agents_code(root: Path) -> None:
    assert _offenders(root, imported=("agent",), allowed=("agent",)) == []


def test_ctypes_stays_in_linux(root: Path) -> None:
    assert _offenders(root, imported=("ctypes",), allowed=("agent.linux",)) == []


def test_protobuf_and_grpc_stay_at_the_borders(root: Path) -> None:
    borders = ("innkeeper", "agent.server", "agent.__main__")
    assert _offenders(root, imported=("google", "grpc", "grpc_health"), allowed=borders) == []


def test_one_subprocess_runner_on_each_side(root: Path) -> None:
    runners = (GUEST_RUNNER, HOST_RUNNER)
    assert _offenders(root, imported=("subprocess",), allowed=runners) == []
    starters = {"create_subprocess_exec", "create_subprocess_shell", "preexec_fn", "popen"}
    found = [
        f"{module.name} uses {name}"
        for module in _modules(root)
        if module.name not in runners
        for name in sorted(_names_used(module.path) & starters)
    ]
    assert found == []


def test_pid1_starts_its_children_with_posix_spawn(root: Path) -> None:
    """subprocess would be a second waiter, and fork copies an interpreter."""
    used: set[str] = set()
    for module in _modules(root):
        if _inside(module.name, "agent.init", "agent.pid1"):
            used |= _names_used(module.path)
    assert "posix_spawn" in used
    assert used & {"fork", "forkpty", "system", "spawnv", "spawnve", "Popen"} == set()


def test_nobody_uses_preexec_fn(root: Path) -> None:
    assert [m.name for m in _modules(root) if "preexec_fn" in _names_used(m.path)] == []


def _names_used(path: Path) -> set[str]:
    used = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                used.add(name)
    return used

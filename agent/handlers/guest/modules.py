"""Kernel modules for the sandbox, by kmod: with parameters that hold, or not at all.

modprobe takes a module that is loaded already for a good one whatever its parameters, and
the kernel loads one with a parameter that it does not have. Both would be less than was
asked for, so both are looked at. What a module needs is loaded with it and unloaded with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Protocol

from agent.core import commands
from agent.core.errors import AgentError, Code, Reason, invalid
from agent.linux import pseudo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.core.commands import CommandResult
    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots
    from agent.core.sandbox import KernelModule

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+*-]{0,127}")
"""Names and aliases ("pci:v00001AF4d*", "char-major-10-232"); never an option."""

# Quotes and blanks would make two parameters of one (kernel/params.c, next_arg).
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}=[!#-&(-~]{0,1024}")

_PREFIX: Final = re.compile(r"^(modprobe|rmmod): (FATAL|ERROR): ")

_TRUTH: Final = {"1": "Y", "y": "Y", "Y": "Y", "0": "N", "n": "N", "N": "N"}


class Run(Protocol):
    """What is needed of `core.commands.run`."""

    async def __call__(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult: ...


@dataclass(frozen=True, slots=True)
class _Plan:
    """What modprobe would do: the module itself, and all that it would load, in order."""

    own: str
    loads: tuple[str, ...]


def check_module(module: KernelModule, field: str) -> None:
    """Raises BAD_FIELD for what is no name, or no "parameter=value" of one word."""
    if _NAME.fullmatch(module.name) is None:
        raise invalid(
            f"{field}.name: {module.name[:80]!r} is not the name of a module", field=f"{field}.name"
        )
    for parameter in module.parameters:
        if _PARAMETER.fullmatch(parameter) is None:
            place = f"{field}.parameters"
            raise invalid(
                f"{place}: {parameter[:80]!r} is not 'parameter=value' without blanks and quotes",
                field=place,
            )


class Modules:
    """Loads and unloads modules of this guest."""

    def __init__(self, roots: Roots, *, run: Run = commands.run) -> None:
        self._modules = roots.sys / "module"
        self._run = run

    async def load(
        self,
        module: KernelModule,
        note: Callable[[tuple[str, ...]], Awaitable[None] | None],
        deadline: Deadline,
    ) -> None:
        """Have it in the kernel, with these parameters.

        `note` is told what will be loaded, in order, before it is. Raises MODULE_REFUSED,
        with `module`.
        """
        plan = await self._plan(module, deadline)
        if self._there(plan.own):
            self._compare(module, plan.own, "is in the kernel already")
            return
        told = note(tuple(name for name in plan.loads if not self._there(name)))
        if told is not None:
            await told
        result = await self._call(["modprobe", "--", module.name, *module.parameters], deadline)
        if result.code != 0:
            raise _refused(module, _said(result))
        self._compare(module, plan.own, "was loaded", await self._known(plan.own, deadline))

    async def unload(self, names: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Take them out again, the last one first; those that stay, and why."""
        stay = {}
        for name in reversed(names):
            if self._loaded(name) and (why := await self._removal(name, deadline)):
                stay[name] = why
        return stay

    async def _removal(self, name: str, deadline: Deadline) -> str:
        """What stood against it; empty when it is gone. Not by modprobe: that also unloads
        what was there before and is idle now."""
        try:
            result = await self._call(["rmmod", "--", name], deadline)
        except AgentError as error:
            return error.message
        return _said(result) if result.code != 0 and self._loaded(name) else ""

    async def _plan(self, module: KernelModule, deadline: Deadline) -> _Plan:
        argv = ["modprobe", "--show-depends", "--", module.name]
        result = await self._call(argv, deadline)
        words = [line.split() for line in result.stdout.decode(errors="replace").splitlines()]
        steps = [line for line in words if len(line) > 1 and line[0] in ("insmod", "builtin")]
        if result.code != 0 or not steps:
            raise _refused(module, _said(result) or "no module of that name or alias")
        loads = tuple(_module_of(path) for kind, path, *_ in steps if kind == "insmod")
        return _Plan(_module_of(steps[-1][1]), loads)

    async def _known(self, own: str, deadline: Deadline) -> frozenset[str]:
        """Parameters that its file tells of, also those that sysfs does not show. Some have
        only a type there, some only a description."""
        names: set[str] = set()
        for section in ("parmtype", "parm"):
            result = await self._call(["modinfo", "-F", section, "--", own], deadline)
            text = result.stdout.decode(errors="replace")
            names |= {line.partition(":")[0] for line in text.splitlines()}
        return frozenset(names)

    def _compare(
        self, module: KernelModule, own: str, how: str, hidden: frozenset[str] = frozenset()
    ) -> None:
        """`hidden` are parameters that may have been taken without being shown."""
        for name, wanted in map(_split, module.parameters):
            now = self._parameter(own, name)
            if now is None and name not in hidden:
                raise _refused(module, f"it {how}, and the kernel shows no parameter {name} of it")
            if now is not None and not _same(now, wanted):
                raise _refused(module, f"it {how}, with {name}={now} and not {wanted}")

    def _parameter(self, own: str, name: str) -> str | None:
        try:
            text = pseudo.read_optional(self._modules / own / "parameters" / name)
        except OSError:
            return None
        return None if text is None else text.strip()

    def _there(self, name: str) -> bool:
        """Loaded, or built in and with something to show."""
        return (self._modules / name).is_dir()

    def _loaded(self, name: str) -> bool:
        return (self._modules / name / "initstate").exists()

    async def _call(self, argv: list[str], deadline: Deadline) -> CommandResult:
        return await self._run(argv, deadline=deadline, check=False)


def _module_of(path: str) -> str:
    """`virtio_blk` of `/lib/modules/.../virtio_blk.ko.xz`, or of `virtio-blk`."""
    return PurePosixPath(path).name.partition(".")[0].replace("-", "_")


def _split(parameter: str) -> tuple[str, str]:
    name, _, value = parameter.partition("=")
    return name, value


def _same(now: str, wanted: str) -> bool:
    """Numbers may be written in several ways, and so may truth (kernel/params.c)."""
    if now == wanted:
        return True
    if now in ("Y", "N"):
        return _TRUTH.get(wanted) == now
    try:
        return int(now, 0) == int(wanted, 0)
    except ValueError:
        return False


def _said(result: CommandResult) -> str:
    """Without the program's own name: the message names the module."""
    return _PREFIX.sub("", result.stderr_tail.strip())


def _refused(module: KernelModule, why: str) -> AgentError:
    return AgentError(
        f"module {module.name}: {why}",
        code=Code.FAILED_PRECONDITION,
        reason=Reason.MODULE_REFUSED,
        fields={"module": module.name},
    )

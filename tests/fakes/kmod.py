"""kmod as the agent's command runner shows it: modprobe, rmmod and modinfo over a fake /sys."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.core.commands import CommandResult
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError

_RELEASE = "6.12.118+deb13-cloud-amd64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module that there is: what it needs, its parameters with their defaults."""

    needs: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    """Parameters that sysfs does not show."""
    builtin: bool = False


class FakeKmod:
    """`knows` are modules by name, `aliases` lead to one; `busy` ones are not unloaded;
    `refuses` are those whose code says no, `raises` what one word of a call ends with."""

    def __init__(self, sys: Path) -> None:
        self._modules = sys / "module"
        self.knows: dict[str, Module] = {}
        self.aliases: dict[str, str] = {}
        self.busy: set[str] = set()
        self.refuses: set[str] = set()
        self.raises: dict[str, AgentError] = {}
        self.calls: list[list[str]] = []

    def loaded(self) -> set[str]:
        return {path.parent.name for path in self._modules.glob("*/initstate")}

    def put(self, name: str, *given: str) -> None:
        """Have it in the kernel, with these parameters."""
        module = self.knows[name]
        folder = self._modules / name
        (folder / "parameters").mkdir(parents=True)
        if not module.builtin:
            (folder / "initstate").write_text("live\n")
        values = dict(module.parameters) | dict(word.split("=", 1) for word in given)
        for parameter, _ in module.parameters:
            (folder / "parameters" / parameter).write_text(values[parameter] + "\n")

    async def __call__(
        self, argv: Sequence[str], *, deadline: Deadline, check: bool
    ) -> CommandResult:
        self.calls.append(list(argv))
        for word, error in self.raises.items():
            if word in argv:
                raise error
        program, (*options, separator), words = _taken_apart(argv)
        assert (separator, check) == ("--", False)
        answer = {"modprobe": self._modprobe, "rmmod": self._rmmod, "modinfo": self._modinfo}
        code, stdout, stderr = answer[program](options, words)
        return CommandResult(
            argv=tuple(argv), code=code, stdout=stdout.encode(), stderr_tail=stderr
        )

    def _modprobe(self, options: list[str], words: list[str]) -> tuple[int, str, str]:
        name = self.aliases.get(words[0], words[0])
        if name not in self.knows:
            where = f"/lib/modules/{_RELEASE}"
            return 1, "", f"modprobe: FATAL: Module {words[0]} not found in directory {where}"
        if options == ["--show-depends"]:
            return 0, "".join(self._line(each) for each in (*self.knows[name].needs, name)), ""
        if name in self.refuses:
            said = f"modprobe: ERROR: could not insert '{name}': No such device"
            return 1, "", said
        for each in (*self.knows[name].needs, name):
            if not (self._modules / each).exists():
                self.put(each, *(words[1:] if each == name else ()))
        return 0, "", ""

    def _line(self, name: str) -> str:
        if self.knows[name].builtin:
            return f"builtin {name}\n"
        return f"insmod /lib/modules/{_RELEASE}/kernel/{name}.ko \n"

    def _rmmod(self, options: list[str], words: list[str]) -> tuple[int, str, str]:
        (name,) = words
        if name in self.busy:
            return 1, "", f"rmmod: ERROR: Module {name} is in use"
        shutil.rmtree(self._modules / name)
        return 0, "", ""

    def _modinfo(self, options: list[str], words: list[str]) -> tuple[int, str, str]:
        module = self.knows[words[0]]
        if options[-1] == "parmtype":
            return 0, "".join(f"{name}:int\n" for name in module.hidden), ""
        return 0, "".join(f"{name}:What it does\n" for name, _ in module.parameters), ""


def _taken_apart(argv: Sequence[str]) -> tuple[str, list[str], list[str]]:
    at = argv.index("--") + 1
    return argv[0], list(argv[1:at]), list(argv[at:])

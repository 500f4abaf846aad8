"""A GPU's MIG profile, switched by NVIDIA's own tool: `nvidia-smi mig`.

The kernel has no interface for it. Options and answers are those of NVIDIA's MIG user
guide: `-mig 1` enables the mode, `mig -lgi` and `-lci` list GPU and compute instances
(in a table for people), `-cgi PROFILE[:PLACEMENT]` and `-cci` make them, `-dci` and `-dgi`
take them away. Each answer that is not understood counts as a refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, invalid
from agent.handlers.devices.base import refused

if TYPE_CHECKING:
    from agent.core.commands import CommandResult
    from agent.core.model import AttachedDevice
    from agent.core.undo import UndoStack
    from agent.handlers.devices.job import Hands

_TOOL = "nvidia-smi"

# Each call initialises the GPU first, when nothing else has it open.
_UNDO_WITHIN = 60.0

_PROFILE = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z]{1,8}(\.[a-z]{1,8})?)?")
_MOST_INSTANCES = 7

# |   0  MIG 3g.20gb       9        1          4:4     |
_GPU_ROW = re.compile(r"\|\s+\d+\s+MIG \S+\s+(?P<profile>\d+)\s+(?P<id>\d+)\s+(?P<start>\d+):\d+\s")
# |   0      1       MIG 1c.3g.20gb       0         0          0:1     |
_COMPUTE_ROW = re.compile(r"\|\s+\d+\s+(?P<gi>\d+)\s+MIG \S+\s+(?P<profile>\d+)\s+(?P<id>\d+)\s")
_CREATED = re.compile(r"Successfully created GPU instance ID\s+(\d+) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """A GPU instance: profile and placement as numbers, and its compute instances' profiles."""

    id: int
    profile: int
    start: int
    compute: tuple[int, ...] = ()


async def set_mig(
    hands: Hands, device: AttachedDevice, profile: str, deadline: Deadline, undo: UndoStack
) -> None:
    """Divide an attached GPU: `profile` is "1g.10gb", or up to seven of them with commas.

    The instances that there are go first; nobody may use them. What is done goes to `undo`,
    which brings mode and former instances back. The nodes of new instances are made by
    `GpuDevices.take`, which is to be called again. Raises BAD_FIELD, MODE_REFUSED with the
    tool's words, OPERATION_TIMED_OUT.
    """
    parts = profile.split(",")
    if len(parts) > _MOST_INSTANCES or not all(_PROFILE.fullmatch(part) for part in parts):
        raise invalid(
            f"{profile[:100]!r} is not a MIG profile: expected 1g.10gb, or several with commas",
            field="mig_profile",
        )
    tool = _Tool(hands, device)
    await _enable(tool, deadline, undo)
    former = await _instances(tool, deadline)
    if former:
        undo.push(
            f"make the former MIG instances of {device.bdf} again", partial(_again, tool, former)
        )
        await _clear(tool, deadline)
    undo.push(f"destroy the new MIG instances of {device.bdf}", partial(_clear_later, tool))
    await tool.ask("mig", "-cgi", profile, "-C", deadline=deadline)


@dataclass(frozen=True, slots=True)
class _Tool:
    """nvidia-smi for one GPU."""

    hands: Hands
    device: AttachedDevice

    async def ask(self, *words: str, deadline: Deadline) -> str:
        """Its answer; raises MODE_REFUSED when it ends with an error."""
        result = await self.run(*words, deadline=deadline)
        if result.code != 0:
            raise self.refusal(f"{' '.join(result.argv)}: {_said(result)}")
        return result.stdout.decode(errors="replace")

    async def run(self, *words: str, deadline: Deadline) -> CommandResult:
        """How it ended; raises MODE_REFUSED when the image has no such tool."""
        # `mig` is a command with options of its own, and has to come first.
        first = words[:1] if words[0] == "mig" else ()
        argv = [_TOOL, *first, "-i", self.device.bdf, *words[len(first) :]]
        try:
            return await self.hands.run(argv, deadline=deadline, check=False)
        except AgentError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise self.refusal(
                f"the image has no {_TOOL}, which switches MIG",
                hint=f"build the image with the driver's tools: --package {_TOOL}",
            ) from error

    def refusal(self, why: str, *, hint: str | None = None) -> AgentError:
        error = refused(self.device, why, Reason.MODE_REFUSED)
        error.hint = hint
        return error


async def _enable(tool: _Tool, deadline: Deadline, undo: UndoStack) -> None:
    mode = await _mode(tool, deadline)
    if mode == "Enabled":
        return
    if mode != "Disabled":
        raise tool.refusal(f"the GPU has no MIG (its mode is {mode!r})")
    undo.push(f"disable MIG on {tool.device.bdf}", partial(_disable, tool))
    said = await tool.ask("-mig", "1", deadline=deadline)
    # It ends with 0 also when the mode only becomes pending.
    if await _mode(tool, deadline) != "Enabled":
        raise tool.refusal(f"MIG did not become enabled: {' '.join(said.split())}")


async def _mode(tool: _Tool, deadline: Deadline) -> str:
    words = ("--query-gpu=mig.mode.current", "--format=csv,noheader")
    return (await tool.ask(*words, deadline=deadline)).strip()


async def _disable(tool: _Tool) -> None:
    await tool.ask("-mig", "0", deadline=Deadline.after(_UNDO_WITHIN))


async def _instances(tool: _Tool, deadline: Deadline) -> tuple[_Instance, ...]:
    """The GPU's instances, in the order of their places."""
    rows = await _rows(tool, "-lgi", _GPU_ROW, deadline)
    compute = await _rows(tool, "-lci", _COMPUTE_ROW, deadline) if rows else []
    found = [
        _Instance(
            id=int(row["id"]),
            profile=int(row["profile"]),
            start=int(row["start"]),
            compute=tuple(int(each["profile"]) for each in compute if each["gi"] == row["id"]),
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda instance: instance.start))


async def _rows(
    tool: _Tool, option: str, pattern: re.Pattern[str], deadline: Deadline
) -> list[re.Match[str]]:
    result = await tool.run("mig", option, deadline=deadline)
    text = result.stdout.decode(errors="replace")
    # To have none is an error to the tool: "No GPU instances found: Not Found".
    if result.code != 0 and "not found" not in _said(result).lower():
        raise tool.refusal(f"{' '.join(result.argv)}: {_said(result)}")
    return [match for line in text.splitlines() if (match := pattern.search(line))]


async def _clear(tool: _Tool, deadline: Deadline) -> None:
    """Destroy all instances; those for computing are in the way of the others."""
    for option in ("-dci", "-dgi"):
        result = await tool.run("mig", option, deadline=deadline)
        if result.code != 0 and "not found" not in _said(result).lower():
            raise tool.refusal(f"{' '.join(result.argv)}: {_said(result)}")


async def _clear_later(tool: _Tool) -> None:
    await _clear(tool, Deadline.after(_UNDO_WITHIN))


async def _again(tool: _Tool, former: tuple[_Instance, ...]) -> None:
    """One by one, as the ids are needed for their compute instances; some may be there still."""
    deadline = Deadline.after(_UNDO_WITHIN)
    there = {(each.profile, each.start): each for each in await _instances(tool, deadline)}
    for instance in former:
        same = there.get((instance.profile, instance.start))
        number = same.id if same else await _make(tool, instance, deadline)
        if instance.compute and not (same and same.compute):
            profiles = ",".join(map(str, instance.compute))
            await tool.ask("mig", "-gi", str(number), "-cci", profiles, deadline=deadline)


async def _make(tool: _Tool, instance: _Instance, deadline: Deadline) -> int:
    """A GPU instance at its former place, without compute instances; its new id."""
    place = f"{instance.profile}:{instance.start}"
    said = await tool.ask("mig", "-cgi", place, deadline=deadline)
    made = _CREATED.search(said)
    if made is None:
        raise tool.refusal(f"no id of the instance {place} in the answer {said[:200]!r}")
    return int(made[1])


def _said(result: CommandResult) -> str:
    """The tool tells of errors on either stream."""
    text = f"{result.stdout.decode(errors='replace')} {result.stderr_tail}"
    return " ".join(text.split())[-500:] or result.how_it_ended()

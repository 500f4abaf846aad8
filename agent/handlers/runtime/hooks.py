"""Hooks of containers: checked, completed by those of the guest, run by a runner of ours.

crun calls hooks, and does so in the specification's order. What it leaves to be desired (a
time limit for the hook's children too, an environment of its own, its last words, the
states of the specification) is the runner's (linux/hookrunner.py), which stands in each
hook's place but for startContainer's: those run inside the container, where the runner is
not. Its outcomes lie in the bundle:

    bundles/ID/hooks/NN.json      one per hook, in the order of the specification's kinds

A failure of the kinds that come before the program aborts the operation. crun does not say
of startContainer's: whether the program was run is asked of the kernel (`start`).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.errors import AgentError, Code, Reason, kernel_refused
from agent.handlers.runtime.spec.members import Json, bad_spec
from agent.linux.execwait import ExecEvents, Turn
from agent.linux.guesthooks import KINDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from agent.core.deadlines import Deadline

_INSIDE = "startContainer"
_ABORTING = ("prestart", "createRuntime", "createContainer")

_STATUS = {
    "prestart": "creating",
    "createRuntime": "creating",
    "createContainer": "creating",
    "poststart": "running",
    "poststop": "stopped",
}
"""The state that the specification has at each (runtime.md, Lifecycle); crun 1.21 says
"created" where the container is still being created."""

_CODE = Path(__file__).resolve().parents[3]
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); del sys.argv[1];"
_BOOT += "import agent.linux.hookrunner as r; r.main()"
_RUNNER = (sys.executable, "-IS", "-c", _BOOT, str(_CODE))

_OUTCOME_LIMIT = 64 << 10
_LONGEST_TIMEOUT = 24 * 3600

_CRUNS_WORDS = re.compile(r"error executing hook `([^`]*)` \(exit code: (-?\d+)\)")


class Programs(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def programs(self, directory: str, deadline: Deadline) -> dict[str, list[str]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestHooks:
    """Programs of the guest that run for every container: paths by kind, in order."""

    programs: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def to_data(self) -> dict[str, list[str]]:
        return {kind: list(paths) for kind, paths in self.programs.items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Sequence[str]]) -> GuestHooks:
        return cls(programs={kind: tuple(data[kind]) for kind in KINDS if data.get(kind)})


async def scan_guest_hooks(files: Programs, directory: str, deadline: Deadline) -> GuestHooks:
    """Look below `directory` once: DIRECTORY/KIND/PROGRAM, by name.

    Regular files that may be executed count, links don't. Raises KERNEL_REFUSED when the
    directory can't be read; kinds that it has not are none.
    """
    try:
        found = await files.programs(directory, deadline)
    except OSError as error:
        raise kernel_refused(error, doing=f"look for hooks in {directory}") from error
    return GuestHooks.from_data(found)


def check_hooks(hooks: Json) -> None:
    """The specification's `hooks`. Raises BAD_SPEC."""
    for kind in KINDS:
        hooks.check(kind, lambda each: each.each(_check_hook))


def add_hooks(config: dict[str, Any], guest: GuestHooks | None) -> None:
    """Append the guest's hooks to the container's own, kind by kind.

    A path of startContainer is looked up in the container, also the guest's.
    """
    for kind, paths in guest.programs.items() if guest else ():
        hooks = config.setdefault("hooks", {})
        ours = [{"path": path, "args": [path, kind]} for path in paths]
        hooks[kind] = [*(hooks.get(kind) or ()), *ours]


def wrap_hooks(config: dict[str, Any], bundle: Path) -> None:
    """Put the runner in the place of each hook that it can run. Raises KERNEL_REFUSED."""
    hooks = config.get("hooks") or {}
    directory = bundle / "hooks"
    number = 0
    for kind in (kind for kind in KINDS if hooks.get(kind)):
        if kind == _INSIDE:
            hooks[kind] = [_plain(hook) for hook in hooks[kind]]
            continue
        wrapped = []
        for hook in hooks[kind]:
            outcome = directory / f"{number:02}.json"
            _make_room(outcome)
            wrapped.append(_wrapped(config, kind, hook, outcome))
            number += 1
        hooks[kind] = wrapped


async def start(
    config: Mapping[str, Any], pid: int, go: Callable[[], Awaitable[None]], deadline: Deadline
) -> bool:
    """Have the runtime start the process `pid`; whether that came to run its program.

    Only where there are startContainer hooks that is waited for. Raises what `go` does,
    TimeoutError when the hooks take longer than there is time.
    """
    if not (config.get("hooks") or {}).get(_INSIDE):
        await go()
        return True
    try:
        events = ExecEvents()
    except OSError:
        # A kernel without them: the hooks' failure shows as the process's end alone.
        await go()
        return True
    with events:
        await go()
        async with deadline.limit():
            return await _first_turn(events, pid) is Turn.EXEC


async def _first_turn(events: ExecEvents, pid: int) -> Turn:
    loop = asyncio.get_running_loop()
    news = asyncio.Event()
    loop.add_reader(events.fileno(), news.set)
    try:
        while (turn := events.first_turn(pid)) is None:
            await news.wait()
            news.clear()
    finally:
        loop.remove_reader(events.fileno())
    return turn


def start_failure(config: Mapping[str, Any], said: bytes) -> AgentError:
    """HOOK_FAILED of a startContainer hook; `said` is the end of the process's standard error,
    to which crun writes which one it was, after the hook's own words."""
    text = said.decode("utf-8", "replace")
    found = _CRUNS_WORDS.search(text)
    paths = [hook["path"] for hook in config["hooks"][_INSIDE]]
    path = found[1] if found else paths[0] if len(paths) == 1 else ""
    code = int(found[2]) if found else -1
    ended = f"exit status {code}" if code >= 0 else "ended before its program was run"
    if "timeout expired" in text:
        ended = "took longer than its timeout"
    return _failed(_INSIDE, path, ended, text.strip())


def hook_failure(bundle: Path) -> AgentError | None:
    """The hook that made the runtime refuse, if one did: HOOK_FAILED."""
    for outcome in _outcomes(bundle):
        if outcome["kind"] in _ABORTING and (outcome["failed"] or not outcome["ended"]):
            # It still runs for a moment when the runtime was killed at its deadline.
            ended = outcome["ended"] or "did not end while there was time"
            return _failed(outcome["kind"], outcome["path"], ended, outcome["stderr"])
    return None


def logged_failures(bundle: Path) -> tuple[AgentError, ...]:
    """Those of poststart and poststop, which abort nothing."""
    return tuple(
        _failed(each["kind"], each["path"], each["ended"], each["stderr"])
        for each in _outcomes(bundle)
        if each["kind"] not in _ABORTING and each["failed"]
    )


def _check_hook(hook: Json) -> None:
    hook.need("path").path()
    hook.check("args", Json.texts)
    hook.check("env", lambda env: env.each(_check_variable))
    hook.check("timeout", lambda timeout: timeout.number(1, _LONGEST_TIMEOUT))


def _check_variable(item: Json) -> None:
    name, equals, _ = item.text().partition("=")
    if not (name and equals):
        raise bad_spec(item.place, f"{item.text()[:60]!a} is not NAME=VALUE")


def _plain(hook: dict[str, Any]) -> dict[str, Any]:
    """As crun runs it; without `args` it would give the program none at all, without `env`
    its own."""
    return {**hook, "args": hook.get("args") or [hook["path"]], "env": hook.get("env") or []}


def _make_room(outcome: Path) -> None:
    """An empty file for the runner, which may be root in a user namespace only."""
    try:
        outcome.parent.mkdir(mode=0o711, exist_ok=True)
        outcome.touch(mode=0o600)
        outcome.chmod(0o666)
    except OSError as error:
        raise kernel_refused(error, doing=f"make {outcome}", reason=Reason.NO_SPACE) from error


def _wrapped(
    config: Mapping[str, Any], kind: str, hook: Mapping[str, Any], outcome: Path
) -> dict[str, Any]:
    state = {"ociVersion": config["ociVersion"], "status": _STATUS[kind]}
    if config.get("annotations"):
        state["annotations"] = config["annotations"]
    plan = {
        "kind": kind,
        "path": hook["path"],
        "args": hook.get("args") or [hook["path"]],
        "env": hook.get("env") or [],
        "timeout": hook.get("timeout"),
        "state": state,
        "outcome": str(outcome),
    }
    return {"path": _RUNNER[0], "args": [*_RUNNER, json.dumps(plan)], "env": []}


def _outcomes(bundle: Path) -> Iterator[dict[str, Any]]:
    """Of the hooks that were begun. A file that is not whole is none."""
    for path in sorted((bundle / "hooks").glob("*.json")):
        try:
            with path.open("rb") as file:
                outcome = json.loads(file.read(_OUTCOME_LIMIT))
        except (OSError, ValueError):
            continue
        yield outcome


def _failed(kind: str, path: str, ended: str, stderr: str) -> AgentError:
    said = f"; it said: {stderr}" if stderr else ""
    return AgentError(
        f"the {kind} hook {path}: {ended}{said}",
        code=Code.FAILED_PRECONDITION,
        reason=Reason.HOOK_FAILED,
        fields={"hook": kind, "path": path, "ended": ended, "stderr": stderr},
    )

"""The children that PID 1 keeps running: relay, agent and an image's own."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from agent.pid1 import cgroups
from agent.pid1.layout import Role, ServiceSpec
from agent.pid1.spawn import ENVIRONMENT, spawn

if TYPE_CHECKING:
    from agent.linux.pidfd import ChildExit
    from agent.pid1.console import Voice
    from agent.pid1.loop import Loop, Timer
    from agent.pid1.reaper import Reaper

_FIRST_DELAY = 0.25
_LONGEST_DELAY = 5.0
_HEALTHY_AFTER = 60.0
_OURS = {Role.AGENT, Role.RELAY}


class Backoff:
    """Delays before the next start: none, then doubling up to 5 s; 60 s of health begin anew."""

    def __init__(self) -> None:
        self._next = 0.0

    def delay(self, ran_for: float) -> float:
        """The delay after a run of so many seconds."""
        if ran_for >= _HEALTHY_AFTER:
            self._next = 0.0
        delay = self._next
        self._next = min(_LONGEST_DELAY, delay * 2) if delay else _FIRST_DELAY
        return delay


class Service:
    """One child: running, or waiting for its next start, or stopped for good."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.pid: int | None = None
        self.restarts = 0
        self.started_at = 0.0
        self.backoff = Backoff()
        self.timer: Timer | None = None
        self.oom_kills = 0


class Services:
    """Starts and restarts; each end is said on the console with its status and cause."""

    def __init__(self, loop: Loop, reaper: Reaper, say: Voice, *, cgroup: str | None) -> None:
        self._loop = loop
        self._reaper = reaper
        self._say = say
        self._cgroup = cgroup
        self._services: list[Service] = []
        self._stopping = False

    def start_all(self, specs: tuple[ServiceSpec, ...]) -> None:
        for spec in specs:
            service = Service(spec)
            self._services.append(service)
            self._note(service, "starting")
            self._start(service)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each was started again."""
        return {service.spec.name: service.restarts for service in self._services}

    @property
    def pids(self) -> dict[str, int]:
        """The running ones."""
        return {each.spec.name: each.pid for each in self._services if each.pid is not None}

    def stay_down(self) -> None:
        """From now on nothing is started again."""
        self._stopping = True
        for service in self._services:
            self._note(service, "the guest goes down")
            if service.timer is not None:
                service.timer.cancel()

    def signal(self, role: Role, number: int) -> list[str]:
        """Send a signal to the running ones of that role; their names."""
        running = self.running(role)
        for name in running:
            os.kill(self.pids[name], number)
        return running

    def running(self, role: Role) -> list[str]:
        return [
            each.spec.name
            for each in self._services
            if each.pid is not None and each.spec.role is role
        ]

    def _start(self, service: Service) -> None:
        service.timer = None
        service.started_at = time.monotonic()
        environment = {**ENVIRONMENT, **dict(service.spec.environment)}
        service.oom_kills = self._oom_kills(service)
        try:
            service.pid = spawn(service.spec.argv, environment)
        except OSError as error:
            self._after(service, f"cannot be started: {error}")
            return
        self._reaper.expect(service.pid, lambda ended: self._ended(service, ended))

    def _ended(self, service: Service, ended: ChildExit) -> None:
        service.pid = None
        if self._stopping:
            return
        ran_for = time.monotonic() - service.started_at
        cause = "by the OOM killer, " if self._oom_kills(service) > service.oom_kills else ""
        how = f"{cause}{_how(ended)}"
        self._after(service, f"(pid {ended.pid}) ended after {ran_for:.1f} s {how}")

    def _after(self, service: Service, what: str) -> None:
        name = service.spec.name
        if self._stopping or not service.spec.restart:
            self._say(f"{name} {what}")
            return
        delay = service.backoff.delay(time.monotonic() - service.started_at)
        self._note(service, f"restarting; {name} {what}")
        self._say(f"{name} {what}; starting it again in {delay:g} s")
        service.restarts += 1
        service.timer = self._loop.call_after(delay, lambda: self._start(service))

    def _note(self, service: Service, why: str) -> None:
        """Leave word for the relay, which answers in the agent's place."""
        if service.spec.status is None:
            return
        try:
            _replace(service.spec.status, f"{why}\n")
        except OSError as error:
            self._say(f"warning: {service.spec.status} is not written: {error}")

    def _oom_kills(self, service: Service) -> int:
        if self._cgroup is None or service.spec.cgroup is None:
            return 0
        return cgroups.oom_kills(self._cgroup + service.spec.cgroup)


def read_specs(directory: str) -> tuple[tuple[ServiceSpec, ...], tuple[str, ...]]:
    """An image's own services, by file name, and what was wrong with the rest.

    A file is {"name": ..., "argv": [...], "environment": {}, "restart": "always" or "never"}.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    except FileNotFoundError:
        return (), ()
    specs: list[ServiceSpec] = []
    warnings: list[str] = []
    for name in names:
        try:
            with open(f"{directory}/{name}", encoding="utf-8") as file:
                specs.append(parse_spec(json.load(file)))
        except (OSError, ValueError) as error:
            warnings.append(f"service file {name} is left out: {error}")
    return tuple(specs), tuple(warnings)


def parse_spec(fields: Any) -> ServiceSpec:
    """Raises ValueError that names the wrong member."""
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a wrong value in a file
    name, argv = fields.get("name"), fields.get("argv")
    environment = fields.get("environment", {})
    restart = fields.get("restart", "always")
    if not isinstance(name, str) or not name or name in _OURS:
        raise ValueError("'name' is not a text, or one of ours")
    if not _texts(argv) or not argv or not argv[0].startswith("/"):
        raise ValueError("'argv' is not a list of texts that begins with an absolute path")
    if not isinstance(environment, dict) or not _texts(list(environment.values())):
        raise ValueError("'environment' is not an object of texts")
    if restart not in ("always", "never"):
        raise ValueError("'restart' is neither 'always' nor 'never'")
    return ServiceSpec(name, tuple(argv), tuple(environment.items()), restart == "always")


def _replace(path: str, text: str) -> None:
    """Whoever reads it meanwhile sees all of the old text or all of the new."""
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    os.replace(fresh, path)


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _how(ended: ChildExit) -> str:
    if not ended.signal:
        return f"with status {ended.code}"
    try:
        return f"by signal {ended.signal} ({signal.Signals(ended.signal).name})"
    except ValueError:
        return f"by signal {ended.signal}"

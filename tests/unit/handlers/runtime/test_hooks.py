"""Hooks of a specification: their form, the guest's own, and what the runtime gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.handlers.runtime.hooks import (
    GuestHooks,
    add_hooks,
    check_hooks,
    hook_failure,
    logged_failures,
    scan_guest_hooks,
    start,
    start_failure,
    wrap_hooks,
)
from agent.handlers.runtime.spec.members import Json
from agent.linux import guesthooks
from agent.linux.guesthooks import KINDS

pytestmark = [pytest.mark.unit, pytest.mark.containers]

HOOK = {"path": "/h/x", "args": ["x", "prestart"], "env": ["A=1"], "timeout": 5}


@pytest.mark.parametrize(
    "hooks",
    [
        {},
        {kind: [HOOK] for kind in KINDS},
        {"prestart": [{"path": "/h"}], "poststop": []},
        {"prestart": [{"path": "/h", "args": [], "env": [], "timeout": 1}]},
        # Members that are not known are left alone, as the specification says.
        {"later": 1},
    ],
)
def test_good_ones(hooks: dict[str, Any]) -> None:
    check_hooks(Json(hooks, "hooks"))


@pytest.mark.parametrize(
    ("hook", "place"),
    [
        ({}, "hooks.poststart[0].path"),
        ({"path": ""}, "hooks.poststart[0].path"),
        ({"path": "bin/x"}, "hooks.poststart[0].path"),
        ({"path": 1}, "hooks.poststart[0].path"),
        ({"path": "/h", "args": "x"}, "hooks.poststart[0].args"),
        ({"path": "/h", "args": ["x", 1]}, "hooks.poststart[0].args[1]"),
        ({"path": "/h", "env": ["A"]}, "hooks.poststart[0].env[0]"),
        ({"path": "/h", "env": ["=1"]}, "hooks.poststart[0].env[0]"),
        ({"path": "/h", "timeout": 0}, "hooks.poststart[0].timeout"),
        ({"path": "/h", "timeout": -1}, "hooks.poststart[0].timeout"),
        ({"path": "/h", "timeout": 1.5}, "hooks.poststart[0].timeout"),
        ("/h", "hooks.poststart[0]"),
    ],
)
def test_bad_ones_are_named(hook: Any, place: str) -> None:
    with pytest.raises(AgentError) as caught:
        check_hooks(Json({"poststart": [hook]}, "hooks"))
    assert caught.value.reason is Reason.BAD_SPEC
    assert caught.value.fields["path"] == place


class Worker:
    """The worker's call, here."""

    async def programs(self, directory: str, deadline: Deadline) -> dict[str, list[str]]:
        return guesthooks.programs(directory=directory)


async def test_the_guests_hooks_are_programs_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "prestart"
    folder.mkdir()
    for name in ("20-b", "10-a", "no-program", "30-link"):
        (folder / name).touch(mode=0o755)
    (folder / "no-program").chmod(0o644)
    (folder / "30-link").unlink()
    (folder / "30-link").symlink_to("10-a")
    (folder / "directory").mkdir()
    (tmp_path / "poststop").symlink_to("prestart")
    (tmp_path / "createRuntime").touch()
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "x").touch(mode=0o755)
    found = await scan_guest_hooks(Worker(), f"{tmp_path}/", Deadline.after(5))
    paths = (f"{folder}/10-a", f"{folder}/20-b")
    assert found == GuestHooks(programs={"prestart": paths})
    assert GuestHooks.from_data(json.loads(json.dumps(found.to_data()))) == found


async def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        await scan_guest_hooks(Worker(), f"{tmp_path}/no", Deadline.after(5))
    assert caught.value.fields["errno"] == "ENOENT"


def test_the_guests_hooks_come_after_the_containers_own() -> None:
    """In their kinds, and also where the container has none."""
    guest = GuestHooks(programs={"prestart": ("/g/a", "/g/b"), "poststop": ("/g/c",)})
    config: dict[str, Any] = {"hooks": {"prestart": [HOOK], "poststart": [HOOK]}}
    add_hooks(config, guest)
    assert config["hooks"] == {
        "prestart": [
            HOOK,
            {"path": "/g/a", "args": ["/g/a", "prestart"]},
            {"path": "/g/b", "args": ["/g/b", "prestart"]},
        ],
        "poststart": [HOOK],
        "poststop": [{"path": "/g/c", "args": ["/g/c", "poststop"]}],
    }
    bare: dict[str, Any] = {}
    add_hooks(bare, None)
    assert bare == {}
    add_hooks(bare, guest)
    assert list(bare["hooks"]) == ["prestart", "poststop"]


def test_the_runner_stands_in_each_hooks_place(tmp_path: Path) -> None:
    """But for those that run where the guest's files are not."""
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "hooks": {kind: [HOOK, {"path": "/h/y"}] for kind in KINDS},
    }
    wrap_hooks(config, tmp_path)
    inside = config["hooks"].pop("startContainer")
    assert inside == [HOOK, {"path": "/h/y", "args": ["/h/y"], "env": []}]
    plans = [
        json.loads(hook["args"][-1]) for kind in config["hooks"] for hook in config["hooks"][kind]
    ]
    assert [plan["path"] for plan in plans] == ["/h/x", "/h/y"] * 5
    assert plans[0]["args"] == ["x", "prestart"]
    assert (plans[0]["env"], plans[0]["timeout"]) == (["A=1"], 5)
    assert (plans[1]["args"], plans[1]["env"], plans[1]["timeout"]) == (["/h/y"], [], None)
    outcomes = [Path(plan["outcome"]) for plan in plans]
    assert outcomes == sorted(tmp_path.glob("hooks/*.json"))
    # None has run, so none has failed.
    assert hook_failure(tmp_path) is None
    assert logged_failures(tmp_path) == ()


def test_a_container_without_hooks_has_none(tmp_path: Path) -> None:
    config: dict[str, Any] = {"ociVersion": "1.0.2", "hooks": {"prestart": []}}
    wrap_hooks(config, tmp_path)
    wrap_hooks({"ociVersion": "1.0.2"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "path", "ended"),
    [
        (
            b'own words\n{"msg":"error executing hook `/h/y` (exit code: 3)","level":"error"}\n',
            "/h/y",
            "exit status 3",
        ),
        (
            b"""{"msg":"error executing hook `/h/x` (exit code: -1)"}
            {"msg":"timeout expired for `/h/x`"}""",
            "/h/x",
            "took longer than its timeout",
        ),
        (b"", "", "ended before its program was run"),
    ],
)
def test_a_hook_inside_the_container(said: bytes, path: str, ended: str) -> None:
    """crun writes which one it was to the process's own standard error."""
    config = {"hooks": {"startContainer": [HOOK, {"path": "/h/y"}]}}
    failure = start_failure(config, said)
    assert failure.reason is Reason.HOOK_FAILED
    assert failure.fields["hook"] == "startContainer"
    assert (failure.fields["path"], failure.fields["ended"]) == (path, ended)


async def test_without_hooks_inside_nothing_is_waited_for() -> None:
    gone = []

    async def go() -> None:
        gone.append(True)

    assert await start({"hooks": {"poststart": [HOOK]}}, 1, go, Deadline.after(0))
    assert await start({}, 1, go, Deadline.after(0))
    assert gone == [True, True]

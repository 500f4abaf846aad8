"""`username` in the specification's user: numbers take its place, whatever it says."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.runtime.records import ProcessRecord
from agent.handlers.runtime.spec.accounts import resolve, resolve_exec, without_given_home
from agent.linux.accounts import Found

pytestmark = [pytest.mark.unit, pytest.mark.containers]


@dataclass
class FakeFiles:
    """Answers `answer`, or fails with it, and notes what it was asked."""

    answer: Found | OSError = field(default_factory=Found)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    homes: list[tuple[str, int]] = field(default_factory=list)

    async def find_account(
        self, root: str, user: str, group: str | None, deadline: Deadline
    ) -> Found:
        self.asked.append((root, user, group))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    async def find_home(self, root: str, uid: int, deadline: Deadline) -> str:
        self.homes.append((root, uid))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer.home


@dataclass
class Context:
    roots: Roots = field(default_factory=Roots)
    files: FakeFiles = field(default_factory=FakeFiles)


def asked_for(**user: Any) -> dict[str, Any]:
    return {"args": ["sh"], "user": user, "env": ["HOME=/own"]}


async def resolved(context: Context, **user: Any) -> dict[str, Any]:
    process = await resolve(context, asked_for(**user), "/root", Deadline.after(5))
    assert process["args"] == ["sh"]
    numbers: dict[str, Any] = process["user"]
    return numbers


async def test_numbers_take_the_place_of_the_name() -> None:
    context = Context(files=FakeFiles(Found(uid=1000, gid=100, groups=(5, 50))))
    numbers = await resolved(context, username="web", uid=3, umask=0o22, additionalGids=[7, 50])
    assert numbers == {"uid": 1000, "gid": 100, "umask": 0o22, "additionalGids": [7, 50, 5]}
    assert context.files.asked == [("/root", "web", None)]


@pytest.mark.parametrize(
    ("username", "question"),
    [
        ("web:staff", ("/root", "web", "staff")),
        ("web:", ("/root", "web", "")),
        (":staff", ("/root", "3", "staff")),
        ("a:b:c", ("/root", "a", "b:c")),
        ("12:34", ("/root", "12", "34")),
    ],
)
async def test_a_group_comes_after_a_colon(username: str, question: tuple[str, str, str]) -> None:
    context = Context()
    await resolved(context, username=username, uid=3)
    assert context.files.asked == [question]


@pytest.mark.parametrize("username", ["", None])
async def test_no_name_asks_nothing(username: str | None) -> None:
    """crun 1.21 would take no notice of the member; it does not even see it."""
    context = Context()
    assert await resolved(context, username=username, uid=3) == {"uid": 3}
    assert await resolved(context, uid=3) == {"uid": 3}
    assert context.files.asked == []


@pytest.mark.parametrize("kind", ["user", "group"])
async def test_an_unknown_name_is_told(kind: str) -> None:
    context = Context(files=FakeFiles(Found(missing=kind)))
    with pytest.raises(AgentError, match="nobody" if kind == "user" else "wheel") as caught:
        await resolved(context, username="nobody:wheel")
    assert (caught.value.code, caught.value.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.UNKNOWN_USER,
    )


async def test_a_hostile_file_is_the_containers_fault() -> None:
    context = Context(files=FakeFiles(OSError(errno.EFBIG, "read", "/etc/passwd")))
    with pytest.raises(AgentError, match="EFBIG") as caught:
        await resolved(context, username="web")
    assert caught.value.reason is Reason.UNKNOWN_USER


def first(pid: int, cgroup: str) -> ProcessRecord:
    return ProcessRecord(
        container_id="c", pid=pid, cgroup=cgroup, fingerprint="", terminal=False, after=0
    )


async def test_an_exec_sees_what_the_first_process_sees(tmp_path: Path) -> None:
    pid = os.getpid()
    (tmp_path / str(pid)).mkdir()
    (tmp_path / str(pid) / "cgroup").write_text("0::/pods/s/c\n")
    context = Context(roots=Roots(proc=tmp_path))
    process = asked_for(username="web")
    await resolve_exec(context, process, first(pid, "/pods/s/c"), Deadline.after(5))
    assert context.files.asked == [(f"{tmp_path}/{pid}/root", "web", None)]
    with pytest.raises(AgentError) as caught:
        await resolve_exec(context, process, first(pid, "/pods/s/other"), Deadline.after(5))
    assert caught.value.reason is Reason.WRONG_STATE
    # With a number and a home nobody is asked, so it may be gone.
    whole = await resolve_exec(context, asked_for(uid=1), first(pid, "/x"), Deadline.after(5))
    assert whole["user"] == {"uid": 1}
    # A home is looked for there as well.
    await resolve_exec(context, {"user": {"uid": 4}}, first(pid, "/pods/s/c"), Deadline.after(5))
    assert context.files.homes == [(f"{tmp_path}/{pid}/root", 4)]


HOMES = [
    (Found(home="/srv"), "HOME=/srv"),
    (Found(), "HOME=/"),
    # What is a FIFO is no file: crun 1.21 would wait for it in the container.
    (OSError(errno.EINVAL, "read as a regular file", "/etc/passwd"), "HOME=/"),
]


@pytest.mark.parametrize(("answer", "entry"), HOMES)
@pytest.mark.parametrize("env", [None, [], ["A=b", "HOMER=x"]])
async def test_a_process_without_home_gets_its_users(
    answer: Found | OSError, entry: str, env: list[str] | None
) -> None:
    context = Context(files=FakeFiles(answer))
    process = {"args": [], "user": {"uid": 7}} | ({} if env is None else {"env": env})
    whole = await resolve(context, process, "/root", Deadline.after(5))
    assert whole["env"] == [*(env or ()), entry]
    assert context.files.homes == [("/root", 7)]
    assert without_given_home(whole)["env"] == (env or [])


async def test_a_user_by_name_brings_its_home() -> None:
    context = Context(files=FakeFiles(Found(uid=5, home="/srv")))
    process = {"args": [], "user": {"username": "web"}}
    whole = await resolve(context, process, "/root", Deadline.after(5))
    assert (whole["user"], whole["env"]) == ({"uid": 5, "gid": 0}, ["HOME=/srv"])
    assert context.files.homes == []


async def test_a_home_of_its_own_is_kept() -> None:
    context = Context(files=FakeFiles(Found(home="/srv")))
    whole = await resolve(context, asked_for(uid=7), "/root", Deadline.after(5))
    assert whole["env"] == ["HOME=/own"]
    assert context.files.homes == []
    assert without_given_home(whole) == whole

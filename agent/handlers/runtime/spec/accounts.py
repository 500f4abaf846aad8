"""Users by name: `process.user.username` becomes numbers before the runtime sees it.

The member is OCI's (for Windows, config.md "User"), and hosts of Linux guests use it for
what the image says. It is "USER" or "USER:GROUP", each a name or a number; what the names
stand for is in the container's own /etc/passwd and /etc/group (linux/accounts.py). As
container engines have it, a user's own groups come with it unless a group is named.

HOME is given here too. The runtime would look it up itself, in the container, and wait
there without end when /etc/passwd is a FIFO.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Protocol

from agent.core.errors import AgentError, Code, Reason, kernel_refused, wrong_state
from agent.handlers.runtime.cgroup import open_member

if TYPE_CHECKING:
    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots
    from agent.handlers.runtime.records import ProcessRecord
    from agent.linux.accounts import Found

_MEMBER = "username"

_HOME = "HOME="
_GIVEN = "innkeeperHome"
"""A member of a process whose HOME comes from `resolve`: runtimes ignore what they don't know
(config.md, "Extensibility"), and an exec of another user must not inherit it."""


class AccountFiles(Protocol):
    """What is needed of `core.fileops.FileWorkers`."""

    async def find_account(
        self, root: str, user: str, group: str | None, deadline: Deadline
    ) -> Found: ...
    async def find_home(self, root: str, uid: int, deadline: Deadline) -> str: ...


class Surroundings(Protocol):
    """What is needed of `context.RuntimeContext`."""

    @property
    def roots(self) -> Roots: ...
    @property
    def files(self) -> AccountFiles: ...


async def resolve(
    context: Surroundings, process: dict[str, Any], root: str, deadline: Deadline
) -> dict[str, Any]:
    """The process with uid, gid and additionalGids in the place of its username, and with
    the variable HOME when it has none.

    `root` is the directory that the container is made from, without what it mounts. Groups
    that the process names as well are kept. Raises UNKNOWN_USER with the name;
    OPERATION_TIMED_OUT for a file system that does not answer.
    """
    user = process.get("user") or {}
    if not user.get(_MEMBER):
        numbers = {name: value for name, value in user.items() if name != _MEMBER}
        whole = {**process, "user": numbers} if _MEMBER in user else process
        if not _homeless(process):
            return whole
        return _with_home(whole, await _home(context.files, user, root, deadline))
    found = await _find(context.files, user, root, deadline)
    whole = {**process, "user": _numbers(user, found)}
    return _with_home(whole, found.home) if _homeless(process) else whole


def without_given_home(process: dict[str, Any]) -> dict[str, Any]:
    """A first process as it was before `resolve` gave it HOME, which is that of its own user
    and no one else's."""
    if not process.get(_GIVEN):
        return process
    env = [entry for entry in process["env"] if not entry.startswith(_HOME)]
    return {**process, "env": env}


async def resolve_exec(
    context: Surroundings, process: dict[str, Any], first: ProcessRecord, deadline: Deadline
) -> dict[str, Any]:
    """The same in a running container, as its first process sees it, mounts and all.

    Raises WRONG_STATE as well, when that process is gone.
    """
    if not (process.get("user") or {}).get(_MEMBER) and not _homeless(process):
        return await resolve(context, process, "/", deadline)
    pidfd = open_member(context.roots, first.pid, first.cgroup)
    if pidfd < 0:
        raise _gone(first)
    try:
        return await resolve(
            context, process, str(context.roots.proc / str(first.pid) / "root"), deadline
        )
    finally:
        # Whatever came of it: it has its number until it is reaped, so if it is there that
        # was its root, and nobody else's.
        try:
            _check_there(pidfd, first)
        finally:
            os.close(pidfd)


def _homeless(process: dict[str, Any]) -> bool:
    return not any(entry.startswith(_HOME) for entry in process.get("env") or ())


def _with_home(process: dict[str, Any], home: str) -> dict[str, Any]:
    env = [*(process.get("env") or ()), f"{_HOME}{home or '/'}"]
    return {**process, "env": env, _GIVEN: True}


async def _home(files: AccountFiles, user: dict[str, Any], root: str, deadline: Deadline) -> str:
    """A file that is not one has no users: programs would find none there either."""
    try:
        return await files.find_home(root, int(user.get("uid") or 0), deadline)
    except OSError:
        return ""


def _numbers(user: dict[str, Any], found: Found) -> dict[str, Any]:
    groups = dict.fromkeys((*(user.get("additionalGids") or ()), *found.groups))
    extra = {"additionalGids": list(groups)} if groups else {}
    others = {name: value for name, value in user.items() if name != _MEMBER}
    return {**others, "uid": found.uid, "gid": found.gid, **extra}


async def _find(files: AccountFiles, user: dict[str, Any], root: str, deadline: Deadline) -> Found:
    name, colon, group = str(user[_MEMBER]).partition(":")
    if not name:
        name = str(user.get("uid") or 0)
    try:
        found = await files.find_account(root, name, group if colon else None, deadline)
    except OSError as error:
        raise kernel_refused(
            error, doing=f"look for {name[:80]!a} in the container", reason=Reason.UNKNOWN_USER
        ) from error
    if found.missing:
        raise _unknown(found.missing, name if found.missing == "user" else group)
    return found


def _unknown(kind: str, name: str) -> AgentError:
    file = "/etc/passwd" if kind == "user" else "/etc/group"
    return AgentError(
        f"the container has no {kind} {name[:80]!a} in {file}",
        code=Code.FAILED_PRECONDITION,
        reason=Reason.UNKNOWN_USER,
        fields={kind: name[:200]},
        hint="a number needs no entry",
    )


def _check_there(pidfd: int, first: ProcessRecord) -> None:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        raise _gone(first) from None


def _gone(first: ProcessRecord) -> AgentError:
    return wrong_state(
        f"container {first.container_id}: its first process has ended", id=first.container_id
    )

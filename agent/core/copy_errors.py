"""What a copy's worker refuses, as errors of the agent."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from agent.core.errors import (
    AgentError,
    Code,
    Reason,
    already_exists,
    exhausted,
    invalid,
    timed_out,
    wrong_state,
)
from agent.linux.copyframes import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}

_BY_ERRNO: Mapping[int, tuple[Code, Reason, str, str | None]] = {
    errno.ELOOP: (
        Code.PERMISSION_DENIED,
        Reason.LEADS_OUTSIDE,
        "a link is on the way, or where a directory should be",
        "a copy follows no link below the path that it starts at",
    ),
    errno.EXDEV: (
        Code.PERMISSION_DENIED,
        Reason.LEADS_OUTSIDE,
        "the path leads out of where the copy starts",
        None,
    ),
    errno.ENOTDIR: (
        Code.FAILED_PRECONDITION,
        Reason.WRONG_STATE,
        "something that is no directory is where one should be",
        "remove it first, or choose another path",
    ),
    errno.EISDIR: (
        Code.FAILED_PRECONDITION,
        Reason.WRONG_STATE,
        "a directory is where something else should be",
        "remove it first, or choose another path",
    ),
    errno.ENOENT: (Code.NOT_FOUND, Reason.FILE_NOT_FOUND, "there is no such file", None),
    errno.ENAMETOOLONG: (Code.INVALID_ARGUMENT, Reason.BAD_FIELD, "a name is too long", None),
    errno.EROFS: (
        Code.FAILED_PRECONDITION,
        Reason.KERNEL_REFUSED,
        "the file system is read-only",
        None,
    ),
}


def refused(name: str, start: str, words: dict[str, Any]) -> AgentError:
    """The error that a REFUSED frame stands for.

    `name` is the root's, `start` the path where the copy starts; the field `path` is the
    entry's own, or `start` where that is empty.
    """
    path = str(words["path"])
    whole = "/".join(filter(None, (start, path))) or "/"
    where = f"{name}: {shown(whole)}"
    if "errno" in words:
        return _of_errno(where, path or start, int(words["errno"]), str(words["call"]))
    return _of_rule(where, path or start, str(words["why"]), str(words["text"]))


def stuck(name: str, patience: float) -> AgentError:
    return timed_out(
        f"{name}: the copy did not move for {patience:g} s and was given up",
        hint="the device or the server behind it does not answer",
    )


def worker_died(name: str, why: str) -> AgentError:
    return AgentError(
        f"{name}: the copy's worker ended in the middle of it: {why}",
        code=Code.UNAVAILABLE,
        reason=Reason.KERNEL_REFUSED,
        hint="was it killed for memory? the entry in progress was not written",
    )


def too_many(limit: int) -> AgentError:
    return exhausted(
        f"{limit} copies are in progress, no more are possible",
        reason=Reason.LIMIT_REACHED,
        hint="wait for one of them",
        limit="copies",
        maximum=limit,
    )


def _of_rule(where: str, path: str, why: str, text: str) -> AgentError:
    message, name = f"{where}: {text}", shown(path)
    match why:
        case "exists":
            return already_exists(message, reason=Reason.FILE_EXISTS, path=name)
        case "type":
            return wrong_state(message, path=name)
        case "range":
            code, reason = Code.OUT_OF_RANGE, Reason.BAD_FIELD
            return AgentError(message, code=code, reason=reason, fields={"path": name})
        case _:
            return invalid(message, path=name)


def _of_errno(where: str, path: str, number: int, call: str) -> AgentError:
    name = errno.errorcode.get(number, str(number))
    fields = {"path": shown(path), "errno": name}
    if number in _NO_SPACE:
        text = f"{where}: the file system is full: {os.strerror(number)}"
        return exhausted(text, reason=Reason.NO_SPACE, hint="what was there stays", **fields)
    known = _BY_ERRNO.get(number)
    if known is not None:
        code, reason, text, hint = known
        return AgentError(f"{where}: {text}", code=code, reason=reason, fields=fields, hint=hint)
    text = f"{where}: {call}: {os.strerror(number)}"
    code, reason = Code.FAILED_PRECONDITION, Reason.KERNEL_REFUSED
    return AgentError(text, code=code, reason=reason, fields=fields)

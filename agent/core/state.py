"""What must survive the agent: one small JSON file per object (DESIGN D13).

`Roots.state/KIND/KEY.json` holds `{"schema": 1, "kind", "key", "data"}`. A file is
replaced by rename, so a reader sees the old or the new one, never half; no fsync,
because the directory is a tmpfs that dies with the VM. A file that cannot be
understood is set aside with a log line: one bad object must not keep the agent
from coming back for all others.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, Reason, exhausted, kernel_refused

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

SCHEMA = 1

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,199}")
_SUFFIX = ".json"
_ASIDE = ".unreadable"
_TEMPORARY = ".new"


class StateStore:
    """Saves and loads objects by kind and key; keys are checked ids or made of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, kind: str, key: str, data: dict[str, Any]) -> None:
        """Replace the object's file; raises NO_SPACE when the run directory is full."""
        path = self._path(kind, key)
        text = json.dumps({"schema": SCHEMA, "kind": kind, "key": key, "data": data})
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, text)
        except OSError as error:
            raise _refused(error, path) from error

    def delete(self, kind: str, key: str) -> None:
        """Forget the object; forgetting twice is fine."""
        self._path(kind, key).unlink(missing_ok=True)

    def load(self, kind: str, key: str) -> dict[str, Any] | None:
        """The object's data, or None when it is not there or not readable."""
        path = self._path(kind, key)
        return _read(path, kind) if path.exists() else None

    def load_all(self, kind: str) -> dict[str, dict[str, Any]]:
        """Every readable object of this kind, by key, in the order of the keys."""
        folder = self._directory / _checked(kind)
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            data = _read(path, kind)
            if data is not None:
                found[path.name.removesuffix(_SUFFIX)] = data
        return found

    def _path(self, kind: str, key: str) -> Path:
        return self._directory / _checked(kind) / (_checked(key) + _SUFFIX)


def _checked(text: str) -> str:
    if _KEY.fullmatch(text) is None or ".." in text:
        raise ValueError(f"{text!r} is not a key of the state directory")
    return text


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _refused(error: OSError, path: Path) -> AgentError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return exhausted(
            f"no space left to save {path.name}: the run directory is full",
            reason=Reason.NO_SPACE,
            object=path,
        )
    return kernel_refused(error, doing=f"save state {path}")


def _read(path: Path, kind: str) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA or content["kind"] != kind:
            raise ValueError(f"schema {content['schema']!r} of kind {content['kind']!r}")
        if content["key"] != path.name.removesuffix(_SUFFIX):
            raise ValueError(f"holds the key {content['key']!r}")
        return dict(content["data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("state file %s set aside: %s", path, error)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(path.name + _ASIDE))
        return None

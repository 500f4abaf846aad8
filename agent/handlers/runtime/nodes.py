"""Nodes that come and go in a container that is there already.

The runtime makes a container's nodes when it creates it and never again. Later ones
are made in the root of the container's first process, by a process that can be given
up when the file system there doesn't answer (rootnodes.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.core import commands
from agent.core.errors import kernel_refused, wrong_state
from agent.handlers.runtime.cgroup import open_member

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots
    from agent.handlers.runtime.grants import PlacedNode

_CODE = Path(__file__).resolve().parents[3]
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "import agent.handlers.runtime.rootnodes as r; r.main()"
)
_ARGV = (sys.executable, "-IS", "-c", _BOOT, str(_CODE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A container, as its first process and the cgroup that was made for it."""

    container_id: str
    pid: int
    cgroup: str


class ContainerNodes:
    """Makes and removes nodes in containers."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def check(self, place: Place) -> None:
        """Raises WRONG_STATE unless the process is in the container's own cgroup."""
        with self._process(place):
            pass

    async def change(
        self,
        place: Place,
        *,
        remove: Sequence[PlacedNode],
        make: Sequence[PlacedNode],
        deadline: Deadline,
    ) -> None:
        """Remove nodes, then make others: all, or none with an error.

        One that is there already is fine, and so is one that is gone. Raises
        WRONG_STATE, KERNEL_REFUSED (EEXIST: something else is at that path),
        OPERATION_TIMED_OUT.
        """
        with self._root(place) as root:
            request = {
                "root_fd": root,
                "guest_dev": self._roots.dev.stat().st_dev,
                "remove": [_words(each) for each in remove],
                "make": [_words(each) for each in make],
            }
            result = await commands.run(
                _ARGV,
                deadline=deadline,
                input=json.dumps(request).encode(),
                setting=commands.Setting(pass_fds=(root,)),
            )
        _raise_refusal(place, json.loads(result.stdout))

    @contextlib.contextmanager
    def _root(self, place: Place) -> Iterator[int]:
        """A descriptor of the container's root directory."""
        with contextlib.ExitStack() as stack:
            pidfd = stack.enter_context(self._process(place))
            path = self._roots.proc / str(place.pid) / "root"
            try:
                root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, root)
                # It has its number until it is reaped: so that was its root, nobody else's.
                signal.pidfd_send_signal(pidfd, 0)
            except OSError as error:
                raise _not_there(place) from error
            yield root

    @contextlib.contextmanager
    def _process(self, place: Place) -> Iterator[int]:
        pidfd = open_member(self._roots, place.pid, place.cgroup)
        if pidfd < 0:
            raise _not_there(place)
        try:
            yield pidfd
        finally:
            os.close(pidfd)


def _not_there(place: Place) -> Exception:
    return wrong_state(
        f"container {place.container_id}: process {place.pid} is not (any more) in the cgroup"
        f" {place.cgroup} that was made for it",
        id=place.container_id,
    )


def _words(placed: PlacedNode) -> dict[str, Any]:
    return {
        "path": placed.path,
        "type": placed.node.type.value,
        "major": placed.node.major,
        "minor": placed.node.minor,
        "mode": placed.mode,
        "uid": placed.uid,
        "gid": placed.gid,
    }


def _raise_refusal(place: Place, answer: dict[str, Any]) -> None:
    if "errno" not in answer:
        return
    error = OSError(answer["errno"], answer["call"], answer["object"])
    doing = f"{answer['call']} {answer['object']} in container {place.container_id}"
    raise kernel_refused(error, doing=doing)

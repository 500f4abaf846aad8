"""The network namespace that the runtime made for a container."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from agent.core.errors import wrong_state
from agent.handlers.runtime.cgroup import open_member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.roots import Roots
    from agent.handlers.runtime.records import ProcessRecord


@contextlib.contextmanager
def network_of(roots: Roots, process: ProcessRecord) -> Iterator[int]:
    """A descriptor of it while the block runs, from the container's first process.

    Raises WRONG_STATE when that is gone, or is in the sandbox's own namespace.
    """
    container_id = process.container_id
    pidfd = open_member(roots, process.pid, process.cgroup)
    if pidfd < 0:
        raise _gone(container_id)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, pidfd)
        try:
            path = roots.proc / str(process.pid) / "ns" / "net"
            namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, namespace)
            # It has its number until it is reaped: so that was its namespace, nobody else's.
            signal.pidfd_send_signal(pidfd, 0)
        except OSError as error:
            raise _gone(container_id) from error
        own = (roots.proc / "self" / "ns" / "net").stat()
        if os.path.samestat(own, os.fstat(namespace)):
            raise wrong_state(
                f"container {container_id} is in the sandbox's own network namespace: nothing"
                " can be moved into it",
                hint="linux.namespaces names another one, or none by path",
                id=container_id,
            )
        yield namespace


def _gone(container_id: str) -> Exception:
    return wrong_state(
        f"container {container_id}: its first process ended before it could be given interfaces",
        id=container_id,
    )

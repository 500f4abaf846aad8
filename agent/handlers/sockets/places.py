"""Where a container's sockets are: its root, and its network."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent.core.errors import AgentError, wrong_state
from agent.core.model import ContainerState
from agent.handlers.runtime.cgroup import open_member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from agent.core.roots import Roots
    from agent.handlers.runtime.table import ContainerTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """One container's, or the guest's own, as long as the block lasts that gave it."""

    root: str
    """Path of its root directory, to be opened."""
    process: int | None = None
    """pidfd of the process whose root that is, as long as it lives."""
    network: int | None = None
    """Descriptor of its network namespace; None for the guest's own."""


GUEST = Inside(root="/")


class Places(Protocol):
    """What `Sockets` needs of containers."""

    def inside(self, container_id: str) -> AbstractContextManager[Inside]:
        """Raises UNKNOWN_CONTAINER, WRONG_STATE."""


class ContainerPlaces:
    """Containers by their first process, which has to be there."""

    def __init__(self, containers: ContainerTable, roots: Roots) -> None:
        self._containers = containers
        self._roots = roots

    @contextlib.contextmanager
    def inside(self, container_id: str) -> Iterator[Inside]:
        container = self._containers.container(container_id)
        container.require("connect to its sockets", ContainerState.CREATED, ContainerState.RUNNING)
        pid = container.status.pid
        with contextlib.ExitStack() as stack:
            pidfd = open_member(self._roots, pid, container.record.cgroup)
            if pidfd < 0:
                raise _gone(container_id)
            stack.callback(os.close, pidfd)
            process = self._roots.proc / str(pid)
            try:
                network = os.open(process / "ns" / "net", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise _gone(container_id) from error
            stack.callback(os.close, network)
            yield Inside(
                root=str(process / "root"),
                process=pidfd,
                network=None if self._is_ours(network) else network,
            )

    def _is_ours(self, network: int) -> bool:
        own = os.stat(self._roots.proc / "self" / "ns" / "net")
        return os.path.samestat(own, os.fstat(network))


def _gone(container_id: str) -> AgentError:
    return wrong_state(
        f"container {container_id}: its first process has just ended", id=container_id
    )

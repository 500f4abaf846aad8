"""Who in the guest uses a device, as far as the kernel shows it.

The search itself is `agent/linux/users.py`. It looks at every file that anybody has
open, and a file may be on a file system that does not answer; so it runs in a worker
process that can be given up (`core/fileops.py`), never on the event loop's thread.
It also enters network namespaces, which is a matter of the whole thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from agent.core.holding import DeviceParts, Holder, HolderKind
from agent.linux import users

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots


class Searchers(Protocol):
    """Runs `agent.linux.users.device_users` where it may hang; `core.fileops.FileWorkers` does.

    Raises OPERATION_TIMED_OUT at the deadline: nobody knows then who uses the device.
    """

    async def device_users(
        self, question: Mapping[str, Any], deadline: Deadline
    ) -> list[dict[str, Any]]: ...


async def find(
    searchers: Searchers, roots: Roots, parts: DeviceParts, deadline: Deadline
) -> tuple[Holder, ...]:
    """Everybody who uses any part of a device, at most `users.SHOWN`; empty: nobody.

    A last holder named "and N more" says that there are more of them. One whose name
    starts with "and more" stands for a process with more descriptors than are looked at.
    """
    return _holders(await searchers.device_users(question(roots, parts), deadline))


def scan(roots: Roots, parts: DeviceParts) -> tuple[Holder, ...]:
    """The same, here and now; it may hang, see the module's docstring."""
    return _holders(users.device_users(**question(roots, parts)))


def question(roots: Roots, parts: DeviceParts) -> dict[str, Any]:
    """The arguments of `device_users`, as JSON can carry them."""
    return {
        "proc": str(roots.proc),
        "sys": str(roots.sys),
        "nodes": [(node.path, node.type.value, node.major, node.minor) for node in parts.nodes],
        "blocks": list(parts.blocks),
        "device": str(parts.directory),
    }


def _holders(answer: Iterable[dict[str, Any]]) -> tuple[Holder, ...]:
    return tuple(Holder(**{**user, "kind": HolderKind(user["kind"])}) for user in answer)

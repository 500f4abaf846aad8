"""Sysctls of the guest as a whole, for the sandbox: all of /proc/sys but what protects it.

What may not be set is a list with reasons: what starts programs of the guest, what
loosens what keeps containers in, what ends the guest, and what can't be taken back.
"""

from __future__ import annotations

import asyncio
import re
import threading
from typing import TYPE_CHECKING, Final

from agent.core.errors import AgentError, Code, Reason, timed_out
from agent.core.threads import to_its_end
from agent.handlers.network.sysctls import SysctlTree, Wish, path_of, rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots

Former = tuple[tuple[str, str], ...]
"""Paths below /proc/sys with what they held, in the order of the changes."""

_STARTS_PROGRAMS: Final = "the kernel starts the program that it names, as root of the guest"
_ONE_WAY: Final = "the kernel does not let it be taken back"
_ENDS_THE_GUEST: Final = "it decides how the guest ends, which is the host's to say"

_REFUSED: Final = (
    (r"kernel/(core_pattern|core_pipe_limit|modprobe|hotplug|poweroff_cmd)", _STARTS_PROGRAMS),
    (r"kernel/usermodehelper/.*", _STARTS_PROGRAMS),
    (r"fs/binfmt_misc/.*", _STARTS_PROGRAMS),
    (r"kernel/(unprivileged_bpf_disabled|yama/ptrace_scope)", _ONE_WAY),
    (r"kernel/(modules_disabled|kexec_load_.*|tainted)", _ONE_WAY),
    (r"(kernel|vm)/(.*_)?panic(_.*)?|kernel/(oops|warn)_limit", _ENDS_THE_GUEST),
    (r"kernel/(ctrl-alt-del|cad_pid|sysrq)", _ENDS_THE_GUEST),
    (r"kernel/ns_last_pid", "process ids that come again would be taken for others"),
    (r"vm/mmap_min_addr", "a program at address 0 turns faults of the kernel into its own code"),
    (r"kernel/(hostname|domainname)", "the request's own `hostname` says it"),
)
_RULES: Final = tuple((re.compile(pattern), why) for pattern, why in _REFUSED)

_IO_URING: Final = "kernel/io_uring_disabled"
_IO_URING_OFF: Final = "2"


def wishes_of(values: Iterable[tuple[str, str]]) -> tuple[Wish, ...]:
    """In the order in which they are written: what changes others comes before those.

    Raises BAD_FIELD for what is no name, or there twice; SYSCTL_NOT_ALLOWED.
    """
    by_path: dict[str, Wish] = {}
    for name, value in values:
        wish = Wish(name=name, path=path_of(name, "sysctls"), value=value)
        other = by_path.setdefault(wish.path, wish)
        if other is not wish:
            raise doubled(other, wish)
        check_allowed(wish)
    return tuple(sorted(by_path.values(), key=lambda wish: (rank(wish.path), wish.path)))


def doubled(one: Wish, other: Wish) -> AgentError:
    return AgentError(
        f"sysctls: {one.name!r} and {other.name!r} are the same",
        code=Code.INVALID_ARGUMENT,
        reason=Reason.BAD_FIELD,
        fields={"field": "sysctls"},
    )


def check_allowed(wish: Wish) -> None:
    """Raises SYSCTL_NOT_ALLOWED with the reason."""
    why = next((why for rule, why in _RULES if rule.fullmatch(wish.path)), None)
    if wish.path == _IO_URING and wish.value.strip() != _IO_URING_OFF:
        why = "with io_uring a container gets around the filter of its system calls"
    if why is not None:
        raise AgentError(
            f"{wish.name} may not be set: {why}",
            code=Code.PERMISSION_DENIED,
            reason=Reason.SYSCTL_NOT_ALLOWED,
            fields={"name": wish.name},
        )


async def former(roots: Roots, wishes: Sequence[Wish]) -> Former:
    """What they hold now, and what a write to them changes besides.

    Raises KERNEL_REFUSED for one that is not there. In a thread, as `put`.
    """

    def look() -> Former:
        found: dict[str, str] = {}
        with SysctlTree.opened(roots) as tree:
            for wish in wishes:
                tree.look(wish)
                for path, value in tree.affected(wish.path):
                    found.setdefault(path, value)
        return tuple(found.items())

    return await asyncio.to_thread(look)


async def put(roots: Roots, wishes: Sequence[Wish], deadline: Deadline) -> None:
    """Write them, in order; some may be written when it fails. In a thread: a write may
    wait for a lock of the kernel's, and then the thread ends after its own write.

    Raises KERNEL_REFUSED with the errno, OPERATION_TIMED_OUT.
    """
    stop = threading.Event()

    def write() -> None:
        with SysctlTree.opened(roots) as tree:
            for wish in wishes:
                if stop.is_set() or deadline.passed:
                    raise timed_out("sysctls: the time is over")
                tree.set(wish)

    await to_its_end(write, stop)


async def put_back(roots: Roots, values: Former) -> dict[str, str]:
    """Have them hold that again, the last one first; what could not be, and why."""

    def write() -> dict[str, str]:
        failed = {}
        with SysctlTree.opened(roots) as tree:
            for path, value in reversed(values):
                try:
                    tree.put_back(path, value)
                except OSError as error:
                    failed[path] = error.strerror or str(error)
        return failed

    return await asyncio.to_thread(write)

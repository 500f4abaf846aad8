"""Sysctls of the network: all or none, from an allow list.

Names are written as sysctl(8) takes them: the first separator in a name is its own, so
that "net.ipv4.conf.eth0/100.forwarding" and "net/ipv4/conf/eth0.100/forwarding" are one.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.core.errors import AgentError, Code, Reason, invalid, kernel_refused, timed_out
from agent.core.threads import to_its_end
from agent.linux.openat2 import Resolve, open_resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agent.core.deadlines import Deadline
    from agent.core.roots import Roots

_PAGE: Final = 1 << 16

_ALLOWED: Final = ("net/ipv4/", "net/ipv6/", "net/netfilter/", "net/mptcp/")
# Of a network namespace: netns_core_table of net/core/sysctl_net_core.c (Linux 6.12), and
# net/xfrm/xfrm_sysctl.c. The others of net/core are the kernel's, for all namespaces.
_ALLOWED_ONES: Final = frozenset(
    {
        "net/unix/max_dgram_qlen",
        "net/core/somaxconn",
        "net/core/optmem_max",
        "net/core/txrehash",
        "net/core/tstamp_allow_data",
        "net/core/rps_default_mask",
        "net/core/xfrm_acq_expires",
        "net/core/xfrm_aevent_etime",
        "net/core/xfrm_aevent_rseqth",
        "net/core/xfrm_larval_drop",
    }
)
_SECRET: Final = ("/tcp_fastopen_key", "/stable_secret")
# Nothing in /proc/sys is a link, and nothing is mounted there.
_WITHIN: Final = Resolve.BENEATH | Resolve.NO_SYMLINKS | Resolve.NO_MAGICLINKS | Resolve.NO_XDEV
# One that can only be written (route/flush), or holds nothing yet (stable_secret).
_NOT_READABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EIO})

_EVERYWHERE = re.compile(r"net/(ipv[46])/conf/(all|default)/(\w+)")
_FORWARDING: Final = "net/ipv4/ip_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One value: `name` as the request spells it, `path` below /proc/sys."""

    name: str
    path: str
    value: str

    @property
    def secret(self) -> bool:
        return self.path.endswith(_SECRET)

    def __str__(self) -> str:
        return self.name if self.secret else f"{self.name} = {self.value!r}"


async def apply(
    roots: Roots, values: Mapping[str, str], deadline: Deadline
) -> tuple[dict[str, str], dict[str, str]]:
    """What they are now and what they were, by the request's names; keys are in neither.

    Raises BAD_FIELD, SYSCTL_NOT_ALLOWED, KERNEL_REFUSED with the errno, OPERATION_TIMED_OUT;
    then all are as they were. In a thread: a write may wait for the kernel's network lock.
    """
    wishes = wishes_of(values)
    stop = threading.Event()

    def check() -> None:
        if stop.is_set() or deadline.passed:
            raise timed_out("sysctls: the time is over", hint="nothing has changed")

    return await to_its_end(lambda: _apply(roots, wishes, check), stop)


def wishes_of(values: Mapping[str, str]) -> tuple[Wish, ...]:
    """In the order in which they are written: what changes others comes before those.

    Raises BAD_FIELD and SYSCTL_NOT_ALLOWED.
    """
    wishes = [_wish(name, value) for name, value in values.items()]
    by_path: dict[str, Wish] = {}
    for wish in wishes:
        other = by_path.setdefault(wish.path, wish)
        if other is not wish:
            text = f"values: {other.name!r} and {wish.name!r} are the same"
            raise invalid(text, field="values")
    return tuple(sorted(wishes, key=lambda wish: (rank(wish.path), wish.path)))


def path_of(name: str, field: str = "values") -> str:
    """`net/ipv4/...` for a name with dots or slashes. Raises BAD_FIELD."""
    first = re.search(r"[./]", name)
    if first is not None and first[0] == ".":
        name = name.translate(str.maketrans("./", "/."))
    if any(step in ("", ".", "..") for step in name.split("/")):
        raise invalid(
            f"{field}: {name[:100]!r} is not the name of a sysctl",
            field=field,
            hint="as in net.ipv4.ip_forward; dots in an interface's name are slashes there",
        )
    return name


def _wish(name: str, value: str) -> Wish:
    wish = Wish(name=name, path=path_of(name), value=value)
    if not wish.path.startswith(_ALLOWED) and wish.path not in _ALLOWED_ONES:
        raise _not_allowed(wish)
    return wish


def _not_allowed(wish: Wish) -> AgentError:
    return AgentError(
        f"{wish.name} may not be set",
        code=Code.PERMISSION_DENIED,
        reason=Reason.SYSCTL_NOT_ALLOWED,
        fields={"name": wish.name},
        hint="allowed are net.ipv4.*, net.ipv6.*, net.netfilter.*, net.mptcp.*,"
        " net.unix.max_dgram_qlen, and of net.core what belongs to a network namespace",
    )


def rank(path: str) -> int:
    """ip_forward sets `forwarding` everywhere, conf/all sets some of all interfaces."""
    if path == _FORWARDING:
        return 0
    return {"all": 1, "default": 2}.get(path.split("/")[3], 3) if "/conf/" in path else 3


def _apply(
    roots: Roots, wishes: tuple[Wish, ...], check: Callable[[], None]
) -> tuple[dict[str, str], dict[str, str]]:
    with SysctlTree.opened(roots) as tree:
        former = {wish: tree.look(wish) for wish in wishes}
        before: list[tuple[str, str]] = []
        try:
            for wish in wishes:
                check()
                before += tree.affected(wish.path)
                tree.set(wish)
            now = {wish: tree.look(wish) for wish in wishes}
            check()
        except AgentError as error:
            _put_back(tree, before, error)
            raise
    return _shown(now), _shown(former)


def _put_back(tree: SysctlTree, before: list[tuple[str, str]], error: AgentError) -> None:
    failures = []
    for path, value in reversed(before):
        try:
            tree.put_back(path, value)
        except OSError as failure:
            failures.append(f"{path}: {failure.strerror}")
    if failures:
        error.add_note("not undone: " + "; ".join(failures))
        error.fields["not_undone"] = "; ".join(failures)


def _shown(values: Mapping[Wish, str | None]) -> dict[str, str]:
    return {
        wish.name: value for wish, value in values.items() if value is not None and not wish.secret
    }


class SysctlTree:
    """/proc/sys, open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def opened(cls, roots: Roots) -> SysctlTree:
        return cls(os.open(roots.proc / "sys", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> SysctlTree:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def look(self, wish: Wish) -> str | None:
        """Raises KERNEL_REFUSED for one that is not there."""
        try:
            return self.read(wish.path)
        except OSError as error:
            raise _refused(error, wish, "read") from error

    def set(self, wish: Wish) -> None:
        try:
            self.write(wish.path, wish.value)
        except OSError as error:
            raise _refused(error, wish, "set") from error

    def put_back(self, path: str, value: str) -> None:
        # An interface may be gone by now, and its values with it.
        with suppress(FileNotFoundError):
            if self.read(path) != value:
                self.write(path, value)

    def affected(self, path: str) -> Iterator[tuple[str, str]]:
        """What a write to `path` may change, as it is now; what is put back first is last."""
        for other in (*self._others(path), path):
            with suppress(OSError):
                value = self.read(other)
                if value is not None:
                    yield other, value

    def _others(self, path: str) -> Iterator[str]:
        if path in (_FORWARDING, "net/ipv4/conf/all/forwarding"):
            yield "net/ipv4/conf/all/accept_redirects"
            yield from self._everywhere("ipv4", "forwarding")
        elif match := _EVERYWHERE.fullmatch(path):
            yield from self._everywhere(match[1], match[3])

    def _everywhere(self, family: str, leaf: str) -> Iterator[str]:
        """`leaf` of each interface: put back after "all" and "default", which may set them."""
        with suppress(OSError):
            folder = open_resolved(
                f"net/{family}/conf", os.O_RDONLY | os.O_DIRECTORY, below=self._fd, resolve=_WITHIN
            )
            try:
                names = set(os.listdir(folder))  # noqa: PTH208 - of a descriptor
            finally:
                os.close(folder)
            yield from (f"net/{family}/conf/{name}/{leaf}" for name in names - {"all", "default"})
            yield f"net/{family}/conf/default/{leaf}"
            yield f"net/{family}/conf/all/{leaf}"

    def read(self, path: str) -> str | None:
        """None for what can't be read."""
        try:
            fd = open_resolved(path, os.O_RDONLY, below=self._fd, resolve=_WITHIN)
            try:
                return os.pread(fd, _PAGE, 0).decode(errors="replace").rstrip("\n")
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _NOT_READABLE:
                return None
            raise

    def write(self, path: str, value: str) -> None:
        """In one write(2): each is a command of its own."""
        fd = open_resolved(path, os.O_WRONLY, below=self._fd, resolve=_WITHIN)
        try:
            os.write(fd, f"{value}\n".encode())
        finally:
            os.close(fd)


def _refused(error: OSError, wish: Wish, call: str) -> AgentError:
    hint = None
    match error.errno:
        case errno.ENOENT:
            hint = (
                "the kernel has none of that name: is the interface there under that name,"
                " and is what it belongs to loaded (net.netfilter.*: nf_conntrack)?"
            )
        case errno.EISDIR:
            hint = "that is a group of sysctls"
    return kernel_refused(error, doing=f"{call} {wish}", hint=hint)

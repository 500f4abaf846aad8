"""IPv6 of one interface, by its sysctls.

The files go by the interface's name of the moment and are those of the network namespace
that the calling thread is in (net/sysctl_net.c), so for another namespace a thread of its
own goes there. Writing may wait for the kernel's lock of the network, so it is always
done in a thread. Facts: Documentation/networking/ip-sysctl.rst.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from agent.core.errors import kernel_refused
from agent.linux import netns, pseudo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.core.roots import Roots

T = TypeVar("T")

_OVERRULES_FORWARDING = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipv6Settings:
    """None where the kernel has no such file: without IPv6, or with an MTU below 1,280."""

    enabled: bool | None = None
    accept_ra: bool | None = None


class LinkSysctls:
    """Of the interfaces of one network namespace, by a descriptor; None: our own."""

    def __init__(self, roots: Roots, namespace: int | None = None) -> None:
        self._directory = roots.proc / "sys/net/ipv6/conf"
        self._namespace = namespace

    async def read(self, name: str) -> Ipv6Settings:
        """What an interface has now."""
        return await self._there(lambda: _read(self._directory / name))

    async def write(self, name: str, wanted: Ipv6Settings) -> None:
        """Change what is not None. Raises KERNEL_REFUSED."""
        try:
            await self._there(lambda: _write(self._directory / name, wanted))
        except OSError as error:
            raise kernel_refused(error, doing=f"set IPv6 of {name}") from error

    async def _there(self, work: Callable[[], T]) -> T:
        namespace = self._namespace
        if namespace is None:
            return await asyncio.to_thread(work)
        return await asyncio.to_thread(_in_thread_of_its_own, namespace, work)


def _in_thread_of_its_own(namespace: int, work: Callable[[], T]) -> T:
    """A thread that could not come back from a namespace must not go on."""
    results: list[T] = []
    errors: list[OSError] = []

    def run() -> None:
        try:
            with netns.entered(namespace):
                results.append(work())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="sysctls", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _read(directory: Path) -> Ipv6Settings:
    disabled = _value(directory / "disable_ipv6")
    accepts = _value(directory / "accept_ra")
    if disabled is None or accepts is None:
        return Ipv6Settings()
    forwards = _value(directory / "forwarding") != "0"
    return Ipv6Settings(
        enabled=disabled == "0",
        accept_ra=accepts == _OVERRULES_FORWARDING or (accepts == "1" and not forwards),
    )


def _write(directory: Path, wanted: Ipv6Settings) -> None:
    if wanted.enabled is not None:
        pseudo.write(directory / "disable_ipv6", "0" if wanted.enabled else "1")
    if wanted.accept_ra is not None:
        # A router takes no advertisements unless it is told to all the same.
        forwards = _value(directory / "forwarding") != "0"
        on = _OVERRULES_FORWARDING if forwards else "1"
        pseudo.write(directory / "accept_ra", on if wanted.accept_ra else "0")


def _value(path: Path) -> str | None:
    text = pseudo.read_optional(path)
    return None if text is None else text.strip()

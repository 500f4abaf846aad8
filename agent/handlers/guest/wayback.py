"""Taking back what Sandbox.Create set up, by the note alone, the last part first.

Each step is fine with what was noted and not done, and one that fails stops none of the others.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.core.errors import AgentError
from agent.core.sandbox import NOTHING_MADE
from agent.handlers.guest import sysctls
from agent.handlers.network.dnsrecord import state_from

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.core.deadlines import Deadline
    from agent.core.sandbox import Made, SandboxRecord
    from agent.handlers.guest.modules import Modules
    from agent.handlers.guest.setup import SetupTools


class WayBack:
    """One way back; `lines` say what could not be taken back, and why."""

    def __init__(self, tools: SetupTools, modules: Modules, deadline: Deadline) -> None:
        self._tools = tools
        self._modules = modules
        self._deadline = deadline
        self.lines: list[str] = []

    async def go(self, record: SandboxRecord) -> Made:
        """What is still to be taken back."""
        made, left = record.made, NOTHING_MADE
        # Before DNS, whose files say the host name.
        if made.hostname is not None and not self._put_hostname_back(made.hostname):
            left = replace(left, hostname=made.hostname)
        if made.dns_changed and not await self._tried("DNS", lambda: self._put_dns_back(made)):
            left = replace(left, dns_changed=True, dns_before=made.dns_before)
        await self._tried("shared namespaces", lambda: self._tools.holder.remove(self._deadline))
        if kept := await self._put_sysctls_back(made):
            left = replace(left, sysctls=kept)
        if kept_modules := await self._unload(made):
            left = replace(left, modules=kept_modules)
        self._remove_group(record.identity.id)
        return left

    async def _tried(self, what: str, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with self._deadline.limit():
                await step()
        except TimeoutError:
            self.lines.append(f"{what}: the time is over")
        except (AgentError, OSError) as error:
            self.lines.append(f"{what}: {error}")
        else:
            return True
        return False

    async def _put_dns_back(self, made: Made) -> None:
        before = state_from(made.dns_before)
        if before is None or before.wanted is None:
            await self._tools.dns.clear(self._deadline)
        else:
            await self._tools.dns.apply(before.wanted, self._deadline)

    def _put_hostname_back(self, name: str) -> bool:
        try:
            self._tools.host_name.set(name)
        except OSError as error:
            self.lines.append(f"host name {name}: {error.strerror}")
            return False
        return True

    async def _put_sysctls_back(self, made: Made) -> tuple[tuple[str, str], ...]:
        """Those that could not be."""
        if not made.sysctls:
            return ()
        failed = await sysctls.put_back(self._tools.roots, made.sysctls)
        self.lines += [f"sysctl {path}: {why}" for path, why in failed.items()]
        return tuple((path, value) for path, value in made.sysctls if path in failed)

    async def _unload(self, made: Made) -> tuple[str, ...]:
        failed = await self._modules.unload(made.modules, self._deadline)
        self.lines += [f"module {name}: {why}" for name, why in failed.items()]
        return tuple(name for name in made.modules if name in failed)

    def _remove_group(self, sandbox_id: str) -> None:
        """What is in it was told of by whoever could not remove it, so it is no line of its own."""
        group = self._tools.roots.cgroup / "pods" / sandbox_id
        try:
            group.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
                self.lines.append(f"cgroup {group}: {error.strerror}")

"""The firewall's rules as text: read and replaced by the guest's own tools.

nft takes all of it as one transaction. iptables-restore has one for each table, so what
a refusal in a later table leaves half-done is put back from what was saved before. One
call at a time: a reader must not see the middle of it either.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from agent.core import commands
from agent.core.commands import PLAIN, CommandError, Setting
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason, exhausted, invalid, timed_out, wrong_state
from agent.core.network import FirewallFormat
from agent.core.undo import UndoStack
from agent.handlers.network import nftrules
from agent.handlers.network.iptablesrules import completed, tables_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_LONGEST_ANSWER: Final = 15 << 20
"""A message has at most 16 MiB; see protocol/innkeeper/v1/README.md, limits."""

_PUT_BACK_SECONDS: Final = 30.0
_LOCKED: Final = "xtables lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tool:
    """Programs of a format; `package` is Debian's."""

    read: tuple[str, ...]
    package: str
    restore: str = ""


_TOOLS: Final = {
    FirewallFormat.NFTABLES: _Tool(read=("nft", "-j", "list", "ruleset"), package="nftables"),
    FirewallFormat.IPTABLES: _Tool(
        read=("iptables-save",), restore="iptables-restore", package="iptables"
    ),
    FirewallFormat.IP6TABLES: _Tool(
        read=("ip6tables-save",), restore="ip6tables-restore", package="iptables"
    ),
}


class Firewall:
    """Reads and replaces the rules. What the tool refuses is FIREWALL_REFUSED, with its words."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def get(
        self,
        kind: FirewallFormat | None,
        deadline: Deadline,
    ) -> tuple[FirewallFormat, bytes]:
        """The rules as the tool prints them; None: nftables where it is there, else iptables.

        Raises NOT_INSTALLED, KERNEL_REFUSED, LIMIT_REACHED, OPERATION_TIMED_OUT.
        """
        async with self._turn(deadline):
            if kind is not None:
                return kind, await _read(kind, deadline)
            try:
                return FirewallFormat.NFTABLES, await _read(FirewallFormat.NFTABLES, deadline)
            except AgentError as error:
                if error.reason is not Reason.NOT_INSTALLED:
                    raise
            return FirewallFormat.IPTABLES, await _read(FirewallFormat.IPTABLES, deadline)

    async def set(
        self,
        kind: FirewallFormat,
        rules: bytes,
        deadline: Deadline,
    ) -> tuple[FirewallFormat, bytes]:
        """Replace all rules in the format's sight; what they are then.

        Raises FIREWALL_REFUSED, NOT_INSTALLED, OPERATION_TIMED_OUT; then the rules are what
        they were, but for nft's when the deadline comes while the kernel takes them.
        """
        async with self._turn(deadline):
            if kind is FirewallFormat.NFTABLES:
                await _set_nftables(rules, deadline)
            else:
                await _set_iptables(kind, rules, deadline)
            return kind, await _read(kind, deadline)

    @asynccontextmanager
    async def _turn(self, deadline: Deadline) -> AsyncIterator[None]:
        try:
            async with deadline.limit():
                await self._lock.acquire()
        except TimeoutError:
            raise timed_out("the firewall: another change is not done yet") from None
        try:
            yield
        finally:
            self._lock.release()


async def _read(kind: FirewallFormat, deadline: Deadline, *more: str) -> bytes:
    tool = _TOOLS[kind]
    # A file of its own: there may be more rules than a command may print elsewhere.
    with os.fdopen(os.memfd_create("rules", os.MFD_CLOEXEC), "r+b") as output:
        setting = Setting(stdout=output.fileno())
        await _run(tool, (*tool.read, *more), deadline, setting=setting)
        size = os.fstat(output.fileno()).st_size
        if size > _LONGEST_ANSWER:
            raise exhausted(
                f"the firewall's rules are {size} bytes, more than an answer may have",
                reason=Reason.LIMIT_REACHED,
                hint="another format may be shorter",
            )
        return os.pread(output.fileno(), size, 0)


async def _set_nftables(rules: bytes, deadline: Deadline) -> None:
    # Megabytes of JSON take a while.
    wanted = await asyncio.to_thread(nftrules.transaction, rules)
    try:
        tool = _TOOLS[FirewallFormat.NFTABLES]
        await _run(tool, ("nft", "-j", "-f", "-"), deadline, input=wanted.text)
    except CommandError as error:
        said = wanted.in_their_words(error.result.stderr_tail)
        raise _refused("nft", said, nftrules.hint_for(said)) from error


async def _set_iptables(kind: FirewallFormat, rules: bytes, deadline: Deadline) -> None:
    before = await _read(kind, deadline, "-c")
    wanted = completed(rules, tables_of(before))
    tool = _TOOLS[kind]
    async with UndoStack("set the firewall") as undo:
        undo.push("the rules before", partial(_put_back, tool, before, tables_of(rules)))
        try:
            await _restore(tool, wanted.text, deadline)
        except CommandError as error:
            said = wanted.in_their_words(error.result.stderr_tail)
            if _LOCKED in said:
                raise timed_out(f"{tool.restore}: {said}") from error
            raise _refused(tool.restore, said) from error
        undo.commit()


async def _put_back(tool: _Tool, before: bytes, touched: frozenset[str]) -> None:
    """With their counters, and nothing in tables that were not there."""
    deadline = Deadline.after(_PUT_BACK_SECONDS)
    await _restore(tool, completed(before, touched).text, deadline, "-c")


async def _restore(tool: _Tool, text: bytes, deadline: Deadline, *options: str) -> None:
    # Whole seconds, and 0 would mean for ever.
    wait = str(max(1, int(deadline.left())))
    await _run(tool, (tool.restore, *options, "--wait", wait), deadline, input=text)


async def _run(
    tool: _Tool,
    argv: Sequence[str],
    deadline: Deadline,
    *,
    setting: Setting = PLAIN,
    input: bytes | None = None,  # noqa: A002 - the name that subprocess has taught everyone
) -> None:
    try:
        await commands.run(argv, deadline=deadline, setting=setting, input=input)
    except AgentError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _not_installed(argv[0], tool) from error
        raise


def _not_installed(program: str, tool: _Tool) -> AgentError:
    return wrong_state(
        f"the guest has no {program}",
        reason=Reason.NOT_INSTALLED,
        hint="use another kind, or an image that has it: innkeeper image build"
        f" --package {tool.package}",
        program=program,
    )


def _refused(program: str, said: str, hint: str | None = None) -> AgentError:
    return invalid(
        f"rules: {program}: {said or 'refused them without a word'}",
        reason=Reason.FIREWALL_REFUSED,
        hint=hint or "the rules are what they were",
        field="rules",
        program=program,
    )

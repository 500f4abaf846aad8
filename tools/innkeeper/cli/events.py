"""`innkeeper events`: what happens in a VM, as it happens."""

from __future__ import annotations

import re
import shlex
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from grpc import aio

from innkeeper.cli import again, endings, output, records, refs, times
from innkeeper.cli.descriptors import FdSink
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.shim.errors import printable
from innkeeper.shim.streams import error_info, reason_of
from innkeeper.v1 import sandbox_pb2, sandbox_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from innkeeper.shim.client import Vm
    from innkeeper.v1.sandbox_pb2 import Event

_KIND = sandbox_pb2.DESCRIPTOR.enum_types_by_name["EventKind"]
_LAST_NUMBER = 2**64 - 1
_NUMBER = re.compile(r"[0-9]{1,8}")
_FILTERS = ("kind", "subject", "container")


def _complete_filter(incomplete: str) -> list[str]:
    known = [f"kind={word}" for word in records.words(_KIND)]
    return [word for word in known if word.startswith(incomplete)]


def events(
    vm: refs.VmArgument,
    *,
    since: Annotated[
        str,
        typer.Option(
            metavar="N|TIME",
            help="Begin after event N (0: with the oldest kept), or at a time: 10m, or RFC 3339.",
        ),
    ] = "",
    filter_: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="WHAT=VALUE",
            help="Only those: kind=process-exited, container=main, subject=main/backup."
            " Repeated, of the same WHAT either, of others both.",
            autocompletion=_complete_filter,
        ),
    ] = None,
    no_follow: Annotated[
        bool, typer.Option("--no-follow", help="End with the last one there is now.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="JSON lines, with all that is known.")
    ] = False,
) -> None:
    """Prints what happens in a VM, as it happens.

    From now on, or from an event on, until Ctrl-C. A line has the event's number, the
    time, the kind, what it is about, and the facts. When the way to the guest breaks
    and comes back, nothing is missing and nothing comes twice; the guest keeps the last
    4,096. Kinds: container-created, -started, -paused, -resumed, -removed, process-
    exited, out-of-memory, pressure, device-attached, storage-gone, health-changed and
    more (`--filter kind=x` names all).

    \b
    Examples:
      innkeeper events web
      innkeeper events --since 10m --filter kind=process-exited --filter kind=out-of-memory web
      innkeeper events --since 0 --no-follow --filter container=main web
      innkeeper events --json web | jq -c 'select(.exit.cause == "out-of-memory")'
    """
    wanted = parse_filters(filter_ or [])
    number, at = parse_since(since)
    follower = Follower(wanted=wanted, seen=number, not_before=at, ends=no_follow)
    wait_for(_events(vm, follower, json=json))


def parse_since(text: str) -> tuple[int | None, int]:
    """The number of an event (none: the newest), and microseconds since 1970; raises
    typer.BadParameter."""
    if not text:
        return None, 0
    if _NUMBER.fullmatch(text):
        return int(text), 0
    return 0, times.parse_since("--since", text)


def parse_filters(words: Sequence[str]) -> dict[str, set[str]]:
    """Values by name; raises typer.BadParameter."""
    found: dict[str, set[str]] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if name not in _FILTERS or not equals:
            raise typer.BadParameter(f"--filter {each}: write one of {', '.join(_FILTERS)} = VALUE")
        if name == "kind" and value not in (known := records.words(_KIND)):
            raise typer.BadParameter(f"--filter {each}: kinds are {', '.join(known)}")
        found.setdefault(name, set()).add(value)
    return found


def is_wanted(event: Event, wanted: Mapping[str, set[str]]) -> bool:
    """By what `parse_filters` made."""
    is_ = {
        "kind": records.word(_KIND, event.kind),
        "subject": event.subject,
        "container": event.subject.partition("/")[0],
    }
    return all(is_[name] in values for name, values in wanted.items())


@dataclass(slots=True, kw_only=True)
class Follower:
    """Which events are shown, and how far they have come."""

    wanted: Mapping[str, set[str]] = field(default_factory=dict)
    seen: int | None = None
    """Number of the last one that came; None: not known yet, the newest."""
    not_before: int = 0
    """Microseconds since 1970."""
    ends: bool = False

    async def follow(self, vm: Vm, channel: aio.Channel) -> AsyncGenerator[Event, None]:
        """Raises aio.AioRpcError, CliError."""
        stub = sandbox_pb2_grpc.SandboxStub(channel)
        last = await again.ask(vm, channel, lambda: newest(stub))
        if self.seen is None:
            self.seen = last
        while not (self.ends and self.seen >= last):
            try:
                async with aclosing(again.stream(vm, channel, lambda: self._watch(stub))) as told:
                    async for event in told:
                        self.seen = event.sequence
                        yield event
                        if self.ends and self.seen >= last:
                            return
            except aio.AioRpcError as error:
                self._skip_what_is_gone(error)

    def _watch(
        self, stub: sandbox_pb2_grpc.SandboxAsyncStub
    ) -> aio.UnaryStreamCall[sandbox_pb2.WatchRequest, Event]:
        return stub.Watch(sandbox_pb2.WatchRequest(after_sequence=self.seen or 0))

    def is_shown(self, event: Event) -> bool:
        return event.at_unix_micros >= self.not_before and is_wanted(event, self.wanted)

    def _skip_what_is_gone(self, error: aio.AioRpcError) -> None:
        """Goes on at the oldest that is kept, and says so. Raises other errors."""
        oldest = _number(error, "oldest") if reason_of(error) == "OFFSET_NOT_KEPT" else 0
        if not oldest or oldest - 1 == self.seen:
            raise error
        output.warn(f"events {(self.seen or 0) + 1} to {oldest - 1} are no longer kept")
        self.seen = oldest - 1


async def newest(stub: sandbox_pb2_grpc.SandboxAsyncStub) -> int:
    """The number of the newest event. The guest names it when it refuses one to come."""
    call = stub.Watch(sandbox_pb2.WatchRequest(after_sequence=_LAST_NUMBER))
    try:
        async for event in call:
            return event.sequence
    except aio.AioRpcError as error:
        if reason_of(error) != "OFFSET_NOT_KEPT":
            raise
        return _number(error, "last")
    finally:
        call.cancel()
    return 0


def _number(error: aio.AioRpcError, name: str) -> int:
    info = error_info(error)
    text = info.metadata.get(name, "") if info is not None else ""
    return int(text) if text.isdigit() else 0


async def _events(vm_name: str, follower: Follower, *, json: bool) -> None:
    vm = find_vm(vm_name)
    sink = FdSink(1, "stdout")
    async with vm.channel() as channel, aclosing(follower.follow(vm, channel)) as told:
        async for event in told:
            if follower.is_shown(event):
                text = records.line(records.record(event)) if json else line(event)
                await sink.write(f"{text}\n".encode())


def line(event: Event) -> str:
    """ "41 2026-01-02T03:04:05.000000Z process-exited main exited with 3"."""
    facts = [f"{name}={_quoted(value)}" for name, value in sorted(event.details.items())]
    if event.HasField("exit"):
        facts = [endings.long(event.exit)]
    words = (
        *(str(event.sequence), times.stamp(event.at_unix_micros)),
        *(records.word(_KIND, event.kind), printable(event.subject) or "-", *facts),
    )
    return " ".join(words)


def _quoted(value: str) -> str:
    """One word, as a shell would take it."""
    return shlex.quote(printable(value).replace("\t", " "))

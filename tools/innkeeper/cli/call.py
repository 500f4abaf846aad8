"""`innkeeper call`: any method of the protocol, with JSON in and out."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from google.protobuf import json_format

from innkeeper.cli import options, output
from innkeeper.cli.errors import CliError
from innkeeper.cli.loop import wait_for
from innkeeper.cli.methods import (
    Method,
    find_method,
    is_known,
    known_methods,
    reflected_methods,
)
from innkeeper.shim.client import Vm, find_vm, list_vms
from innkeeper.shim.statedir import VmPaths

if TYPE_CHECKING:
    from google.protobuf.message import Message


def call(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VM] METHOD [JSON]",
            help="VM: may be left out when one runs. JSON: the request, else {}; - reads stdin.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Deadline of the call; 0 means none.")
    ] = 60,
    *,
    list_methods: Annotated[bool, typer.Option("--list", help="Show the methods.")] = False,
) -> None:
    """Calls a method of the guest's agent, or of the VM's daemon (Host).

    The answer is printed as JSON; a stream of answers as JSON lines. A method
    that takes a stream of requests takes JSON lines. Fields have their names
    from the .proto files; bytes are base64.

    \b
    Examples:
      innkeeper call --list
      innkeeper call web Sandbox.Describe
      innkeeper call web Devices.Get '{"id": "base"}'
      innkeeper call web innkeeper.v1.Storages/Attach "$(cat storage.json)"
      innkeeper call Sandbox.Watch '{"after_sequence": 0}' --timeout 0
    """
    if list_methods:
        output.say("\n".join(known_methods()))
        return
    options.check_seconds("--timeout", timeout)
    name, method_name, text = split_words(words or [])
    if not name and method_name in {vm.name for vm in list_vms()}:
        raise CliError(
            f"VM {method_name}: which method?",
            hint=f"as in: innkeeper call {method_name} Devices.List; all: innkeeper call --list",
        )
    vm = find_vm(name) if name else _only_vm()
    method = find_in(vm, method_name)
    requests = parse_requests(method, sys.stdin.read() if text == "-" else text)
    wait_for(_call(vm, method, requests, timeout or None))


def split_words(words: list[str]) -> tuple[str, str, str]:
    """VM (or empty), method and request as text."""
    if not words or len(words) > 3:
        raise typer.BadParameter("write [VM] METHOD [JSON], as in: web Devices.List")
    method_first = len(words) == 1 or is_known(words[0]) or _looks_like_request(words[1])
    name, rest = ("", words) if method_first else (words[0], words[1:])
    if len(rest) > 2:
        raise typer.BadParameter(f"one word too many: {rest[2]!r}")
    return name, rest[0], rest[1] if rest[1:] else "{}"


def find_in(vm: Vm, text: str) -> Method:
    """A method of the protocol, else one that only this guest knows."""
    if is_known(text):
        return find_method(text, known_methods())
    target = f"unix:{VmPaths(directory=vm.directory).api}"
    with contextlib.suppress(grpc.RpcError):
        return find_method(text, {**known_methods(), **reflected_methods(target)})
    return find_method(text, known_methods())


def _looks_like_request(word: str) -> bool:
    return word == "-" or word.lstrip().startswith(("{", "["))


def _only_vm() -> Vm:
    vms = list_vms()
    if len(vms) == 1:
        return vms[0]
    names = ", ".join(vm.name for vm in vms)
    raise CliError(
        f"no VM was named, and {f'{len(vms)} run ({names})' if vms else 'none runs'}",
        hint="innkeeper call VM METHOD JSON" if vms else "innkeeper vm start NAME",
    )


def parse_requests(method: Method, text: str) -> list[Message]:
    """One message; for a stream of requests one for each line. Raises CliError."""
    if not method.descriptor.client_streaming:
        return [_parse(method, text)]
    return [_parse(method, line) for line in text.splitlines() if line.strip()]


def _parse(method: Method, text: str) -> Message:
    try:
        return json_format.Parse(text, method.request_type())
    except json_format.ParseError as error:
        fields = ", ".join(field.name for field in method.descriptor.input_type.fields)
        raise CliError(
            f"{method.name}: the request is not right: {error}",
            hint=f"fields of {method.descriptor.input_type.name}: {fields or 'none'}",
        ) from error


async def _call(vm: Vm, method: Method, requests: list[Message], timeout: float | None) -> None:
    streams = method.descriptor.server_streaming
    async with vm.channel() as channel:
        async for answer in method.call(channel, requests, timeout):
            output.say(to_json(answer, one_line=streams))


def to_json(message: Message, *, one_line: bool) -> str:
    """Fields by their names in the .proto files; those without a value too, unless
    they are messages."""
    record = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(record, indent=None if one_line else 2)

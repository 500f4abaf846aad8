"""What a shell offers for the word that is being typed; nothing when that takes long."""

from __future__ import annotations

import asyncio

import grpc
import typer  # noqa: TC002 - typer looks at the annotation

from innkeeper.shim.client import find_vm, list_vms
from innkeeper.shim.errors import ShimError
from innkeeper.v1 import containers_pb2, containers_pb2_grpc

_LONGEST = 1.0


def vms(incomplete: str) -> list[str]:
    """Names of the VMs that run."""
    try:
        return [vm.name for vm in list_vms() if vm.name.startswith(incomplete)]
    except (OSError, ShimError):
        return []


def vm_or_container(context: typer.Context, incomplete: str) -> list[str]:
    """The first word is a VM, the second a container of it, and others are anything."""
    words = list(context.params.get("words") or [])
    if not words:
        return vms(incomplete)
    return _containers_of(words[0], incomplete) if len(words) == 1 else []


def containers(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the containers of the VM that is the word before."""
    return _containers_of(str(context.params.get("vm") or ""), incomplete)


def _containers_of(vm: str, incomplete: str) -> list[str]:
    try:
        ids = asyncio.run(_ids(vm))
    except (OSError, ShimError, grpc.RpcError):
        return []
    return [each for each in ids if each.startswith(incomplete)]


async def _ids(vm: str) -> list[str]:
    async with find_vm(vm).channel() as channel:
        stub = containers_pb2_grpc.ContainersStub(channel)
        answer = await stub.List(containers_pb2.ListContainersRequest(), timeout=_LONGEST)
    return [status.id for status in answer.containers]

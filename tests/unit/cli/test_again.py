"""How long one asks again for an answer that a broken connection swallowed."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import TYPE_CHECKING, cast

import grpc
import pytest
from grpc import aio

from innkeeper.cli.again import Patience, ask
from innkeeper.cli.errors import CliError
from innkeeper.shim.client import Vm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class IdleChannel:
    """Nothing happens on it."""

    def get_state(self) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        """It has changed already."""


CHANNEL = cast("aio.Channel", IdleChannel())


def failure(code: grpc.StatusCode) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), "Stream removed")


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    """One that runs: its directory is locked, by another than we."""
    with (tmp_path / "lock").open("wb") as lock:
        whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, whole)
        yield Vm(name="web", directory=tmp_path, daemon_pid=os.getpid())


async def test_a_call_is_made_again_until_there_is_an_answer(vm: Vm) -> None:
    failures = [failure(grpc.StatusCode.UNAVAILABLE), failure(grpc.StatusCode.UNKNOWN)]

    async def call() -> str:
        if failures:
            raise failures.pop()
        return "answer"

    assert await ask(vm, CHANNEL, call) == "answer"


async def test_an_answer_that_is_a_refusal_is_one(vm: Vm) -> None:
    with pytest.raises(aio.AioRpcError):
        await Patience(vm, CHANNEL).pause(failure(grpc.StatusCode.NOT_FOUND))


async def test_patience_ends(vm: Vm) -> None:
    with pytest.raises(aio.AioRpcError):
        await Patience(vm, CHANNEL, seconds=0).pause(failure(grpc.StatusCode.UNAVAILABLE))


async def test_a_vm_that_was_stopped_is_not_waited_for(tmp_path: Path) -> None:
    vm = Vm(name="web", directory=tmp_path, daemon_pid=1)
    with pytest.raises(CliError, match="VM web: it was stopped meanwhile"):
        await Patience(vm, CHANNEL).pause(failure(grpc.StatusCode.UNAVAILABLE))

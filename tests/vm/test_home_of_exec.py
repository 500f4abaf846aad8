"""A container whose /etc/passwd answers nobody."""

from __future__ import annotations

import pytest

from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import Guest
from tests.vm.test_life_cycle import exec_request

pytestmark = [pytest.mark.vm, pytest.mark.containers]


async def test_a_passwd_that_is_a_fifo_holds_up_no_exec(guest: Guest) -> None:
    """crun looks HOME up in it when the specification has none, and waited without end."""
    script = "rm -f /etc/passwd; mkfifo /etc/passwd; touch /ready; exec sleep 1000"
    name = await guest.start(script)
    ready = exec_request(name, "while ! [ -e /ready ]; do sleep 0.05; done; echo $HOME")
    await guest.processes.Exec(ready, timeout=20)
    await guest.wait(name, ready.exec_id)
    second = exec_request(name, "echo $HOME")
    await guest.processes.Exec(second, timeout=10)
    ref = types.ProcessRef(container_id=name, exec_id=second.exec_id)
    assert (await guest.follow(ref)).stdout == b"/\n"
    await guest.remove(name)

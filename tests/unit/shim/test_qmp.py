"""The monitor: QEMU's answers, events and end, in our words."""

from __future__ import annotations

import socket

import pytest

from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.qmp import Monitor, QemuRefusedError
from tests.fakes.qmp import FakeQmp, connected

pytestmark = [pytest.mark.unit, pytest.mark.devices]


async def test_a_refusal_has_qemus_own_words() -> None:
    async with connected(FakeQmp()) as monitor:
        with pytest.raises(QemuRefusedError, match="QEMU refused device_del") as caught:
            await monitor.execute("device_del", {"id": "dev-none"})
    assert caught.value.text == "Device 'dev-none' not found"
    assert caught.value.is_unknown_device
    assert caught.value.reason is Reason.QEMU_REFUSED


async def test_an_event_is_known_before_the_answer_to_a_later_command() -> None:
    """That is how a caller can be sure that nothing was told of before."""
    qmp = FakeQmp()
    async with connected(qmp) as monitor:
        seen: list[str] = []
        monitor.on_event(lambda name, data: seen.append(name))
        for number in range(50):
            qmp.event(f"E{number}", {})
            await monitor.execute("query-status")
            assert seen[-1] == f"E{number}"
    assert len(seen) == 50


async def test_a_handler_that_fails_does_not_take_events_from_others() -> None:
    qmp = FakeQmp()
    async with connected(qmp) as monitor:
        seen: list[str] = []

        def fail(name: str, data: object) -> None:
            raise ValueError(name)

        monitor.on_event(fail)
        monitor.on_event(lambda name, data: seen.append(name))
        qmp.event("ONE", {})
        await monitor.execute("query-status")
    assert seen == ["ONE"]


async def test_a_qemu_that_has_ended_is_said_as_such() -> None:
    qmp = FakeQmp()
    async with connected(qmp) as monitor:
        qmp.hang_up()
        await monitor.closed.wait()
        with pytest.raises(ShimError) as caught:
            await monitor.execute("query-status")
    assert caught.value.reason is Reason.QEMU_GONE


async def test_a_qemu_that_ends_before_its_greeting_is_gone() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    monitor = Monitor("fake")
    with pytest.raises(ShimError) as caught:
        await monitor.connect(ours)
    assert caught.value.reason is Reason.QEMU_GONE
    await monitor.close()

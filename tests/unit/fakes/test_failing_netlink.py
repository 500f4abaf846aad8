"""The fake that fails one change."""

from __future__ import annotations

import errno

import pytest

from agent.core.deadlines import Deadline
from agent.core.netlink import Change, NetlinkRefusal
from tests.fakes.failing_netlink import FailingNetlink
from tests.fakes.netlink_messages import AnsweringNetlink

pytestmark = [pytest.mark.unit, pytest.mark.network]

CHANGES = tuple(Change(what=f"change {n}", type=24, flags=0, payload=b"") for n in range(1, 5))


@pytest.mark.parametrize(("done", "made"), [(False, 1), (True, 2)])
async def test_the_second_change_fails_once(done: bool, made: int) -> None:
    below = AnsweringNetlink(lambda question: [])
    netlink = FailingNetlink(below, 2, done=done)
    with pytest.raises(NetlinkRefusal, match="change 2: Input/output error") as caught:
        await netlink.change(*CHANGES, deadline=Deadline.after(60))
    assert caught.value.errno == errno.EIO
    assert below.changes == list(CHANGES[:made]) == netlink.made
    await netlink.change(*CHANGES, deadline=Deadline.after(60))
    assert len(below.changes) == made + 4


async def test_number_0_counts_alone() -> None:
    netlink = FailingNetlink(AnsweringNetlink(lambda question: []), 0)
    await netlink.change(*CHANGES, deadline=Deadline.after(60))
    assert netlink.seen == 4

"""A namespace with two wires, e0 and e1, for tests of routes and neighbours.

e0 has 192.0.2.10/24 and 2001:db8::10/64, e1 198.51.100.10/24 and 2001:db8:1::10/64; their
other ends p0 and p1 are in the same namespace, so that both have a carrier. No address is
checked for duplicates: its routes would come late, in the middle of a test.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.core.errors import AgentError
from agent.core.network import RouteSet, RoutesState, RuleSet
from agent.handlers.network.routes import Routes
from tests.fakes.failing_netlink import FailingNetlink
from tests.fakes.route_words import wish
from tests.privileged.netlab import Lab, lab

_SETUP = """
link set lo up
link add e0 type veth peer name p0
link add e1 type veth peer name p1
link set e0 addrgenmode none
link set p0 addrgenmode none
link set e1 addrgenmode none
link set p1 addrgenmode none
link set e0 up
link set p0 up
link set e1 up
link set p1 up
addr add 192.0.2.10/24 dev e0
addr add 198.51.100.10/24 dev e1
addr add 2001:db8::10/64 dev e0 nodad
addr add 2001:db8:1::10/64 dev e1 nodad
addr add fe80::a/64 dev e0 nodad
addr add fe80::b/64 dev e1 nodad
"""


@contextlib.asynccontextmanager
async def wired() -> AsyncIterator[Lab]:
    """The namespace while the block runs."""
    async with lab() as net:
        batch(net, _SETUP)
        yield net


def batch(net: Lab, commands: str, options: str = "") -> str:
    """Lines for ip(8), in one process; what it says. IPv6 by its addresses: ::/0."""
    return net.run("sh", "-ec", f"{_ip()} {options} -batch - <<'END'\n{commands}\nEND")


async def apply(net: Lab, *sets: RouteSet, rules: tuple[RuleSet, ...] = ()) -> RoutesState:
    """Apply, and once more: the second time sends nothing and tells nothing."""
    state = await Routes(net.netlink).apply(wish(*sets, rules=rules), net.deadline)
    counting = FailingNetlink(net.netlink, 0)
    again = await Routes(counting).apply(wish(*sets, rules=rules), net.deadline)
    assert (counting.seen, again.changed) == (0, ())
    assert (again.routes, again.rules) == (state.routes, state.rules)
    return state


def routes(net: Lab, *, v6: bool = False, table: str = "main") -> list[dict[str, Any]]:
    """What `ip -d -j route` tells of a table, without what is on the way."""
    family = "-6" if v6 else "-4"
    if table not in _tables(net, family):
        return []
    found = net.ip("-d", "-j", family, "route", "show", "table", table)
    return [route for route in found if route.get("protocol") not in ("kernel", "ra")]


def _tables(net: Lab, family: str) -> set[str]:
    """A table that has no route is not there, and ip fails."""
    everything = net.ip("-j", family, "route", "show", "table", "all")
    return {"main"} | {str(route.get("table", "main")) for route in everything}


def everything(net: Lab) -> str:
    """All routes and rules of both families, as the real ip tells them, but the local
    table: its IPv6 routes come a moment after their addresses."""
    told = "".join(
        batch(net, "route show table all\nrule show", family) for family in ("-4 -d", "-6 -d")
    )
    return "".join(line for line in told.splitlines(True) if "table local" not in line)


def assert_put_back(error: AgentError) -> None:
    assert "not_undone" not in error.fields, error.fields


def _ip() -> str:
    """By its path: a shell that is busybox prefers its own ip, which knows less."""
    return shutil.which("ip") or pytest.skip("ip is not installed here")

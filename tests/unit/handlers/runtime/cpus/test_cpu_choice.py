"""Which CPUs a container gets for itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cpus import parse_cpus, spell_cpus
from agent.handlers.runtime.cpus.cpu_choice import Grant, Supply, share_out

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def choose(
    count: int,
    online: str,
    *,
    cores: tuple[str, ...] = (),
    bound: Mapping[str, str] | None = None,
    has: str = "",
) -> str:
    """What one container gets of the CPUs that are online."""
    supply = Supply(
        online=parse_cpus(online),
        cores=frozenset(parse_cpus(core) for core in cores),
        bound={group: parse_cpus(cpus) for group, cpus in (bound or {}).items()},
    )
    grant = Grant(cgroup="/pods/s/a", count=count, cpus=parse_cpus(has))
    return spell_cpus(share_out({"a": grant}, supply)["a"])


@pytest.mark.parametrize(
    ("count", "online", "chosen"),
    [(1, "0-2", "2"), (2, "0-3", "2-3"), (2, "0,2,5", "2,5"), (3, "0-3", "1-3")],
)
def test_the_highest_are_taken(count: int, online: str, chosen: str) -> None:
    assert choose(count, online) == chosen


@pytest.mark.parametrize(("count", "online"), [(4, "0-3"), (9, "0-3"), (1, "0")])
def test_one_stays_for_everybody(count: int, online: str) -> None:
    """The lowest: on an x86 it can't go offline either."""
    assert choose(count, online) == spell_cpus(parse_cpus(online) - {0})


THREADS = ("0,4", "1,5", "2,6", "3,7")
"""Four cores of two threads, numbered as most firmware does."""


@pytest.mark.parametrize(
    ("count", "chosen"), [(2, "3,7"), (4, "2-3,6-7"), (3, "3-4,7"), (1, "4"), (7, "1-7")]
)
def test_whole_cores_come_first(count: int, chosen: str) -> None:
    """Threads of one core share its units. CPU 0 is everybody's, so CPU 4 is no whole core,
    and a single thread is taken from there: the others stay whole for those to come."""
    assert choose(count, "0-7", cores=THREADS) == chosen


def test_a_core_that_is_split_already_is_used_up_before_another_is_split() -> None:
    grants = {
        "a": Grant(cgroup="/pods/s/a", count=1, cpus=frozenset({7})),
        "b": Grant(cgroup="/pods/s/b", count=1),
    }
    cores = frozenset(parse_cpus(core) for core in THREADS)
    free = Supply(online=parse_cpus("0-3,5-7"), cores=cores, bound={})
    assert share_out(grants, free)["b"] == {3}


def test_one_that_gets_more_gets_the_other_half_of_its_core() -> None:
    assert choose(2, "0-7", cores=THREADS, has="6") == "2,6"


def test_a_core_of_one_thread_is_whole() -> None:
    """Where the sibling is offline."""
    assert choose(1, "0-6", cores=("0,4", "1,5", "2,6", "3")) == "3"


def test_what_it_has_it_keeps() -> None:
    assert choose(2, "0-3", has="1") == "1,3"
    assert choose(1, "0-3", has="1-2") == "2"


def test_what_went_offline_is_replaced() -> None:
    assert choose(2, "0-2", has="2-3") == "1-2"


def test_a_neighbour_keeps_one_of_the_cpus_it_is_bound_to() -> None:
    """The kernel refuses a set that holds all of another group's cpuset.cpus."""
    assert choose(1, "0-3", bound={"/pods/s/b": "3"}) == "2"
    assert choose(2, "0-3", bound={"/pods/s/b": "2-3"}) == "1,3"
    assert choose(3, "0-3", bound={"/pods/s/b": "2-3"}) == "1,3"


def test_its_own_cpuset_is_no_neighbours() -> None:
    assert choose(1, "0-3", bound={"/pods/s/a": "3"}) == "3"


def test_those_who_were_first_are_filled_up_first() -> None:
    grants = {
        "a": Grant(cgroup="/pods/s/a", count=2, cpus=frozenset({3})),
        "b": Grant(cgroup="/pods/s/b", count=2),
    }
    shares = share_out(grants, Supply(online=parse_cpus("0-3"), bound={}))
    assert shares == {"a": {2, 3}, "b": {1}}


@given(
    online=st.frozensets(st.integers(0, 15), min_size=1),
    wants=st.lists(st.tuples(st.integers(0, 6), st.frozensets(st.integers(0, 15))), max_size=5),
)
def test_shares_never_meet_and_never_are_all(
    online: frozenset[int], wants: list[tuple[int, frozenset[int]]]
) -> None:
    taken = frozenset[int]()
    grants = {}
    for index, (count, cpus) in enumerate(wants):
        had = frozenset(cpus - taken - {min(online)})
        taken |= had
        grants[str(index)] = Grant(cgroup=f"/pods/s/{index}", count=count, cpus=had)
    shares = share_out(grants, Supply(online=online, bound={}))
    together = [cpu for share in shares.values() for cpu in share]
    assert len(together) == len(set(together))
    assert set(together) <= online - {min(online)}
    # Nobody is short while there is one left to give.
    short = [name for name, grant in grants.items() if len(shares[name]) < grant.count]
    assert not short or set(together) == online - {min(online)}

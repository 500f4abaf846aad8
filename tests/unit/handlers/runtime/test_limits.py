"""Limits of updates: what is named changes, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.handlers.runtime.limits import for_creation, for_update

pytestmark = [pytest.mark.unit, pytest.mark.containers]

FILES = {
    "cpu.max": "20000 50000\n",
    "cpu.max.burst": "1000\n",
    "memory.max": "67108864\n",
    "pids.max": "100\n",
}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"cpu": {"quota": 30000}}, {"cpu": {}, "unified": {"cpu.max": "30000 50000"}}),
        ({"cpu": {"period": 90000}}, {"cpu": {}, "unified": {"cpu.max": "20000 90000"}}),
        ({"cpu": {"quota": -1}}, {"cpu": {}, "unified": {"cpu.max": "max 50000"}}),
        ({"cpu": {"quota": "max"}}, {"cpu": {}, "unified": {"cpu.max": "max 50000"}}),
        ({"cpu": {"shares": 512}}, {"cpu": {"shares": 512}}),
        ({"cpu": {"quota": 0, "shares": 2}}, {"cpu": {"shares": 2}}),
        ({"memory": {"swap": 100 << 20}}, {"memory": {"swap": 100 << 20, "limit": 64 << 20}}),
        ({"memory": {"swap": -1}}, {"memory": {"swap": -1}}),
        ({"memory": {"limit": "max"}}, {"memory": {"limit": -1}}),
        ({"memory": {"reservation": -5}}, {"memory": {"reservation": -1}}),
        ({"pids": {"limit": 5}}, {"pids": {"limit": 5}}),
        ({"pids": {"limit": -1}}, {"unified": {"pids.max": "max"}}),
        (
            {"hugepageLimits": [{"pageSize": "2MB", "limit": -1}, {"pageSize": "1GB", "limit": 0}]},
            {
                "hugepageLimits": [{"pageSize": "1GB", "limit": 0}],
                "unified": {"hugetlb.2MB.max": "max"},
            },
        ),
        ({"unified": {"memory.high": "-1"}}, {"unified": {"memory.high": "max"}}),
        ({"memory": None}, {}),
        ({}, {}),
    ],
)
def test_what_is_not_named_is_said_as_it_is(
    resources: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The runtime would set the other half of a file to its default."""
    assert for_update(resources, FILES) == expected


@pytest.mark.parametrize(("burst", "first"), [(500, "cpu.max.burst"), (5000, "cpu.max")])
def test_a_burst_is_never_above_the_quota_on_the_way(burst: int, first: str) -> None:
    """The kernel refuses that, so a lower burst is written before the quota."""
    whole = for_update({"cpu": {"quota": 5000, "burst": burst}}, FILES)
    assert next(iter(whole["unified"])) == first
    assert whole["unified"]["cpu.max.burst"] == str(burst)


def test_a_file_that_is_named_itself_counts() -> None:
    resources = {"cpu": {"quota": 1000}, "unified": {"cpu.max": "max 100000"}}
    assert for_update(resources, FILES)["unified"] == {"cpu.max": "max 100000"}


def test_memory_and_swap_together_need_a_limit_of_memory() -> None:
    with pytest.raises(AgentError) as caught:
        for_update({"memory": {"swap": 5}}, {"memory.max": "max\n"})
    assert caught.value.reason is Reason.BAD_SPEC


def test_a_new_group_has_no_limits() -> None:
    """-1 and "max" both mean that, wherever a limit is a number."""
    resources = {
        "memory": {"limit": -1, "swap": "max", "reservation": 5},
        "cpu": {"quota": -1, "period": 5000},
        "pids": {"limit": -1},
        "hugepageLimits": [{"pageSize": "2MB", "limit": "max"}],
        "unified": {"io.max": "8:0 rbps=max", "memory.max": "-1"},
    }
    assert for_creation(resources) == {
        "memory": {"reservation": 5},
        "cpu": {"period": 5000},
        "hugepageLimits": [],
        "unified": {"io.max": "8:0 rbps=max", "memory.max": "max"},
    }


@pytest.mark.parametrize(
    "resources",
    [
        {"memory": {"limit": "much"}},
        {"memory": {"limit": True}},
        {"memory": {"limit": 1.5}},
        {"memory": {"limit": 1 << 64}},
        {"memory": [1]},
        {"cpu": "all"},
        {"pids": 5},
        {"hugepageLimits": {"2MB": 1}},
        {"hugepageLimits": [5]},
        {"hugepageLimits": [{"pageSize": "../x", "limit": "much"}]},
    ],
)
def test_what_is_no_limit_is_named(resources: dict[str, Any]) -> None:
    for complete in (for_creation, lambda each: for_update(each, FILES)):
        with pytest.raises(AgentError) as caught:
            complete(resources)
        assert caught.value.reason is Reason.BAD_SPEC
        assert caught.value.fields["path"]


def test_a_size_of_pages_is_no_path() -> None:
    with pytest.raises(AgentError):
        for_update({"hugepageLimits": [{"pageSize": "../../x", "limit": -1}]}, FILES)

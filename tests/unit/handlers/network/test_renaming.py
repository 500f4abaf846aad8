"""Who gets which name, and by which steps: proved on a kernel of a few lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.handlers.network.names import is_temporary, temporary_name
from agent.handlers.network.renaming import assigned, steps

pytestmark = [pytest.mark.unit, pytest.mark.network]

NAMES = [f"eth{number}" for number in range(8)]


def run(now: dict[int, str], moves: tuple[tuple[int, str], ...]) -> dict[int, str]:
    """As the kernel does: a name that somebody has is refused (EEXIST)."""
    there = dict(now)
    for index, name in moves:
        assert name not in there.values(), f"{name} is in use"
        there[index] = name
    return there


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[int, str], dict[int, str]]:
    count = draw(st.integers(1, 6))
    names = draw(st.permutations(NAMES))[:count]
    now = dict(enumerate(names, start=2))
    asked = draw(st.lists(st.sampled_from(sorted(now)), unique=True))
    wanted = draw(st.permutations(NAMES))[: len(asked)]
    return now, dict(zip(asked, wanted, strict=True))


@given(worlds())
def test_every_wish_is_met_and_every_name_is_one_of_a_kind(
    world: tuple[dict[int, str], dict[int, str]],
) -> None:
    now, wanted = world
    final = assigned(now, wanted, {})
    assert final.keys() == now.keys()
    assert {index: final[index] for index in wanted} == wanted
    assert len(set(final.values())) == len(final)
    assert run(now, steps(now, final)) == final


@given(worlds())
def test_who_is_in_nobodys_way_keeps_its_name(
    world: tuple[dict[int, str], dict[int, str]],
) -> None:
    now, wanted = world
    final = assigned(now, wanted, {})
    for index, name in now.items():
        if index not in wanted and name not in wanted.values():
            assert final[index] == name


@given(st.integers(2, 12))
def test_a_circle_takes_one_step_more_than_it_has_members(length: int) -> None:
    now = {index: f"eth{index}" for index in range(2, 2 + length)}
    final = {index: now.get(index + 1, "eth2") for index in now}
    moves = steps(now, final)
    assert len(moves) == length + 1
    assert [name for _, name in moves if is_temporary(name)] == [temporary_name(2)]
    assert run(now, moves) == final


def test_nothing_to_do() -> None:
    assert steps({2: "eth0"}, {2: "eth0"}) == ()


def test_the_one_in_the_way_gets_the_name_that_this_one_had() -> None:
    assert assigned({2: "eth0", 3: "eth1"}, {2: "eth1"}, {}) == {2: "eth1", 3: "eth0"}


def test_or_its_own_where_that_is_taken_by_yet_another() -> None:
    now = {2: "eth0", 3: "eth1", 4: "eth2"}
    wanted = {2: "eth1", 4: "eth0"}
    assert assigned(now, wanted, {3: ["n2s0"]})[3] == "n2s0"
    assert assigned(now, wanted, {})[3] == "if0"
    assert assigned(now, wanted, {}, reserved={"if0"})[3] == "if1"


def test_one_that_was_left_with_a_temporary_name() -> None:
    now = {2: temporary_name(2), 3: "eth1"}
    assert assigned(now, {}, {2: ["eth1", "n2s0"]}) == {2: "n2s0", 3: "eth1"}
    # Whoever takes its successor's place does not get the temporary name.
    assert assigned(now, {2: "eth1"}, {}) == {2: "eth1", 3: "if0"}


def test_two_that_look_alike_keep_their_names() -> None:
    """Names that are not UTF-8 are spelled out, and another may have that for its name."""
    assert steps({1: "a", 2: "x", 3: "x"}, {1: "b", 2: "x", 3: "x"}) == ((1, "b"),)
    with pytest.raises(ValueError, match="not the names"):
        steps({1: "a", 2: "x", 3: "y"}, {1: "y", 2: "x", 3: "y"})

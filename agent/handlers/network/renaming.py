"""Who gets which name, and by which steps: pure.

A name is free once its holder has another one, so renames go along chains from their
free end, and a circle is opened by giving one of its members a temporary name. A step
is one change of the kernel and every one of them is possible when its turn comes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agent.handlers.network.names import fallback_name, is_temporary, temporary_name

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence


def assigned(
    now: Mapping[int, str],
    wanted: Mapping[int, str],
    own: Mapping[int, Sequence[str]],
    reserved: Container[str] = (),
) -> dict[int, str]:
    """The names that all shall have, by index, when those in `wanted` are given.

    A holder of a wanted name gets the one that its successor had, else one of its own (`own`: by
    its PCI path), else the first free fallback; so does one that an earlier agent left with
    a temporary name. `reserved` are names that none of these may get (alternative ones).
    """
    final = {index: name for index, name in now.items() if index not in wanted} | dict(wanted)
    taker = {name: index for index, name in wanted.items()}
    displaced = [
        index
        for index, name in now.items()
        if index not in wanted and (name in taker or is_temporary(name))
    ]
    for index in displaced:
        del final[index]
    for index in displaced:
        final[index] = _spare_name(index, now, taker, own, _Union(final.values(), reserved))
    return final


def steps(now: Mapping[int, str], final: Mapping[int, str]) -> tuple[tuple[int, str], ...]:
    """The renames, in an order in which each name is free; `final` has all of `now`, and
    gives no name to two (else ValueError: it would have no end).

    Two that keep theirs may look alike: what is not UTF-8 in a name is spelled out.
    """
    current = dict(now)
    todo = {index: name for index, name in final.items() if current.get(index) != name}
    names = Counter(final.values())
    if final.keys() != now.keys() or any(names[name] > 1 for name in todo.values()):
        raise ValueError(f"{final} are not the names of {now}")
    done: list[tuple[int, str]] = []

    def rename(index: int, name: str) -> None:
        current[index] = name
        done.append((index, name))

    while todo:
        held = set(current.values())
        free = [index for index, name in todo.items() if name not in held]
        if not free:
            index = next(iter(todo))
            rename(index, temporary_name(index))
            continue
        rename(free[0], todo.pop(free[0]))
    return tuple(done)


class _Union:
    """Names in one of two collections."""

    def __init__(self, names: Container[str], others: Container[str]) -> None:
        self._names = names
        self._others = others

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._others


def _spare_name(
    index: int,
    now: Mapping[int, str],
    taker: Mapping[str, int],
    own: Mapping[int, Sequence[str]],
    taken: Container[str],
) -> str:
    candidates = []
    if (successor := taker.get(now[index])) is not None and successor in now:
        candidates.append(now[successor])
    candidates += own.get(index, ())
    fitting = (name for name in candidates if name not in taken and not is_temporary(name))
    return next(fitting, None) or fallback_name(taken)

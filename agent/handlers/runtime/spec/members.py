"""JSON documents of the OCI specification, read with the place of every value.

An error names the place (`process.args[1]`), what is there and what belongs
there. Unknown members are left alone: the specification tells runtimes to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.core.errors import AgentError, Reason, invalid, wrong_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

UINT16 = (0, 2**16 - 1)
UINT32 = (0, 2**32 - 1)
UINT64 = (0, 2**64 - 1)
INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
"""Ranges of the specification's numbers (config.md, "Specification Types")."""

_DEEPEST = 64
"""Levels of a document; the specification has less than 10, and what reads it after
us (copy, json, crun) does so by recursion."""

_LONGEST_PLACE = 1000


def bad_spec(place: str, problem: str, *, hint: str | None = None) -> AgentError:
    where = place or "the document"
    return invalid(f"{where}: {problem}", reason=Reason.BAD_SPEC, hint=hint, path=place)


def not_supported(place: str, problem: str, *, hint: str | None = None) -> AgentError:
    """What is right by the specification, and would be left out, or done by half, here."""
    return wrong_state(
        f"{place}: {problem}"[:2000], reason=Reason.NOT_SUPPORTED, hint=hint, path=place[:200]
    )


@dataclass(frozen=True, slots=True)
class Json:
    """A value and its place."""

    value: Any
    place: str

    def get(self, name: str) -> Json | None:
        """A member of this object; None where it is absent or null."""
        value = self.members().get(name)
        return None if value is None else Json(value, self.below(name))

    def need(self, name: str) -> Json:
        found = self.get(name)
        if found is None:
            raise bad_spec(self.below(name), "is missing")
        return found

    def check(self, name: str, how: Callable[[Json], object]) -> None:
        """Have a member looked at, where it is there."""
        found = self.get(name)
        if found is not None:
            how(found)

    def fits(self, shape: Mapping[str, Callable[[Json], object]]) -> None:
        """Have every member of that shape looked at, where it is there."""
        for name, how in shape.items():
            self.check(name, how)

    def each_member(self, how: Callable[[Json], object]) -> None:
        """Have all members of an object looked at that has names of its own."""
        for name in self.members():
            how(self.need(name))

    def members(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self._wrong("an object")
        return self.value

    def items(self) -> Iterator[Json]:
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        for number, value in enumerate(self.value):
            yield Json(value, f"{self.place}[{number}]")

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def texts(self) -> list[str]:
        return [item.text() for item in self.items()]

    def each(self, how: Callable[[Json], object]) -> None:
        for item in self.items():
            how(item)

    def paths(self) -> list[str]:
        return [item.path() for item in self.items()]

    def path(self) -> str:
        """An absolute path."""
        text = self.text()
        if not text.startswith("/"):
            raise bad_spec(self.place, f"{_shown(text)} is not an absolute path")
        return text

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self._wrong("true or false")
        return self.value

    def one_of(self, *words: str) -> str:
        text = self.text()
        if text not in words:
            raise bad_spec(self.place, f"{_shown(text)} is none of {', '.join(words)}")
        return text

    def letters(self, known: str) -> str:
        text = self.text()
        if not set(text) <= set(known):
            raise bad_spec(self.place, f"{_shown(text)} is not made of the letters {known}")
        return text

    def number(self, low: int, high: int) -> int:
        """A whole number of that range."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._wrong("a whole number")
        if not low <= self.value <= high:
            raise bad_spec(self.place, f"{self.value} is not between {low} and {high}")
        return self.value

    def below(self, name: str) -> str:
        """The place of a member."""
        return f"{self.place}.{name}" if self.place else name

    def _wrong(self, expected: str) -> AgentError:
        return bad_spec(self.place, f"must be {expected}, not {_kind(self.value)}")


def within(limits: tuple[int, int]) -> Callable[[Json], int]:
    """A check for a whole number of that range."""
    return lambda value: value.number(*limits)


def among(*words: str) -> Callable[[Json], str]:
    """A check for one of these words."""
    return lambda value: value.one_of(*words)


def listed(how: Callable[[Json], object]) -> Callable[[Json], None]:
    """A check for a list, each of whose items `how` looks at."""
    return lambda value: value.each(how)


def parse(data: bytes) -> Json:
    """A whole document, an object at its top.

    Raises BAD_SPEC for what is not JSON or not UTF-8, for members that are
    there twice (runtimes differ in which one counts), and for texts that can't
    be passed to the kernel, which are those with a NUL or half a surrogate pair.
    """
    try:
        document = json.loads(
            data.decode("utf-8"), object_pairs_hook=_members, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise bad_spec("", f"is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise bad_spec("", "is nested too deeply") from None
    except ValueError as error:
        raise bad_spec("", f"is not JSON: {error}") from None
    root = Json(document, "")
    root.members()
    _check_texts(root)
    return root


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the member {name[:60]!r} is there twice in one object")
            seen.add(name)
    return members


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _check_texts(root: Json) -> None:
    """Depth first, one iterator a level: places are made only for what is wrong,
    so a big document takes no memory beyond its own."""
    way: list[tuple[str, Iterator[tuple[object, Any]]]] = [("", iter([("", root.value)]))]
    while way:
        place, values = way[-1]
        step = next(values, None)
        if step is None:
            way.pop()
            continue
        key, value = step
        if isinstance(key, str) and (problem := _text_problem(key)):
            raise bad_spec(place, problem)
        if isinstance(value, str) and (problem := _text_problem(value)):
            raise bad_spec(_step(place, key), problem)
        if not isinstance(value, dict | list):
            continue
        if len(way) > _DEEPEST:
            raise bad_spec("", "is nested too deeply", hint=f"at most {_DEEPEST} levels")
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        way.append((_step(place, key), iter(inside)))


def _step(place: str, key: object) -> str:
    """A place one level down; cut, for names may be as long as the document."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}"[:_LONGEST_PLACE] if place else str(key)[:_LONGEST_PLACE]


def _text_problem(text: str) -> str:
    if "\0" in text:
        return f"{_shown(text)} has a NUL, which no program can be given"
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        return f"{_shown(text)} has half a surrogate pair"
    return ""


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"

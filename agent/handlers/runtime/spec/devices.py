"""Devices in an OCI specification: what a container may touch, and the nodes it sees.

The host's entries and rules have the numbers of the host. An entry that a grant
claims becomes the guest's node. Of those that nobody claims only what means the same
on both sides stays: OCI's default devices, and a character device that the guest has
by that number and by that very name (/dev/fuse). Numbers alone prove nothing, because
both kernels give them out by themselves: the host's b 254:0 may be the guest's root
disk. So a block device is never the guest's by chance, and a character device of
another name (a VFIO group of the host, c 241:0) is left out.
Rules with exactly an entry's numbers go the way of the entry: what became of the entry
decides, and no number that was written is read again, so numbers that swap don't run
into each other.

OCI's default devices (config-linux.md, "Default Devices") are always allowed,
also where the specification brings rules of its own: a shell can't live without
/dev/null. Everything else is refused unless the host's rules or a grant say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.core.tree import SysfsTree
from agent.handlers.runtime.grants import Claim, User, clean, place, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.core.roots import Roots
    from agent.handlers.runtime.grants import Granted, PlacedNode
    from agent.handlers.runtime.spec.members import Json

_REFUSE_ALL = {"allow": False, "access": "rwm"}

_DEFAULTS: tuple[tuple[int | None, int | None, str], ...] = (
    (None, None, "m"),  # a node that can't be opened does no harm
    (1, 3, "rwm"),  # null
    (1, 5, "rwm"),  # zero
    (1, 7, "rwm"),  # full
    (1, 8, "rwm"),  # random
    (1, 9, "rwm"),  # urandom
    (5, 0, "rwm"),  # tty
    (5, 1, "rwm"),  # console
    (5, 2, "rwm"),  # ptmx
    (136, None, "rwm"),  # pts/*
)

_MOST_NUMBER = 2**32 - 1
_PERMISSION_BITS = 0o7777
"""Some hosts leave the bits of the file's type in."""

_ANY = (None, -1)
"""A rule without a number, or with -1 (as runc writes it), is for all numbers."""


class Numbers(NamedTuple):
    """A device as rules name it; type is "b" or "c"."""

    type: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.type} {self.major}:{self.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What becomes of a specification's devices with a list of grants.

    `rules` and `claims` are the host's words that stay whatever is granted later;
    `entries` are the host's own that stay; `dropped` says which ones did not.
    """

    rules: tuple[dict[str, Any], ...]
    claims: tuple[Claim, ...]
    entries: tuple[dict[str, Any], ...]
    placed: tuple[PlacedNode, ...]
    dropped: tuple[str, ...]


def check_entry(entry: Json) -> None:
    """An entry of linux.devices; raises BAD_SPEC with the place of what is wrong."""
    entry.need("path").path()
    kind = entry.need("type")
    kind.one_of("b", "c", "u", "p")
    if kind.text() != "p":
        for name in ("major", "minor"):
            entry.need(name).number(0, _MOST_NUMBER)
    entry.check("fileMode", lambda mode: mode.number(0, _MOST_NUMBER))
    for name in ("uid", "gid"):
        entry.check(name, lambda number: number.number(0, _MOST_NUMBER - 1))


def check_rule(rule: Json) -> None:
    """An entry of linux.resources.devices; raises BAD_SPEC with the place of what is wrong."""
    rule.need("allow").flag()
    rule.check("type", lambda kind: kind.one_of("a", "b", "c"))
    for name in ("major", "minor"):
        rule.check(name, lambda number: number.number(-1, _MOST_NUMBER))
    rule.check("access", lambda access: access.letters("rwm"))


def plan_devices(
    spec: dict[str, Any], granted: Sequence[Granted], in_guest: Callable[[Numbers], str | None]
) -> DevicePlan:
    """Decide on every entry and rule of a whole specification; raises BAD_FIELD.

    `in_guest` tells the path at which the guest has the device of these numbers.
    """
    linux = spec["linux"]
    entries = linux.get("devices") or []
    rules = (linux.get("resources") or {}).get("devices") or []
    allowed = _allowed(rules)
    claims = {clean(entry["path"]): _claim(entry, allowed) for entry in entries}
    placed = place(granted, claims, User.of(spec["process"]))
    taken = {node.path for node in placed}
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    for entry in entries:
        if clean(entry["path"]) not in taken:
            (kept if _stays(entry, in_guest) else dropped).append(entry)
    gone = _numbers_of(entries) - _numbers_of(kept)
    left = {clean(entry["path"]) for entry in kept}
    return DevicePlan(
        rules=tuple(_first_refuse([rule for rule in rules if _exact(rule) not in gone])),
        claims=tuple(claim for path, claim in claims.items() if path not in left),
        entries=tuple(kept),
        placed=placed,
        dropped=tuple(f"{entry['path']} ({_numbers(entry)})" for entry in dropped),
    )


def put_devices(spec: dict[str, Any], plan: DevicePlan) -> None:
    """Put the plan's nodes and the rules for all into a whole specification."""
    linux = spec["linux"]
    linux["devices"] = [*plan.entries, *map(_entry, plan.placed)]
    resources = dict(linux.get("resources") or {})
    linux["resources"] = {**resources, "devices": all_rules(plan.rules, plan.placed)}


def all_rules(
    rules: Iterable[dict[str, Any]], placed: Iterable[PlacedNode]
) -> list[dict[str, Any]]:
    """The whole list for the runtime, which never adds to what it had before.

    Grants come last: later rules win.
    """
    letters: dict[Numbers, str] = {}
    for each in placed:
        numbers = Numbers(each.node.type.value, each.node.major, each.node.minor)
        letters[numbers] = union((letters.get(numbers, ""), each.permissions))
    granted = [_allow(*numbers, access) for numbers, access in letters.items()]
    return [*rules, *_default_rules(), *granted]


def guest_path(roots: Roots, numbers: Numbers) -> str | None:
    """Where the guest's kernel has its device of these numbers (sysfs-dev in ABI/stable)."""
    folder = "block" if numbers.type == "b" else "char"
    device = roots.sys / "dev" / folder / f"{numbers.major}:{numbers.minor}"
    name = SysfsTree(roots=roots).properties(device).get("DEVNAME")
    return f"/dev/{name}" if name else None


def _claim(entry: dict[str, Any], allowed: dict[Numbers, str]) -> Claim:
    numbers, mode = _numbers(entry), entry.get("fileMode")
    return Claim(
        path=clean(entry["path"]),
        mode=None if mode is None else mode & _PERMISSION_BITS,
        uid=entry.get("uid"),
        gid=entry.get("gid"),
        access=allowed.get(numbers, "") if numbers else "",
    )


def _allowed(rules: Sequence[dict[str, Any]]) -> dict[Numbers, str]:
    """Letters that rules with exactly these numbers allow."""
    found: dict[Numbers, str] = {}
    for rule in rules:
        numbers = _exact(rule)
        if numbers and rule["allow"]:
            found[numbers] = union((found.get(numbers, ""), _access(rule)))
    return found


def _stays(entry: dict[str, Any], in_guest: Callable[[Numbers], str | None]) -> bool:
    numbers = _numbers(entry)
    if numbers is None or _is_default(numbers):
        return True
    return numbers.type == "c" and in_guest(numbers) == clean(entry["path"])


def _is_default(numbers: Numbers) -> bool:
    """Whether every container may use it in any case."""
    return numbers.type == "c" and any(
        numbers.major == major and minor in (None, numbers.minor) for major, minor, _ in _DEFAULTS
    )


def _numbers(entry: dict[str, Any]) -> Numbers | None:
    """None for a FIFO, which has none."""
    if entry["type"] == "p":
        return None
    return Numbers("b" if entry["type"] == "b" else "c", entry["major"], entry["minor"])


def _numbers_of(entries: Iterable[dict[str, Any]]) -> set[Numbers]:
    return {numbers for entry in entries if (numbers := _numbers(entry))}


def _exact(rule: dict[str, Any]) -> Numbers | None:
    """None for a rule of type `a`, and for one that leaves a number open."""
    kind, major, minor = rule.get("type"), rule.get("major"), rule.get("minor")
    if kind not in ("b", "c") or major in _ANY or minor in _ANY:
        return None
    return Numbers(kind, int(major), int(minor))


def _access(rule: dict[str, Any]) -> str:
    access = rule.get("access")
    return "rwm" if access is None else str(access)


def _first_refuse(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if rules:
        first = rules[0]
        everything = first.get("type") in (None, "a") and first.get("major") in _ANY
        if everything and not first.get("allow"):
            return rules
    return [_REFUSE_ALL, *rules]


def _default_rules() -> list[dict[str, Any]]:
    rules = [_allow("c", major, minor, access) for major, minor, access in _DEFAULTS]
    return [*rules, _allow("b", None, None, "m")]


def _allow(kind: str, major: int | None, minor: int | None, access: str) -> dict[str, Any]:
    numbers = {"major": major, "minor": minor}
    present = {name: number for name, number in numbers.items() if number is not None}
    return {"allow": True, "type": kind, **present, "access": access}


def _entry(placed: PlacedNode) -> dict[str, Any]:
    return {
        "path": placed.path,
        "type": placed.node.type.value,
        "major": placed.node.major,
        "minor": placed.node.minor,
        "fileMode": placed.mode,
        "uid": placed.uid,
        "gid": placed.gid,
    }

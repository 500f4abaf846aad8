"""Rules as JSON of libnftables, made into one transaction that leaves nothing else.

The input is what `nft -j list ruleset` prints, or commands as libnftables-json(5) has them.
A list says its objects' handles, which some versions of nft take for a position, and old
versions print maps before the chains that they lead to: both are mended here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from agent.core.errors import AgentError, Reason, invalid

_FLUSH: Final[dict[str, Any]] = {"flush": {"ruleset": None}}
_ORDER: Final = {"metainfo": 0, "table": 0, "chain": 1, "rule": 3}
_OTHERS: Final = 2
_COMMANDS: Final = frozenset(
    {"add", "replace", "create", "insert", "delete", "destroy", "list", "reset", "flush", "rename"}
)
_AT_INDEX = re.compile(r"(?<=command array at index )\d+")
_COMPAT: Final = "xtables compat expression"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """`text` is for `nft -j -f -`; `order` says which object of the input each one is."""

    text: bytes
    order: tuple[int, ...]

    def in_their_words(self, said: str) -> str:
        """nft's message, with indexes of the input."""
        return _AT_INDEX.sub(self._index, said)

    def _index(self, match: re.Match[str]) -> str:
        # The first object is our own.
        number = int(match[0]) - 1
        return str(self.order[number]) if 0 <= number < len(self.order) else match[0]


def transaction(rules: bytes) -> Transaction:
    """Raises FIREWALL_REFUSED for what is no list of objects. Empty: none are left."""
    objects = _objects(rules) if rules.strip() else []
    order = list(range(len(objects)))
    # The order of commands is the caller's.
    if not any(_COMMANDS & each.keys() for each in objects):
        order.sort(key=lambda number: _rank(objects[number]))
    wanted = [_without_handle(objects[number]) for number in order]
    text = json.dumps({"nftables": [_FLUSH, *wanted]}).encode()
    return Transaction(text=text, order=tuple(order))


def hint_for(said: str) -> str | None:
    if _COMPAT in said:
        return "these rules were made by iptables: set them in iptables' own format"
    return None


def _objects(rules: bytes) -> list[dict[str, Any]]:
    try:
        found = json.loads(rules)["nftables"]
    except json.JSONDecodeError as error:
        raise _refused(f"line {error.lineno} column {error.colno}: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _refused(str(error)) from error
    except (KeyError, TypeError) as error:
        raise _refused("there is no member nftables at the top") from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _refused("the member nftables is no list of objects")
    return found


def _rank(item: dict[str, Any]) -> int:
    return min((_ORDER.get(kind, _OTHERS) for kind in item), default=_OTHERS)


def _without_handle(item: dict[str, Any]) -> dict[str, Any]:
    if _COMMANDS & item.keys():
        return item
    return {
        kind: {key: value for key, value in content.items() if key != "handle"}
        if isinstance(content, dict)
        else content
        for kind, content in item.items()
    }


def _refused(why: str) -> AgentError:
    return invalid(
        f"rules: no JSON of libnftables: {why}",
        reason=Reason.FIREWALL_REFUSED,
        hint="as `nft -j list ruleset` prints it",
        field="rules",
    )

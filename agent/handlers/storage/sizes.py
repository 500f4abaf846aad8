"""Sizes in options, in any spelling."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.core.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.core.fileops import MountOption

_SIZE = re.compile(r"([0-9]+)(?:([kmgtp])i?)?b?", re.IGNORECASE)
_LETTERS = "kmgtp"


def parse_size(text: str, field: str) -> int:
    """Bytes of "2M", "2Mi", "2MB", "2MiB", "2m" or "2097152": a letter means powers of 1024, as
    the kernel's own memparse() has it. Raises BAD_FIELD.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise invalid(f"{text!r} is not a size, such as 64M, 64Mi or 67108864", field=field)
    letter = (found[2] or "").lower()
    return int(found[1]) << 10 * (_LETTERS.index(letter) + 1 if letter else 0)


def one_size(typed: int, words: Iterable[MountOption], key: str, field: str) -> int:
    """The size that a field or the option `key` (capitals or not) says, 0 for neither.

    Of several options the last one wins. Raises BAD_FIELD when field and option differ.
    """
    said = [word.value or "" for word in words if word.key.lower() == key]
    if not said:
        return typed
    size = parse_size(said[-1], "options")
    if typed and typed != size:
        raise invalid(
            f"the option {key}={said[-1]} says something else than {field} {typed}", field=field
        )
    return size

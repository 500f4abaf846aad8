"""What the name of an interface may be, in bytes, before the kernel is asked.

The kernel takes more than it keeps: `e%d` is a template and gives another name, and
`all` and `default` are interfaces without sysctls, as those words mean something else
there. Facts: dev_valid_name and __dev_alloc_name in net/core/dev.c, IFNAMSIZ in
<linux/if.h>, ALTIFNAMSIZ in <linux/netdevice.h>, sysctl_dev_name_is_allowed in
include/net/ip.h.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

from agent.core.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Container

NAME_BYTES: Final = 15
ALTNAME_BYTES: Final = 127

_NO_SYSCTLS = frozenset({"all", "default"})
_TEMPORARY = "~ik"
_IS_TEMPORARY = re.compile(r"~ik[1-9a-f][0-9a-f]{0,7}")
_FALLBACK = "if"

# Real indexes begin at 1 and count up.
_UNBORN = 0x7FFF0000


def check_name(text: str, field: str) -> None:
    """Raises BAD_FIELD for what is no name of an interface."""
    size = len(text.encode(errors="surrogatepass"))
    if not 1 <= size <= NAME_BYTES:
        raise _bad(text, field, f"it has {size} bytes, and a name has 1 to {NAME_BYTES}")
    _check_characters(text, field)
    if text in _NO_SYSCTLS:
        raise _bad(text, field, "it means something else in the names of sysctls")


def check_altname(text: str, field: str) -> None:
    """Raises BAD_FIELD for what is no alternative name."""
    size = len(text.encode(errors="surrogatepass"))
    if not 1 <= size <= ALTNAME_BYTES:
        raise _bad(
            text, field, f"it has {size} bytes, and an alternative name has 1 to {ALTNAME_BYTES}"
        )
    _check_characters(text, field)


def temporary_name(index: int) -> str:
    """The name that an interface may have for a moment: no two have the same one, it is
    never longer than 11 bytes, and whoever finds it knows whose it is."""
    return f"{_TEMPORARY}{index:x}"


def is_temporary(name: str) -> bool:
    """Whether a name is one of `temporary_name`."""
    return _IS_TEMPORARY.fullmatch(name) is not None


def unborn_name(number: int) -> str:
    """The temporary name of one that is being made and has no index yet."""
    return temporary_name(_UNBORN + number)


def is_unborn(name: str) -> bool:
    """Whether a name is one of `unborn_name`."""
    return is_temporary(name) and int(name.removeprefix(_TEMPORARY), 16) >= _UNBORN


def fallback_name(taken: Container[str]) -> str:
    """The first of if0, if1, ... that nobody has."""
    return next(name for n in itertools.count() if (name := f"{_FALLBACK}{n}") not in taken)


def _check_characters(text: str, field: str) -> None:
    if text in {".", ".."}:
        raise _bad(text, field, "it means a directory")
    wrong = sorted({char for char in text if not _fits(char)})
    if wrong:
        raise _bad(text, field, f"it must not have {' '.join(map(repr, wrong))}")
    if _IS_TEMPORARY.fullmatch(text):
        raise _bad(text, field, "names of this form are the agent's own")


def _fits(char: str) -> bool:
    # A byte that is not UTF-8 came in as a surrogate; the kernel's isspace() knows 0xa0.
    if "\ud800" <= char <= "\udfff":
        return False
    return char not in "/:%" and char.isprintable() and not char.isspace()


def _bad(text: str, field: str, why: str) -> Exception:
    return invalid(
        f"{text[:200]!r} can't be the name of an interface: {why}",
        field=field,
        hint="1 to 15 bytes, without `/`, `:`, `%`, white space or control characters",
    )

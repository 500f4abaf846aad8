"""Options that say what a field of the source says too, and those that must not be options.

Options are kept, shown and logged as they were asked for. So what is secret has a field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.core.fileops import MountOption


def refuse_secrets(entries: Iterable[str], keys: Collection[str], field: str) -> None:
    """BAD_FIELD for a word that would carry a secret; the text says only its key.

    To be called before anything else reads the words: its errors may repeat them.
    """
    for entry in entries:
        for word in entry.split(","):
            key = word.partition("=")[0].strip().lower()
            if key in keys:
                raise invalid(
                    f"the mount option {key!r} is not possible here: options are kept and shown",
                    hint=f"use {field}, which is not" if field else None,
                    field="options",
                )


def named(options: Iterable[MountOption], keys: Collection[str]) -> str | None:
    """The value of the last option with one of these keys; "" for a bare word, None for none."""
    found = [option.value or "" for option in options if option.key in keys]
    return found[-1] if found else None


def without(options: Iterable[MountOption], keys: Collection[str]) -> tuple[MountOption, ...]:
    """The options but those with one of these keys."""
    return tuple(option for option in options if option.key not in keys)


def refuse_both(
    options: Iterable[MountOption], keys: Collection[str], value: str, field: str
) -> None:
    """BAD_FIELD when an option says otherwise than the field, which is set when not empty."""
    told = named(options, keys)
    if value and told is not None and told != value:
        raise invalid(
            f"{field} says {value!r}, an option says {told!r}", hint="say it once", field=field
        )

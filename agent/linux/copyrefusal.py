"""What a copy refuses by itself, where the kernel has no errno for it."""

from __future__ import annotations

from enum import StrEnum


class Why(StrEnum):
    """The kinds of refusals."""

    BAD = "bad"
    """What was sent makes no sense: sizes, an order, a path."""
    RANGE = "range"
    """What was asked for is beyond the file's end."""
    TYPE = "type"
    """It is nothing that can be copied."""
    EXISTS = "exists"
    """It is there already, and only new ones were asked for."""


class CopyRefusal(Exception):  # noqa: N818 - an answer, not an error of ours
    """A refusal: `path` is the entry's, as it was sent."""

    def __init__(self, why: Why, text: str, path: str) -> None:
        super().__init__(text)
        self.why = why
        self.text = text
        self.path = path

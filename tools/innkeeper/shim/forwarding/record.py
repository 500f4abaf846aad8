"""The forwards of a running VM, in a file of its directory, for whoever wants to see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from innkeeper.shim.forwarding.words import ForwardState

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FILE = "forwards.json"


def write(directory: Path, states: Iterable[ForwardState]) -> None:
    """Whole or not at all."""
    file = directory / _FILE
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps([state.to_record() for state in states]))
    fresh.rename(file)


def read(directory: Path) -> tuple[ForwardState, ...]:
    """None for a VM without forwards, and for one that has just ended."""
    try:
        records = json.loads((directory / _FILE).read_text())
    except OSError:
        return ()
    return tuple(ForwardState(**record) for record in records)

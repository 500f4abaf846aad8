"""How often a test does what shows nothing new the second time, but may go wrong the hundredth.

Under emulation a process costs ten times as much and more: there a fifth is enough,
but for the long runs (`make soak`).
"""

from __future__ import annotations

import os

FEWER = "INNKEEPER_TESTS_FEWER"


def often(count: int) -> int:
    return count // 5 if os.environ.get(FEWER) == "1" else count


STEP = 5 // often(5)
"""From one to the next, where each place in a row is tried: each, or every fifth."""

"""The C library, and how its failures become OSError.

Every wrapper in `agent.linux` is: call, `check`, return. An error names the
call, carries the errno and has the object (path, descriptor) as `filename`.
"""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def failure(number: int, call: str, obj: object = None) -> OSError:
    """The OSError of `call` on `obj`; Python picks the subclass by the errno."""
    text = f"{call}: {os.strerror(number)}"
    return OSError(number, text) if obj is None else OSError(number, text, str(obj))


def check(result: int, call: str, obj: object = None) -> int:
    """Return `result`, or raise what errno says when it is negative."""
    if result < 0:
        raise failure(ctypes.get_errno(), call, obj)
    return result

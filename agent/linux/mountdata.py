"""The limits of the two ways to hand options to the kernel, and the text that mount(2) takes.

One string of fsconfig(2) holds 255 bytes. mount(2) takes all options as one text of less than
a page and cuts what is longer without a word, so that a file system finds half a path.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from agent.linux.mountcalls import FileRefusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.linux.mountcalls import MountOption

STRING_LIMIT = 255
DATA_LIMIT = 4095


def fits_strings(texts: Iterable[str]) -> bool:
    """Whether fsconfig(2) takes each of them."""
    return all(len(os.fsencode(text)) <= STRING_LIMIT for text in texts)


def strings(options: Iterable[MountOption]) -> list[str]:
    """The keys and values of options."""
    return [text for option in options for text in (option.key, option.value or "")]


def mount_data(options: Iterable[MountOption], target: str) -> str:
    """The options as mount(2) takes them.

    Raises FileRefusal (EINVAL) that says so when they are too long for it.
    """
    data = ",".join(map(_word, options))
    size = len(os.fsencode(data))
    if size > DATA_LIMIT:
        why = f"options too long: {size} bytes, mount(2) takes {DATA_LIMIT}"
        raise FileRefusal(errno.EINVAL, f"mount: {why}", target, log=(why,))
    return data


def _word(option: MountOption) -> str:
    if option.value is None:
        return option.key
    # The categories of an SELinux label hold commas: the kernel takes them in quotes.
    value = f'"{option.value}"' if "," in option.value else option.value
    return f"{option.key}={value}"

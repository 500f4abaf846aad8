"""Options as one text, and the limits of both ways."""

from __future__ import annotations

import errno

import pytest

from agent.linux.mountcalls import FileRefusal, MountOption
from agent.linux.mountdata import fits_strings, mount_data, strings

pytestmark = [pytest.mark.unit, pytest.mark.storage]


def test_words_and_values_in_order() -> None:
    options = [
        MountOption(key="a", value="1"),
        MountOption(key="b"),
        MountOption(key="c", value=""),
    ]
    assert mount_data(options, "/x") == "a=1,b,c="
    assert strings(options) == ["a", "1", "b", "", "c", ""]
    assert mount_data([], "/x") == ""


def test_a_label_with_categories_goes_in_quotes() -> None:
    """mount(8), the options context= and so on."""
    label = MountOption(key="context", value="system_u:object_r:container_file_t:s0:c1,c2")
    assert mount_data([label], "/x") == 'context="system_u:object_r:container_file_t:s0:c1,c2"'


def test_a_secret_reaches_the_kernel() -> None:
    assert mount_data([MountOption(key="pass", value="p", secret=True)], "/x") == "pass=p"


@pytest.mark.parametrize("size", [4096, 5468])
def test_a_page_is_too_long(size: int) -> None:
    """A page holds the text and its NUL."""
    with pytest.raises(FileRefusal, match="options too long") as caught:
        mount_data([MountOption(key="k", value="v" * (size - 2))], "/x")
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename == "/x"
    assert caught.value.log == (f"options too long: {size} bytes, mount(2) takes 4095",)


@pytest.mark.parametrize("size", [4094, 4095])
def test_just_under_a_page_is_not(size: int) -> None:
    assert len(mount_data([MountOption(key="k", value="v" * (size - 2))], "/x")) == size


def test_letters_of_several_bytes_count_as_such() -> None:
    assert fits_strings(["x" * 255, "é" * 127])
    assert not fits_strings(["é" * 128])
    assert not fits_strings(["ok", "x" * 256])
    with pytest.raises(FileRefusal, match="too long"):
        mount_data([MountOption(key="k", value="é" * 2048)], "/x")

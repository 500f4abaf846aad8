"""Mount options: fstab's words, as mount(2) takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Reason
from agent.handlers.storage.options import parse_options
from agent.linux.mounting import MountFlag

pytestmark = [pytest.mark.unit, pytest.mark.storage]

NONE = MountFlag(0)
# include/uapi/linux/mount.h
NUMBERS = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "mand": 64,
    "dirsync": 128,
    "nosymfollow": 256,
    "noatime": 1024,
    "nodiratime": 2048,
    "silent": 32768,
    "relatime": 1 << 21,
    "iversion": 1 << 23,
    "strictatime": 1 << 24,
    "lazytime": 1 << 25,
}
OPPOSITES = [
    ("ro", "rw"),
    ("nosuid", "suid"),
    ("nodev", "dev"),
    ("noexec", "exec"),
    ("relatime", "norelatime"),
    ("mand", "nomand"),
    ("iversion", "noiversion"),
    ("lazytime", "nolazytime"),
    ("silent", "loud"),
    ("sync", "async"),
    ("nodiratime", "diratime"),
    ("noatime", "atime"),
    ("strictatime", "nostrictatime"),
    ("nosymfollow", "symfollow"),
]


@pytest.mark.parametrize(("word", "number"), NUMBERS.items())
def test_words_are_the_kernels_flags(word: str, number: int) -> None:
    options = parse_options([word])
    assert (int(options.flags), options.data) == (number, "")


@pytest.mark.parametrize(("word", "opposite"), OPPOSITES)
def test_the_last_of_two_opposites_wins(word: str, opposite: str) -> None:
    """`suid` after `nosuid` clears the bit, and neither reaches the file system."""
    assert parse_options([word, opposite]) == parse_options([])
    assert parse_options([f"{word},{opposite}"]) == parse_options([])
    assert parse_options([opposite, word]) == parse_options([word])


def test_of_the_access_time_words_the_last_wins() -> None:
    """The kernel itself would let strictatime win over a later noatime."""
    assert parse_options(["strictatime", "noatime"]).flags == MountFlag.NOATIME
    assert parse_options(["noatime", "relatime"]).flags == MountFlag.RELATIME
    assert parse_options(["relatime", "strictatime"]).flags == MountFlag.STRICTATIME


def test_words_of_user_space_never_reach_the_kernel() -> None:
    entries = ["defaults", "_netdev", "x-systemd.automount", "nofail", "", "auto", "nouser"]
    assert parse_options([*entries, "size=1m"]).data == "size=1m"
    assert parse_options(["size=1m,mode=755"]).data == "size=1m,mode=755"
    assert parse_options(["x-a=b,c", "comment=hello", "noauto,users"]).data == "c"


def test_the_file_systems_own_words_go_to_it_in_order() -> None:
    options = parse_options(["data=ordered,ro", "barrier=1", "unknown_word"])
    assert options.data == "data=ordered,barrier=1,unknown_word"
    assert options.flags == MountFlag.RDONLY


def test_a_comma_inside_quotes_does_not_split() -> None:
    label = 'context="system_u:object_r:container_file_t:s0:c1,c2"'
    assert parse_options([f"ro,{label},noexec"], selinux=True).data == label
    assert parse_options(['a="x,y",b']).data == 'a="x,y",b'


def test_an_unquoted_label_of_its_own_is_one_label() -> None:
    """Categories hold commas; the kernel takes them in quotes."""
    options = parse_options(["context=system_u:object_r:container_file_t:s0:c1,c2"], selinux=True)
    assert options.data == 'context="system_u:object_r:container_file_t:s0:c1,c2"'
    assert parse_options(["context=a:b:c"], selinux=True).data == "context=a:b:c"


def test_labels_are_dropped_in_a_guest_without_selinux(caplog: pytest.LogCaptureFixture) -> None:
    assert parse_options(['context="a:b:c1,c2"', "noexec"]).data == ""
    assert "no SELinux" in caplog.text


def test_read_only_beats_every_option() -> None:
    assert parse_options(["rw"], read_only=True).flags == MountFlag.RDONLY


@pytest.mark.parametrize(
    "entry", ["bind", "remount,ro", "loop", "loop=/dev/loop3", "offset=512", "rshared", 'a="b', '"']
)
def test_what_a_plain_mount_cannot_do_is_refused(entry: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_options([entry])
    assert caught.value.reason is Reason.BAD_FIELD


def test_data_of_a_page_and_more_is_refused() -> None:
    """mount(2) copies one page and cuts the rest in silence."""
    assert len(parse_options(["x" * 4095]).data) == 4095
    with pytest.raises(AgentError, match="4096 bytes, the kernel takes 4095"):
        parse_options(["x" * 4096])
    with pytest.raises(AgentError, match="NUL"):
        parse_options(["a\0b"])


@given(st.lists(st.text(alphabet='abr,o"=x-', max_size=8), max_size=6))
def test_any_text_is_options_or_a_typed_refusal(entries: list[str]) -> None:
    refusal = None
    try:
        options = parse_options(entries)
    except AgentError as error:
        refusal = error.reason
    else:
        assert parse_options([options.data]).data == options.data
    assert refusal in (None, Reason.BAD_FIELD)

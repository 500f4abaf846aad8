"""Mount options: fstab's words, as the kernel takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import AgentError, Reason
from agent.core.fileops import MountOption
from agent.handlers.storage.options import MountOptions, parse_options
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


def shown(options: MountOptions) -> str:
    return ",".join(map(str, options.options))


@pytest.mark.parametrize(("word", "number"), NUMBERS.items())
def test_words_are_the_kernels_flags(word: str, number: int) -> None:
    options = parse_options([word])
    assert (int(options.flags), options.options) == (number, ())


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
    assert shown(parse_options([*entries, "size=1m"])) == "size=1m"
    assert shown(parse_options(["size=1m,mode=755"])) == "size=1m,mode=755"
    assert shown(parse_options(["x-a=b,c", "comment=hello", "noauto,users"])) == "c"


def test_the_file_systems_own_words_go_to_it_in_order() -> None:
    options = parse_options(["data=ordered,ro", "barrier=1", "unknown_word", "barrier=0", "e="])
    assert options.options == (
        MountOption(key="data", value="ordered"),
        MountOption(key="barrier", value="1"),
        MountOption(key="unknown_word"),
        MountOption(key="barrier", value="0"),
        MountOption(key="e", value=""),
    )
    assert options.flags == MountFlag.RDONLY


LABEL = "system_u:object_r:container_file_t:s0:c1,c2"


@pytest.mark.parametrize(
    "entry", [f'context="{LABEL}"', f"context={LABEL}", f'ro,context="{LABEL}",noexec']
)
def test_a_label_is_whole(entry: str) -> None:
    """Its categories hold commas: in quotes, or in an entry of its own."""
    options = parse_options([entry], selinux=True).options
    assert options == (MountOption(key="context", value=LABEL),)


def test_a_comma_inside_quotes_does_not_split() -> None:
    options = parse_options(['a="x,y",b', 'c="d"e'])
    assert options.options == (
        MountOption(key="a", value="x,y"),
        MountOption(key="b"),
        MountOption(key="c", value='"d"e'),
    )


@pytest.mark.parametrize("entry", ['password="hunter2', 'user=me,password="hunter2', '"hunter2'])
def test_a_quote_that_is_not_closed_shows_no_value(entry: str) -> None:
    with pytest.raises(AgentError, match="not closed") as raised:
        parse_options([entry])
    assert raised.value.reason is Reason.BAD_FIELD
    assert ("hunter2" in str(raised.value)) == ("=" not in entry)


def test_labels_are_dropped_in_a_guest_without_selinux(caplog: pytest.LogCaptureFixture) -> None:
    for entry in (f'context="{LABEL}"', f"rootcontext={LABEL}"):
        assert parse_options([entry, "noexec"]).options == ()
    assert "no SELinux" in caplog.text


def test_passwords_are_secret_wherever_they_are_written() -> None:
    options = parse_options(["user=me,password=hunter2"])
    assert shown(options) == "user=me,password=***"
    assert "hunter2" not in repr(options)


def test_a_bind_mount_takes_its_own_words_and_flags_only() -> None:
    options = parse_options(["bind", "ro,rbind,nodev", "dev"], bind=True)
    assert options == MountOptions(flags=MountFlag.RDONLY, options=())
    for entry in ("size=1m", "data=ordered", "move", "rshared"):
        with pytest.raises(AgentError) as caught:
            parse_options(["bind", entry], bind=True)
        assert caught.value.reason is Reason.BAD_FIELD


def test_read_only_beats_every_option() -> None:
    assert parse_options(["rw"], read_only=True).flags == MountFlag.RDONLY


@pytest.mark.parametrize(
    "entry",
    ["bind", "remount,ro", "loop", "loop=/dev/loop3", "offset=512", "rshared", 'a="b', '"', "=b"],
)
def test_what_a_plain_mount_cannot_do_is_refused(entry: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse_options([entry])
    assert caught.value.reason is Reason.BAD_FIELD


def test_what_no_call_of_the_kernel_can_take_is_refused() -> None:
    """Strings of 255 bytes go one by one; with a longer one all must fit in a page."""
    assert len(parse_options(["size=1m"] * 1000).options) == 1000
    assert len(parse_options(["k=" + "v" * 4093]).options) == 1
    with pytest.raises(AgentError, match="options too long: 4096 bytes") as caught:
        parse_options(["k=" + "v" * 4094])
    assert caught.value.reason is Reason.BAD_FIELD
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
        again = [f'{one.key}="{one.value}"' if one.value else str(one) for one in options.options]
        if not any('"' in str(one) for one in options.options):
            assert parse_options(again).options == options.options
    assert refusal in (None, Reason.BAD_FIELD)

"""What can be mounted, as it goes to the worker; secrets show nowhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.linux.mountcalls import (
    BindMount,
    FileRefusal,
    FsMount,
    Location,
    MountCall,
    MountOption,
    OverlayMount,
    from_message,
    to_message,
)
from agent.linux.mounting import MountFlag

pytestmark = [pytest.mark.unit, pytest.mark.storage]

TEXT = st.text(max_size=8)
FLAGS = st.sampled_from(list(MountFlag)).map(lambda flag: flag | MountFlag.RDONLY)
LOCATIONS = st.builds(Location, root=TEXT, path=TEXT, links=st.booleans())
OPTIONS = st.lists(
    st.builds(MountOption, key=TEXT, value=st.none() | TEXT, secret=st.booleans()), max_size=3
).map(tuple)
CALLS = st.one_of(
    st.builds(FsMount, fs_type=TEXT, source=TEXT, options=OPTIONS, flags=FLAGS),
    st.builds(BindMount, source=LOCATIONS, recursive=st.booleans(), flags=FLAGS),
    st.builds(
        OverlayMount,
        lowers=st.lists(LOCATIONS, max_size=3).map(tuple),
        upper=st.none() | LOCATIONS,
        work=st.none() | LOCATIONS,
        options=OPTIONS,
        flags=FLAGS,
    ),
)


@given(CALLS)
def test_every_call_comes_back(call: MountCall) -> None:
    assert from_message(json.loads(json.dumps(to_message(call)))) == call


def test_bytes_that_are_no_text_come_back() -> None:
    """A path of a mount is bytes to the kernel; Python shows odd ones as surrogates."""
    call = BindMount(source=Location(root="/a\udcff", path="b"))
    assert from_message(json.loads(json.dumps(to_message(call)))) == call


def test_secrets_are_not_shown() -> None:
    secret = MountOption(key="password", value="hunter2", secret=True)
    call = FsMount(fs_type="cifs", source="//s/x", options=(secret, MountOption(key="ro")))
    for text in (str(secret), repr(secret), repr(call)):
        assert "hunter2" not in text
        assert "password=***" in text


def test_a_refusal_is_an_oserror_with_a_log() -> None:
    refusal = FileRefusal(22, "fsconfig(size): Invalid argument", "/x", log=("a", "b"))
    assert (refusal.errno, refusal.filename, refusal.log) == (22, "/x", ("a", "b"))
    assert refusal.strerror == "fsconfig(size): Invalid argument"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (Location(root="/a"), "/a"),
        (Location(root="/a", path="b/c"), "/a/b/c"),
        (Location(root="/a/", path="/b"), "/a/b"),
        (Location(root="/"), "/"),
        (Location(root="/", path="b"), "/b"),
    ],
)
def test_locations_as_paths(location: Location, path: str) -> None:
    assert str(location) == path

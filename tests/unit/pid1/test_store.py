"""The descriptor store: it owns what it keeps, and closes what it drops."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from agent.pid1.store import Store

pytestmark = [pytest.mark.unit, pytest.mark.boot]


@pytest.fixture
def store() -> Iterator[Store]:
    """The unit tier's guard sees a descriptor that the store did not close."""
    store = Store(limit=3)
    yield store
    store.drop(store.names(prefix="", after=""))


def null() -> int:
    return os.open("/dev/null", os.O_RDONLY)


def test_a_descriptor_is_found_by_name_and_stays_kept(store: Store) -> None:
    fd = null()
    store.put("a", fd)
    assert store.find(["missing", "a"]) == {"a": fd}
    assert store.find(["a"]) == {"a": fd}


def test_the_same_name_replaces_and_closes(store: Store) -> None:
    first, second = null(), null()
    store.put("a", first)
    store.put("a", second)
    assert store.find(["a"]) == {"a": second}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


def test_drop_closes_and_counts(store: Store) -> None:
    fd = null()
    store.put("a", fd)
    assert store.drop(["a", "a", "missing"]) == 1
    assert len(store) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_full_store_refuses_new_names_only(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.put(name, null())
    refused = null()
    with pytest.raises(OSError, match="limit 3") as caught:
        store.put("d", refused)
    os.close(refused)
    assert caught.value.errno == errno.EMFILE
    store.put("a", null())
    assert len(store) == 3


def test_names_are_sorted_and_can_be_paged(store: Store) -> None:
    for name in ("x/2", "y", "x/1"):
        store.put(name, null())
    assert store.names(prefix="x/", after="") == ["x/1", "x/2"]
    assert store.names(prefix="x/", after="x/1") == ["x/2"]
    assert store.names(prefix="", after="x/2") == ["y"]

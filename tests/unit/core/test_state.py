"""State that survives the agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Code
from agent.core.state import StateStore

pytestmark = [pytest.mark.unit, pytest.mark.operations]


def test_what_is_saved_is_loaded_by_a_new_store(tmp_path: Path) -> None:
    StateStore(tmp_path).save("devices", "d1", {"bdf": "0000:01:00.0", "users": ["a"]})
    assert StateStore(tmp_path).load_all("devices") == {
        "d1": {"bdf": "0000:01:00.0", "users": ["a"]}
    }
    assert StateStore(tmp_path).load("devices", "d1") == {"bdf": "0000:01:00.0", "users": ["a"]}


def test_kinds_and_keys_are_apart(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save("devices", "x", {"n": 1})
    store.save("storages", "x", {"n": 2})
    store.save("devices", "x", {"n": 3})
    store.delete("storages", "x")
    store.delete("storages", "x")
    assert store.load_all("devices") == {"x": {"n": 3}}
    assert store.load_all("storages") == {}
    assert store.load("storages", "x") is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 1}',
        '{"schema": 2, "kind": "devices", "key": "bad", "data": {}}',
        '{"schema": 1, "kind": "storages", "key": "bad", "data": {}}',
        '{"schema": 1, "kind": "devices", "key": "other", "data": {}}',
        '{"schema": 1, "kind": "devices", "key": "bad", "data": 7}',
        "\udcff",
    ],
)
def test_an_unreadable_file_hurts_only_itself(tmp_path: Path, content: str) -> None:
    store = StateStore(tmp_path)
    store.save("devices", "good", {"n": 1})
    path = tmp_path / "devices/bad.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert store.load_all("devices") == {"good": {"n": 1}}
    assert not path.exists()
    assert path.with_name("bad.json.unreadable").exists()


def test_a_crash_in_the_middle_of_a_save_leaves_the_old_state(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.save("devices", "d1", {"n": 1})
    (tmp_path / "devices/d1.json.new").write_text('{"schema": 1, "ki')
    assert store.load_all("devices") == {"d1": {"n": 1}}


def test_a_full_run_directory_is_a_typed_error_and_keeps_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore(tmp_path)
    store.save("devices", "d1", {"n": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(AgentError) as caught:
        store.save("devices", "d1", {"n": 2})
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert json.loads((tmp_path / "devices/d1.json").read_bytes())["data"] == {"n": 1}


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a..b", ".x", "x" * 201])
def test_a_key_cannot_leave_the_directory(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        StateStore(tmp_path).save("devices", key, {})

"""The sandbox's identity: what a host name may be, and what survives."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.core.errors import AgentError, Reason
from agent.core.sandbox import Identity, Sandbox, check_hostname
from agent.core.state import StateStore

pytestmark = [pytest.mark.unit, pytest.mark.operations]


def sandbox(folder: Path, names: list[str] | None = None) -> Sandbox:
    return Sandbox(StateStore(folder), set_hostname=([] if names is None else names).append)


@pytest.mark.parametrize(
    "name", ["ok-1", "a", "a" * 63, "A.b.c3", "9", "", "a" * 32 + "." + "b" * 31]
)
def test_names_of_rfc_1123_are_host_names(name: str) -> None:
    assert check_hostname(name) == name


@pytest.mark.parametrize(
    "name",
    ["a b", "x\n127.0.0.1 evil", "-a", "a-", "é", "a" * 64, "a.", ".a", "a..b", "a\n", "a_b"],
)
def test_everything_else_is_none(name: str) -> None:
    """64 letters in one label are too many: a label has at most 63 (RFC 1035 2.3.4)."""
    with pytest.raises(AgentError) as caught:
        check_hostname(name)
    assert caught.value.reason is Reason.BAD_FIELD


def test_a_restarted_agent_knows_the_sandbox(tmp_path: Path) -> None:
    sandbox(tmp_path).create(Identity(id="s1", hostname="guest"))
    again = sandbox(tmp_path)
    assert again.current == Identity(id="s1", hostname="guest")
    with pytest.raises(AgentError) as caught:
        again.create(Identity(id="s2"))
    assert caught.value.reason is Reason.ID_IN_USE


def test_after_destroy_another_one_can_come(tmp_path: Path) -> None:
    first = sandbox(tmp_path)
    first.create(Identity(id="s1"))
    first.destroy()
    assert sandbox(tmp_path).current is None
    first.create(Identity(id="s2"))
    assert first.current == Identity(id="s2")


def test_a_name_that_the_kernel_refuses_leaves_no_sandbox(tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    refused = Sandbox(StateStore(tmp_path), set_hostname=refuse)
    with pytest.raises(AgentError) as caught:
        refused.create(Identity(id="s1", hostname="guest"))
    assert caught.value.fields["errno"] == "EPERM"
    assert refused.current is None
    assert sandbox(tmp_path).current is None


def test_without_a_host_name_the_guests_stays(tmp_path: Path) -> None:
    names: list[str] = []
    sandbox(tmp_path, names).create(Identity(id="s1"))
    assert names == []

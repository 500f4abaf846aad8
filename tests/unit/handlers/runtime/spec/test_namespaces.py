"""Namespaces shared with the sandbox, in a container's specification."""

from __future__ import annotations

from typing import Any

import pytest

from agent.core.errors import AgentError, Reason
from agent.handlers.runtime.spec.namespaces import check_own, check_shared, share

pytestmark = [pytest.mark.unit, pytest.mark.containers]

PATHS = {
    "pid": "/proc/9/fd/3",
    "ipc": "/proc/9/fd/4",
    "uts": "/proc/9/fd/5",
    "hostname": "pod-1",
    "/dev/shm": "/run/innkeeper/sandbox/shm",
}


def config(**linux: Any) -> dict[str, Any]:
    kinds = ("pid", "network", "ipc", "uts", "mount", "cgroup")
    return {
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["mode=1777"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in kinds], **linux},
    }


def test_entries_are_replaced_by_paths() -> None:
    made = config()
    share(made, ("ipc", "pid"), PATHS)
    assert made["linux"]["namespaces"] == [
        {"type": "network"},
        {"type": "uts"},
        {"type": "mount"},
        {"type": "cgroup"},
        {"type": "pid", "path": "/proc/9/fd/3"},
        {"type": "ipc", "path": "/proc/9/fd/4"},
    ]


def test_a_specification_that_has_none_of_it_joins_all_the_same() -> None:
    made = config(namespaces=[{"type": "mount"}, {"type": "pid", "path": "/proc/1/ns/pid"}])
    share(made, ("pid",), PATHS)
    assert made["linux"]["namespaces"] == [
        {"type": "mount"},
        {"type": "pid", "path": "/proc/9/fd/3"},
    ]


def test_the_network_is_the_guests_own() -> None:
    made = config()
    share(made, ("network",), {})
    kinds = [each["type"] for each in made["linux"]["namespaces"]]
    assert kinds == ["pid", "ipc", "uts", "mount", "cgroup"]


def test_nothing_shared_changes_nothing() -> None:
    made = config(sysctl={"net.ipv4.ip_forward": "1"})
    made["hostname"] = "own"
    share(made, (), {})
    expected = config(sysctl={"net.ipv4.ip_forward": "1"})
    assert made == {**expected, "hostname": "own"}


def test_posix_shared_memory_goes_with_ipc() -> None:
    made = config()
    share(made, ("ipc",), PATHS)
    assert made["mounts"][1] == {
        "destination": "/dev/shm",
        "type": "bind",
        "source": "/run/innkeeper/sandbox/shm",
        "options": ["rbind", "rprivate", "nosuid", "nodev", "noexec"],
    }


def test_a_mount_of_ones_own_for_it_stays() -> None:
    made = config()
    own = {"destination": "/dev/shm", "type": "bind", "source": "/x"}
    made["mounts"][1] = dict(own)
    share(made, ("ipc",), PATHS)
    assert made["mounts"][1] == own


@pytest.mark.parametrize("hostname", [None, "", "pod-1"])
def test_the_sandboxs_own_host_name_is_fine_and_not_set_again(hostname: str | None) -> None:
    """The runtime would set it in the namespace that it joins, for all."""
    made = config()
    if hostname is not None:
        made["hostname"] = hostname
    share(made, ("uts",), PATHS)
    assert "hostname" not in made


@pytest.mark.parametrize(
    ("shared", "changes", "place"),
    [
        ("uts", {"hostname": "other"}, "hostname"),
        ("uts", {"domainname": "example"}, "domainname"),
        ("uts", {"sysctl": {"kernel.domainname": "x"}}, "linux.sysctl.kernel.domainname"),
        ("ipc", {"sysctl": {"kernel.shmmax": "1"}}, "linux.sysctl.kernel.shmmax"),
        ("ipc", {"sysctl": {"kernel/msgmni": "1"}}, "linux.sysctl.kernel/msgmni"),
        ("ipc", {"sysctl": {"fs.mqueue.msg_max": "1"}}, "linux.sysctl.fs.mqueue.msg_max"),
        ("network", {"sysctl": {"net.ipv4.ip_forward": "1"}}, "linux.sysctl.net.ipv4.ip_forward"),
        ("network", {"netDevices": {"eth0": {}}}, "linux.netDevices"),
    ],
)
def test_what_would_change_it_for_all_is_refused(
    shared: str, changes: dict[str, Any], place: str
) -> None:
    top = {name: value for name, value in changes.items() if name.endswith("name")}
    made = config(**{name: value for name, value in changes.items() if name not in top}) | top
    with pytest.raises(AgentError) as caught:
        share(made, (shared,), PATHS)
    assert (caught.value.reason, caught.value.fields["path"]) == (Reason.BAD_SPEC, place)


def test_what_belongs_to_another_namespace_is_none_of_it() -> None:
    made = config(sysctl={"net.ipv4.ip_forward": "1", "kernel.shmmax": "1"})
    share(made, ("pid", "uts"), PATHS)


@pytest.mark.parametrize("kinds", [("mount",), ("user",), ("",), ("pid", "pid")])
def test_others_cannot_be_shared(kinds: tuple[str, ...]) -> None:
    with pytest.raises(AgentError) as caught:
        check_shared(kinds)
    assert caught.value.fields["field"] == "shared_namespaces"


def test_the_network_is_nothing_that_a_sandbox_makes() -> None:
    assert check_shared(("network", "pid")) == ("network", "pid")
    assert check_own(("pid", "ipc")) == ("pid", "ipc")
    with pytest.raises(AgentError):
        check_own(("network",))

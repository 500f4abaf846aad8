"""Sysctls of the guest: which may be set, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.guest import sysctls
from tests.fakes.sandbox_setup import put_sysctls

pytestmark = [pytest.mark.unit, pytest.mark.operations]


@pytest.mark.parametrize(
    "name",
    [
        "kernel.core_pattern",
        "kernel/core_pattern",
        "kernel.modprobe",
        "kernel.hotplug",
        "kernel.poweroff_cmd",
        "kernel.usermodehelper.bset",
        "fs.binfmt_misc.register",
        "kernel.unprivileged_bpf_disabled",
        "kernel.modules_disabled",
        "kernel.kexec_load_disabled",
        "kernel.ctrl-alt-del",
        "kernel.sysrq",
        "kernel.panic",
        "kernel.panic_on_oops",
        "kernel.hung_task_panic",
        "vm.panic_on_oom",
        "kernel.oops_limit",
        "vm.mmap_min_addr",
        "kernel.hostname",
        "kernel.ns_last_pid",
        "kernel.io_uring_disabled",
    ],
)
def test_what_protects_the_guest_may_not_be_set(name: str) -> None:
    with pytest.raises(AgentError) as caught:
        sysctls.wishes_of([(name, "0")])
    assert caught.value.code is Code.PERMISSION_DENIED
    assert caught.value.reason is Reason.SYSCTL_NOT_ALLOWED
    assert caught.value.fields == {"name": name}
    assert f"{name} may not be set: " in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vm.max_map_count", "262144"),
        ("vm.overcommit_memory", "1"),
        ("kernel.pid_max", "65536"),
        ("kernel.perf_event_paranoid", "1"),
        ("fs.inotify.max_user_instances", "1024"),
        ("user.max_user_namespaces", "100"),
        ("net.ipv4.conf.eth0/100.forwarding", "1"),
        ("net.core.somaxconn", "4096"),
        ("kernel.io_uring_disabled", "2"),
    ],
)
def test_others_may(name: str, value: str) -> None:
    (wish,) = sysctls.wishes_of([(name, value)])
    assert (wish.name, wish.value) == (name, value)


@pytest.mark.parametrize("name", ["", "vm..x", "../kernel/x", "vm/../kernel/core_pattern", "."])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(AgentError) as caught:
        sysctls.wishes_of([(name, "0")])
    assert (caught.value.reason, caught.value.fields["field"]) == (Reason.BAD_FIELD, "sysctls")


def test_one_that_is_there_under_two_names_is_refused() -> None:
    with pytest.raises(AgentError) as caught:
        sysctls.wishes_of([("vm.swappiness", "1"), ("vm/swappiness", "2")])
    assert caught.value.reason is Reason.BAD_FIELD


def test_what_changes_others_comes_first() -> None:
    values = [("net.ipv4.conf.eth0.forwarding", "0"), ("net.ipv4.ip_forward", "1")]
    paths = [wish.path for wish in sysctls.wishes_of(values)]
    assert paths == ["net/ipv4/ip_forward", "net/ipv4/conf/eth0/forwarding"]


async def test_what_was_there_comes_back(tmp_path: Path) -> None:
    """Also what the kernel changes besides: ip_forward sets `forwarding` of each interface."""
    roots = Roots(run=tmp_path, proc=tmp_path)
    before = {
        "vm/swappiness": "60",
        "net/ipv4/ip_forward": "0",
        "net/ipv4/conf/all/accept_redirects": "1",
        "net/ipv4/conf/all/forwarding": "0",
        "net/ipv4/conf/default/forwarding": "0",
        "net/ipv4/conf/eth0/forwarding": "1",
    }
    put_sysctls(tmp_path, before)
    wishes = sysctls.wishes_of([("vm.swappiness", "10"), ("net.ipv4.ip_forward", "1")])
    former = await sysctls.former(roots, wishes)
    assert dict(former) == before
    await sysctls.put(roots, wishes, Deadline.after(10))
    put_sysctls(tmp_path, dict.fromkeys([path for path in before if "forwarding" in path], "1"))
    assert (tmp_path / "sys/vm/swappiness").read_text() == "10\n"
    assert await sysctls.put_back(roots, former) == {}
    now = {path: (tmp_path / "sys" / path).read_text().strip() for path in before}
    assert now == before


async def test_one_that_is_not_there_is_refused_with_its_errno(tmp_path: Path) -> None:
    put_sysctls(tmp_path, {"vm/swappiness": "60"})
    roots = Roots(run=tmp_path, proc=tmp_path)
    with pytest.raises(AgentError) as caught:
        await sysctls.former(roots, sysctls.wishes_of([("vm.no_such", "1")]))
    assert caught.value.fields["errno"] == "ENOENT"


async def test_nothing_is_written_when_the_time_is_over(tmp_path: Path) -> None:
    put_sysctls(tmp_path, {"vm/swappiness": "60"})
    roots = Roots(run=tmp_path, proc=tmp_path)
    with pytest.raises(AgentError) as caught:
        await sysctls.put(roots, sysctls.wishes_of([("vm.swappiness", "1")]), Deadline.after(-1))
    assert caught.value.reason is Reason.OPERATION_TIMED_OUT
    assert (tmp_path / "sys/vm/swappiness").read_text() == "60\n"

"""What kernel and runtime lack is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.core.errors import AgentError, Code, Reason
from agent.core.roots import Roots
from agent.handlers.runtime.spec.support import (
    Support,
    SupportAsked,
    check,
    check_exec,
    check_resources,
)
from tests.fakes.support import FEATURES, SUPPORT

pytestmark = [pytest.mark.unit, pytest.mark.containers]


def refusal(spec: dict[str, Any], kernel: Support = SUPPORT) -> str:
    with pytest.raises(AgentError) as caught:
        check(spec, kernel)
    assert (caught.value.code, caught.value.reason) == (
        Code.FAILED_PRECONDITION,
        Reason.NOT_SUPPORTED,
    )
    return caught.value.fields["path"]


def linux(**members: Any) -> dict[str, Any]:
    return {"linux": members}


def resources(**members: Any) -> dict[str, Any]:
    return linux(resources=members)


def process(**members: Any) -> dict[str, Any]:
    return {"process": {"args": ["sh"], **members}}


def bind(*options: str) -> dict[str, Any]:
    mount = {"destination": "/x", "type": "bind", "source": "/y", "options": list(options)}
    return {"mounts": [mount]}


OLD = Support(
    namespaces=frozenset({"mount", "pid"}),
    capabilities=frozenset({"CAP_CHOWN"}),
    controllers=frozenset({"cpu"}),
    huge_pages=frozenset(),
    seccomp=frozenset({"SCMP_ACT_ALLOW"}),
)
NOTIFY = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_NOTIFY"}]}


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (process(selinuxLabel="system_u:system_r:container_t:s0"), "process.selinuxLabel"),
        (process(apparmorProfile="docker-default"), "process.apparmorProfile"),
        (process(capabilities={"bounding": ["CAP_CHOWN", "CAP_BPF"]}), None),
        (linux(mountLabel="system_u:object_r:container_file_t:s0"), "linux.mountLabel"),
        (linux(intelRdt={}), "linux.intelRdt"),
        (linux(namespaces=[{"type": "mount"}, {"type": "time"}]), None),
        (linux(seccomp={"defaultAction": "SCMP_ACT_LOG"}), None),
        (linux(seccomp=NOTIFY), None),
        (resources(memory={"limit": 1}), None),
        (resources(pids={"limit": 1}), None),
        (resources(blockIO={"weight": 100}), None),
        (resources(cpu={"shares": 2, "cpus": "0"}), None),
        (resources(unified={"memory.high": "1"}), None),
        (resources(hugepageLimits=[{"pageSize": "64KB", "limit": 1}]), None),
        (bind("ro", "nosymfollow"), "mounts[0].options[1]"),
        (bind("bind", "x-mine"), "mounts[0].options[1]"),
    ],
)
def test_what_is_not_there_is_refused_by_its_place(spec: dict[str, Any], place: str | None) -> None:
    """And, where a newer kernel has it, only by an older one."""
    if place is not None:
        assert refusal(spec) == place
        return
    if "64KB" not in str(spec):
        check(spec, SUPPORT)
    assert refusal(spec, OLD).startswith(("process.capabilities.bounding[1]", "linux."))


def test_names_that_mean_nothing_are_fine() -> None:
    empty = process(apparmorProfile="unconfined", selinuxLabel="", capabilities={"ambient": []})
    check(empty | linux(mountLabel="", resources={"memory": {}, "hugepageLimits": []}), OLD)


def test_options_of_file_systems_are_the_kernels() -> None:
    mount = {"destination": "/x", "type": "tmpfs", "source": "t", "options": ["size=1m", "huge=x"]}
    check({"mounts": [mount]}, SUPPORT)
    check(bind("rbind", "rro", "idmap=uids=0-1-1", "ridmap", "rslave"), SUPPORT)


def test_a_profile_must_be_loaded(tmp_path: Path) -> None:
    loaded = tmp_path / "profiles"
    loaded.write_text("docker-default (enforce)\nodd (name) (complain)\n")
    kernel = replace(SUPPORT, apparmor=True, profiles=loaded)
    check(process(apparmorProfile="docker-default"), kernel)
    check(process(apparmorProfile="odd (name)"), kernel)
    assert refusal(process(apparmorProfile="other"), kernel) == "process.apparmorProfile"
    loaded.unlink()
    assert refusal(process(apparmorProfile="docker-default"), kernel)


def test_an_exec_and_an_update_are_looked_at_as_well() -> None:
    with pytest.raises(AgentError) as caught:
        check_exec({"args": ["sh"], "selinuxLabel": "x"}, SUPPORT)
    assert caught.value.fields["path"] == "selinuxLabel"
    with pytest.raises(AgentError) as caught:
        check_resources({"memory": {"limit": 1}}, OLD)
    assert caught.value.fields["path"] == "memory"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    parts = {name: tmp_path / name for name in ("sys", "proc", "cgroup", "run")}
    made = Roots(**parts)
    files = {
        made.proc / "sys/kernel/cap_last_cap": "39\n",
        made.proc / "sys/kernel/seccomp/actions_avail": "kill_process errno log allow\n",
        made.cgroup / "cgroup.controllers": "cpu io memory hugetlb pids\n",
        made.sys / "module/apparmor/parameters/enabled": "Y\n",
        made.sys / "kernel/security/apparmor/profiles": "mine (enforce)\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for size in ("2048kB", "1048576kB", "64kB"):
        (made.sys / f"kernel/mm/hugepages/hugepages-{size}").mkdir(parents=True)
    here = made.proc / "self/ns"
    here.mkdir(parents=True, exist_ok=True)
    for name in ("mnt", "pid", "net", "user"):
        (here / name).symlink_to(f"{name}:[1]")
    return made


def test_the_kernel_is_asked(roots: Roots) -> None:
    found = Support.of(roots, FEATURES)
    assert found.namespaces == {"mount", "pid", "network", "user"}
    assert found.capabilities == SUPPORT.capabilities - {"CAP_CHECKPOINT_RESTORE"}
    assert found.controllers == {"cpu", "io", "memory", "hugetlb", "pids"}
    assert found.huge_pages == {"2MB", "1GB", "64KB"}
    assert found.seccomp == {
        *("SCMP_ACT_KILL_PROCESS", "SCMP_ACT_ERRNO", "SCMP_ACT_LOG", "SCMP_ACT_ALLOW"),
    }
    assert (found.apparmor, found.selinux, found.resctrl) == (True, False, False)
    check(process(apparmorProfile="mine"), found)


def test_what_the_runtime_lacks_counts_too(roots: Roots) -> None:
    """A runtime that is built without seccomp or AppArmor, on a kernel that has both."""
    found = Support.of(roots, {"linux": {"seccomp": {"enabled": False}, "capabilities": None}})
    assert (found.seccomp, found.capabilities, found.apparmor) == (frozenset(), frozenset(), False)


def crun(directory: Path, script: str) -> str:
    path = directory / "crun"
    path.write_text(f"#!/bin/sh\necho . >>{directory}/asked\n{script}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_runtime_is_asked_once(roots: Roots, tmp_path: Path) -> None:
    program = crun(tmp_path, f"cat <<'E'\n{json.dumps(FEATURES)}\nE")
    asked = SupportAsked(roots, program=program)
    assert await asked() == await asked()
    assert (tmp_path / "asked").read_text() == ".\n"


async def test_a_runtime_that_does_not_say_is_asked_again(roots: Roots, tmp_path: Path) -> None:
    asked = SupportAsked(roots, program=crun(tmp_path, "echo '[]'"))
    with pytest.raises(AgentError) as caught:
        await asked()
    assert caught.value.reason is Reason.RUNTIME_REFUSED
    crun(tmp_path, f"cat <<'E'\n{json.dumps(FEATURES)}\nE")
    assert (await asked()).mount_options == SUPPORT.mount_options

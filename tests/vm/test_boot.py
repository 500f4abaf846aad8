"""What a booted guest is: process 1 ours, no udev, only what belongs there."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2

from tests.vm.guest import Guest

pytestmark = [pytest.mark.vm, pytest.mark.boot]


async def test_process_1_is_ours(guest: Guest) -> None:
    text = await guest.probe("tr '\\0' ' ' </proc/1/cmdline")
    assert text.split() == ["/usr/bin/python3", "-IS", "/usr/lib/innkeeper/init"]
    assert list((await guest.describe()).init_command_line) == text.split()


async def test_boot_phases_come_in_their_order(guest: Guest) -> None:
    phases = (await guest.describe()).boot_phases
    order = [phase.name for phase in sorted(phases, key=lambda phase: phase.at_micros)]
    assert order == [
        "pid1",
        "mounts",
        "agent_spawned",
        "agent_interpreter",
        "agent_imported",
        "agent_serving",
    ]


async def test_no_process_of_ours_maps_libudev(guest: Guest) -> None:
    """The design's promise: no udev anywhere, not even its library in our processes."""
    ours = await guest.probe(
        "for p in /proc/[0-9]*; do"
        "  grep -qa innkeeper $p/cmdline 2>/dev/null || continue;"
        "  echo $(basename $p) $(grep -c libudev $p/maps) $(grep -c libpython $p/maps);"
        " done"
    )
    rows = [line.split() for line in ours.splitlines()]
    assert len(rows) >= 3, "PID 1, relay and agent at least"
    assert {row[1] for row in rows} == {"0"}


async def test_there_is_no_udevd_and_no_systemd(guest: Guest) -> None:
    text = await guest.probe("cat /proc/[0-9]*/comm; ls /guest/usr/lib/udev 2>&1 || true")
    assert "udevd" not in text
    assert "systemd" not in text
    assert "No such file" in text


async def test_the_root_cannot_be_written(guest: Guest) -> None:
    finished = await guest.run("grep ' / ' /proc/1/mounts; : >/guest/x", **_probe())
    assert " ro," in finished.text
    assert b"Read-only file system" in finished.stderr


async def test_mounts_are_those_of_the_design(guest: Guest) -> None:
    text = await guest.probe("cat /proc/1/mounts")
    found = {tuple(line.split()[1:4]) for line in text.splitlines()}
    options = {(where, kind): set(how.split(",")) for where, kind, how in found}
    assert {"nosuid", "nodev", "noexec"} <= options["/proc", "proc"]
    assert {"nosuid", "nodev", "noexec"} <= options["/sys", "sysfs"]
    assert {"nosuid", "noexec", "gid=5", "ptmxmode=666"} <= options["/dev/pts", "devpts"]
    assert {"nsdelegate"} <= options["/sys/fs/cgroup", "cgroup2"]
    for where in ("/run", "/tmp", "/var", "/dev/shm", "/run/innkeeper/spools"):
        assert (where, "tmpfs") in options
    assert ("/dev/mqueue", "mqueue") in options


async def test_ours_are_in_their_cgroups_and_controllers_are_on(guest: Guest) -> None:
    text = await guest.probe("cat /proc/1/cgroup; cat /sys/fs/cgroup/pods/cgroup.subtree_control")
    first, controllers = text.splitlines()
    # Seen from a cgroup namespace of its own: /pods/SANDBOX/CONTAINER is the root there.
    assert first == "0::/../../../init"
    assert {"cpu", "memory", "pids", "io"} <= set(controllers.split())
    agent = (await guest.describe()).agent_pid
    assert (await guest.probe(f"cat /proc/{agent}/cgroup")).strip() == "0::/../../../agent"


async def test_standard_links_and_loopback(guest: Guest) -> None:
    text = await guest.probe(
        "for l in fd stdin ptmx; do readlink /dev/$l; done; cat /sys/class/net/lo/operstate;"
        " cat /proc/sys/kernel/io_uring_disabled"
    )
    assert text.split() == ["/proc/self/fd", "/proc/self/fd/0", "pts/ptmx", "unknown", "2"]


async def test_control_characters_on_the_console_disturb_nobody(guest: Guest) -> None:
    """Ctrl-C, Ctrl-\\ and Ctrl-D on the serial console once killed an agent (case 129)."""
    before = await guest.describe()
    # The console has no controlling process: what the line discipline would signal is nobody.
    text = await guest.probe("for p in 1 $(pidof python3); do cut -d' ' -f7 /proc/$p/stat; done")
    assert set(text.split()) == {"0"}, "a process of ours has a controlling terminal"
    assert (await guest.describe()).agent_pid == before.agent_pid


async def test_health_says_serving(guest: Guest) -> None:
    answer = await guest.health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def _probe() -> dict[str, object]:
    from tests.vm.guest import PROBE

    return PROBE

"""PID 1 as it is, in a PID namespace of its own: reaping, keeping, restarting, going down."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.linux import fdpass, mounting
from tests.privileged.counts import often
from tests.privileged.pidns import (
    ENDED_OFF,
    ENDED_REBOOT,
    PidNamespace,
    Plan,
    StandIn,
    cgroup2_mount,
    own_cgroup,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.boot,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: PID and mount namespaces"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
# Says its name when it is ready and when it is told to stop.
POLITE = 'trap "echo $0 stops >&2; exit 0" TERM; echo $0 ready >&2; sleep infinity & wait'
STUBBORN = 'trap "" TERM; echo $0 ready >&2; while :; do sleep infinity & wait; done'


def shell(script: str, *arguments: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script, *arguments)


def once(script: str, *arguments: str) -> StandIn:
    """A service that runs a script one time."""
    return StandIn(name="script", argv=shell(script, *arguments), restart=False)


def orphans(count: int, code: int) -> str:
    """A script whose `count` grandchildren are left to PID 1 and end with `code`."""
    return f"i=0; while [ $i -lt {count} ]; do (exit {code} &); i=$((i+1)); done"


def ended_with(code: int, count: int) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda entries: sum(entry["code"] == code for entry in entries) >= count


@pytest.fixture
def run(tmp_path: Path) -> str:
    # Not tmp_path itself: a socket's path has at most 107 bytes.
    directory = tmp_path / "r"
    directory.mkdir()
    return str(directory)


@pytest.fixture
def cgroup() -> Iterator[str]:
    parent = cgroup2_mount()
    if parent is None:
        pytest.skip("no cgroup v2 is mounted here")
    with own_cgroup(parent) as group:
        yield group


def test_every_status_of_many_orphans_arrives(run: str) -> None:
    """A second reaper in the process would turn some of these into 0 without a word."""
    count = often(200)
    with PidNamespace(Plan(run=run, services=(once(orphans(count, 7)),))) as bed:
        bed.wait_said("booted")
        with bed.connect() as client:
            entries = client.entries_until(ended_with(7, count))
    assert sum(entry["code"] == 7 for entry in entries) == count
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry["signal"] for entry in entries} == {0}


def test_no_zombie_is_left_of_many_orphans(run: str) -> None:
    """Grandchildren whose parent ended at once: `sh -c '(sleep 1 &); exit 0'`, many times."""
    count = often(500)
    with PidNamespace(Plan(run=run, services=(once(orphans(count, 9)),))) as bed:
        bed.wait_said("booted")
        with bed.connect() as client:
            # With the script's own exit.
            client.entries_until(lambda entries: len(entries) == count + 1)
        zombies = [pid for pid, state in bed.states().items() if state == "Z"]
    assert zombies == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_128_and_its_number(run: str, number: int) -> None:
    script = once(f"ulimit -c 0; kill -{number} $$")
    with PidNamespace(Plan(run=run, services=(script,))) as bed:
        bed.wait_said("booted")
        with bed.connect() as client:
            entry = client.entries_until(lambda entries: len(entries) == 1)[0]
        bed.wait_said(f"by signal {number:d} ({signal.Signals(number).name})")
    assert (entry["code"], entry["signal"]) == (128 + number, number)
    assert entry["comm"] == "sh"


def test_an_exit_carries_its_cgroup_also_when_that_is_removed(run: str, cgroup: str) -> None:
    """The kernel marks the path of a group that is gone; the journal's path has no mark."""
    script = once(
        'mkdir -p "$0/pods/s/c" && echo $$ > "$0/pods/s/c/cgroup.procs"; (exit 7 &); exec true',
        cgroup,
    )
    with PidNamespace(Plan(run=run, cgroup=cgroup, services=(script,))) as bed:
        bed.wait_said("booted")
        with bed.connect() as client:
            entries = client.entries_until(
                lambda entries: ended_with(7, 1)(entries) and ended_with(0, 1)(entries)
            )
    assert {entry["cgroup"] for entry in entries if entry["code"] == 7} == {"/pods/s/c"}
    assert {entry["comm"] for entry in entries if entry["code"] == 0} >= {"true"}


def test_pid_1_leaves_the_root_of_the_cgroups(run: str, cgroup: str) -> None:
    """Controllers can be enabled below a group only while no process is in it."""
    plan = Plan(run=run, cgroup=cgroup, services=(StandIn(name="agent", argv=shell(POLITE)),))
    with PidNamespace(plan) as bed:
        bed.wait_said("booted")
        text = Path(f"/proc/{bed.init_pid}/cgroup").read_text()
        made = {entry.name for entry in Path(cgroup).iterdir() if entry.is_dir()}
    assert re.search(r"^0::/.*/init$", text, re.MULTILINE)
    assert made >= {"init", "agent", "pods"}


KEEPER = """
import os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from agent.linux import fdpass
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[2])
fdpass.send(sock, {"op": "fetch", "names": ["missing", "stream"]})
answer, fds = fdpass.receive(sock)
if answer["names"] == ["stream"]:
    sys.stderr.write("second life read " + os.read(fds[0], 100).decode() + "\\n")
else:
    reader, writer = os.pipe()
    os.write(writer, b"what the first life left")
    fdpass.send(sock, {"op": "store", "name": "stream"}, [reader])
    assert fdpass.receive(sock)[0] == {"ok": True}
    sys.stderr.write("first life pid %d\\n" % os.getpid())
sys.stderr.flush()
signal.pause()
"""


def test_a_descriptor_outlives_its_killed_owner(run: str) -> None:
    argv = (sys.executable, "-IS", "-c", KEEPER, str(REPOSITORY), f"{run}/init.sock")
    agent = StandIn(name="agent", argv=argv, role="agent")
    with PidNamespace(Plan(run=run, services=(agent,))) as bed:
        pid = int(bed.wait_said("first life").split()[-1])
        kill_inside(bed, pid)
        line = bed.wait_said("second life read")
        assert line.endswith("what the first life left")
        with bed.connect() as client:
            status = client.ask("ping")
    assert status["restarts"]["agent"] == 1


def kill_inside(bed: PidNamespace, pid: int) -> None:
    """SIGKILL to a process by its number in the bed."""
    namespace = os.readlink(f"/proc/{bed.init_pid}/ns/pid")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "status").read_text()
            same = os.readlink(entry / "ns/pid") == namespace
        except OSError:
            continue
        numbers = re.search(r"^NSpid:\s.*?(\d+)$", text, re.MULTILINE)
        if same and numbers is not None and int(numbers[1]) == pid:
            os.kill(int(entry.name), signal.SIGKILL)
            return
    raise AssertionError(f"no process {pid} in the bed")


def test_a_failing_agent_is_started_again_with_growing_delays(run: str) -> None:
    agent = StandIn(name="agent", argv=shell("exit 3"), role="agent")
    with PidNamespace(Plan(run=run, services=(agent,))) as bed:
        bed.wait_said("starting it again in 1 s")
        lines = [line for line in bed.said if "agent (pid" in line]
    assert all("with status 3" in line for line in lines)
    delays = [line.rpartition(" again in ")[2] for line in lines]
    left = Path(f"{run}/agent.status").read_text()
    assert delays == ["0 s", "0.25 s", "0.5 s", "1 s"]
    assert re.fullmatch(r"restarting; agent \(pid \d+\) ended after \S+ s with status 3\n", left)


def test_an_agent_that_cannot_be_executed_does_not_stop_the_boot(run: str) -> None:
    agent = StandIn(name="agent", argv=("/nowhere/python3",), role="agent")
    with PidNamespace(Plan(run=run, services=(agent,))) as bed:
        bed.wait_said("booted")
        bed.wait_said("agent cannot be started")
        with bed.connect() as client:
            assert client.ask("ping")["ok"]


@pytest.mark.parametrize(("action", "status"), [("off", ENDED_OFF), ("reboot", ENDED_REBOOT)])
def test_power_answers_first_then_stops_in_order(run: str, action: str, status: int) -> None:
    """The reply must not race the end: it is there before the first one is told to stop."""
    services = tuple(
        StandIn(name=name, argv=shell(POLITE, name), role=name)
        for name in ("relay", "agent", "extra")
    )
    with PidNamespace(Plan(run=run, services=services)) as bed:
        for name in ("relay", "agent", "extra"):
            bed.wait_said(f"{name} ready")
        with bed.connect() as client:
            assert client.ask("power", action=action) == {"ok": True}
        assert bed.wait_end() == status
        stops = [line for line in bed.finish_console() if line.endswith(" stops")]
    assert stops == ["extra stops", "agent stops", "relay stops"]


def test_a_client_that_leaves_after_asking_does_not_cancel_it(run: str) -> None:
    with PidNamespace(Plan(run=run)) as bed:
        bed.wait_said("booted")
        with bed.connect() as client:
            fdpass.send(client.sock, {"op": "power", "action": "off"})
        assert bed.wait_end() == ENDED_OFF


def test_a_second_request_changes_nothing(run: str) -> None:
    stubborn = StandIn(name="agent", argv=shell(STUBBORN, "agent"), role="agent")
    with PidNamespace(Plan(run=run, services=(stubborn,), bounds={"agent": 0.5})) as bed:
        bed.wait_said("agent ready")
        with bed.connect() as client:
            assert client.ask("power", action="off")["ok"]
            assert client.ask("power", action="reboot")["ok"]
        assert bed.wait_end() == ENDED_OFF
        assert "agent did not stop within 0.5 s: killed" in "\n".join(bed.finish_console())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGPWR])
def test_signals_that_power_off(run: str, number: int) -> None:
    """The default for PID 1 would be to lose them; ctrl-alt-del arrives as SIGINT."""
    agent = StandIn(name="agent", argv=shell(POLITE, "agent"), role="agent")
    with PidNamespace(Plan(run=run, services=(agent,))) as bed:
        bed.wait_said("agent ready")
        os.kill(bed.init_pid, number)
        assert bed.wait_end() == ENDED_OFF
        said = bed.finish_console()
    assert any(line.endswith("agent stops") for line in said)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGPIPE])
def test_other_signals_do_nothing(run: str, number: int) -> None:
    with PidNamespace(Plan(run=run)) as bed:
        bed.wait_said("booted")
        os.kill(bed.init_pid, number)
        with bed.connect() as client:
            assert client.ask("ping")["ok"]


def test_containers_are_killed_on_the_way_down(run: str, cgroup: str) -> None:
    script = once(
        'mkdir -p "$0/pods/s/c"; echo $$ > "$0/pods/s/c/cgroup.procs"; '
        'trap "" TERM; echo container ready >&2; while :; do sleep infinity & wait; done',
        cgroup,
    )
    # Detached from the service's own bound: the container is an orphan, as after crun.
    detached = once('("$@" &)', "sh", *script.argv)
    with PidNamespace(Plan(run=run, cgroup=cgroup, services=(detached,))) as bed:
        bed.wait_said("container ready")
        with bed.connect() as client:
            client.ask("power", action="off")
        assert bed.wait_end() == ENDED_OFF
        assert "outlived" not in "\n".join(bed.finish_console())
    assert Path(f"{cgroup}/pods/cgroup.events").read_text().startswith("populated 0")


@pytest.mark.parametrize(
    ("sabotage", "said"),
    [
        ("step", "boot failed at impossible"),
        ("services", "boot failed at the services"),
        ("assembly", "PID 1 failed, the machine goes down"),
    ],
)
def test_a_boot_that_fails_says_why_and_goes_down(run: str, sabotage: str, said: str) -> None:
    """Never an exit of PID 1 by exception: that would be a kernel panic."""
    with PidNamespace(Plan(run=run, sabotage=sabotage)) as bed:
        assert bed.wait_end() == ENDED_OFF
        output = "\n".join(bed.finish_console())
    assert said in output
    assert "/nowhere/at/all" in output


def test_an_error_in_the_loop_does_not_end_pid_1(run: str) -> None:
    plan = Plan(
        run=run,
        services=(once("exit 1"),),
        sabotage="reaper",
        bounds={"extra": 0.1, "kill": 0.1, "sync": 0.1},
    )
    with PidNamespace(plan) as bed:
        bed.wait_said("error, going on")
        with bed.connect() as client:
            assert client.ask("ping")["ok"]
            assert client.ask("power", action="off")["ok"]
        assert bed.wait_end() == ENDED_OFF


def made_dev(tmp_path: Path) -> Path:
    """A /dev whose console and kernel log are files of ours."""
    dev = tmp_path / "d"
    dev.mkdir()
    (dev / "kmsg").touch()
    os.symlink("/dev/null", dev / "null")
    return dev


def test_the_console_is_the_output_of_all_and_nobody_has_it_as_input(
    run: str, tmp_path: Path
) -> None:
    dev = made_dev(tmp_path)
    (dev / "console").touch()
    os.mkfifo(f"{run}/up")
    script = once(
        'echo from a child; echo its errors >&2; readlink /proc/self/fd/0 > "$0"', f"{run}/up"
    )
    with PidNamespace(Plan(run=run, services=(script,), dev=str(dev))) as bed:
        assert Path(f"{run}/up").read_text() == "/dev/null\n"
        with bed.connect() as client:
            client.ask("ping")
        text = (dev / "console").read_text()
    assert "innkeeper: booted" in text
    assert "from a child\nits errors\n" in text


def test_a_console_that_nobody_drains_does_not_stop_pid_1(run: str, tmp_path: Path) -> None:
    dev = made_dev(tmp_path)
    os.mkfifo(dev / "console")
    os.mkfifo(f"{run}/up")
    stuck = os.open(dev / "console", os.O_RDWR | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            while os.write(stuck, b"x" * 4096):
                pass
        script = once('echo up > "$0"', f"{run}/up")
        with PidNamespace(Plan(run=run, services=(script,), dev=str(dev))) as bed:
            assert Path(f"{run}/up").read_text() == "up\n"
            with bed.connect() as client:
                assert client.ask("ping")["ok"]
            # The kernel's log takes what the console does not.
            assert "innkeeper: booted" in (dev / "kmsg").read_text()
    finally:
        os.close(stuck)


def test_without_a_console_the_kernels_log_is_the_output(run: str, tmp_path: Path) -> None:
    """An initramfs without device nodes: whatever fails early must still be seen."""
    dev = made_dev(tmp_path)
    plan = Plan(run=run, dev=str(dev), sabotage="step")
    with PidNamespace(plan) as bed:
        assert bed.wait_end() == ENDED_OFF
    assert "boot failed at impossible" in (dev / "kmsg").read_text()


def test_a_stopped_agent_still_goes_down_in_order(run: str) -> None:
    agent = StandIn(name="agent", argv=shell(f"kill -STOP $$; {POLITE}", "agent"), role="agent")
    starter = once("echo agent was started >&2")
    with PidNamespace(Plan(run=run, services=(agent, starter))) as bed:
        bed.wait_said("agent was started")
        with bed.connect() as client:
            assert client.ask("power", action="off")["ok"]
        assert bed.wait_end() == ENDED_OFF
        assert "did not stop" not in "\n".join(bed.finish_console())


def test_garbage_gets_an_answer_and_harms_nobody(run: str) -> None:
    with PidNamespace(Plan(run=run)) as bed:
        bed.wait_said("booted")
        before = bed.descriptors()
        with bed.connect() as client:
            for packet in (b"\0\xff", b"[]", b"7", b"{}", b'{"op":[]}', b"[" * 60000, b"x" * 65537):
                client.sock.send(packet)
                answer, _ = fdpass.receive(client.sock)
                assert answer["ok"] is False
                assert answer["error"]
            with open("/dev/null", "rb") as null:
                too_many = client.ask("store", (null.fileno(),) * 2, name="x")
                unwanted = client.ask("ping", (null.fileno(),))
            assert not too_many["ok"]
            assert unwanted["ok"]
        assert bed.descriptors() == before


def test_a_packet_with_too_many_descriptors_leaks_none(run: str) -> None:
    with PidNamespace(Plan(run=run)) as bed:
        bed.wait_said("booted")
        before = bed.descriptors()
        with bed.connect() as client, open("/dev/null", "rb") as null:
            socket.send_fds(client.sock, [b"{}"], [null.fileno()] * 40)
            answer, _ = fdpass.receive(client.sock)
        assert "descriptors" in answer["error"]
        assert bed.descriptors() == before


def test_a_subscriber_that_never_reads_is_dropped_and_others_get_all(run: str) -> None:
    """In batches smaller than the journal's memory, so that only the deaf one falls behind."""
    batch, batches = 150, 10
    script = once(f'while read go; do {orphans(batch, 5)}; done < "$0"', f"{run}/go")
    os.mkfifo(f"{run}/go")
    with PidNamespace(Plan(run=run, services=(script,), journal_limit=256)) as bed:
        bed.wait_said("booted")
        with bed.connect() as deaf, open(f"{run}/go", "w") as go:
            assert deaf.ask("subscribe", after=0)["ok"]
            entries: list[dict[str, Any]] = []
            for _ in range(batches):
                go.write("go\n")
                go.flush()
                last = entries[-1]["seq"] if entries else 0
                with bed.connect() as reader:
                    entries += reader.entries_until(ended_with(5, batch), after=last)
            bed.wait_said("did not read on")
            with pytest.raises(EOFError):
                drain(deaf.sock)
        with bed.connect() as client:
            assert client.ask("ping")["journal_sequence"] >= batch * batches
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))


def drain(sock: socket.socket) -> None:
    while True:
        fdpass.receive(sock)


def test_more_clients_than_the_limit_are_told(run: str) -> None:
    with PidNamespace(Plan(run=run)) as bed, contextlib.ExitStack() as stack:
        bed.wait_said("booted")
        clients = [stack.enter_context(bed.connect()) for _ in range(65)]
        for client in clients[:64]:
            assert client.ask("ping")["ok"]
        answer, _ = fdpass.receive(clients[64].sock)
        assert answer["errno"] == "EMFILE"


def test_the_store_has_a_limit_and_says_so(run: str) -> None:
    with PidNamespace(Plan(run=run, store_limit=2)) as bed:
        bed.wait_said("booted")
        with bed.connect() as client, open("/dev/null", "rb") as null:
            answers = [client.ask("store", (null.fileno(),), name=f"n{i}") for i in range(3)]
            again = client.ask("store", (null.fileno(),), name="n0")
            assert client.ask("names", prefix="n", after="n0")["names"] == ["n1"]
            assert client.ask("drop", names=["n0", "n7"])["dropped"] == 1
    assert [answer["ok"] for answer in answers] == [True, True, False]
    assert answers[2]["errno"] == "EMFILE"
    assert again["ok"]


def test_the_guests_mounts(run: str, cgroup: str, tmp_path: Path) -> None:
    """Types and options of the tree, as mountinfo shows them in the bed."""
    tree = tmp_path / "tree"
    with PidNamespace(Plan(run=run, cgroup=cgroup, tree=str(tree))) as bed:
        bed.wait_said("booted")
        text = Path(f"/proc/{bed.init_pid}/mountinfo").read_text()
        ptmx = os.readlink(f"/proc/{bed.init_pid}/root{tree}/dev/ptmx")
    mounted = {
        entry.mount_point.removeprefix(str(tree)): entry
        for entry in mounting.parse_mountinfo(text)
        if entry.mount_point.startswith(str(tree))
    }
    assert ptmx == "pts/ptmx"
    types = {point: entry.fs_type for point, entry in mounted.items()}
    assert (
        types.items()
        >= {
            "/proc": "proc",
            "/sys": "sysfs",
            "/dev/pts": "devpts",
            "/dev/shm": "tmpfs",
            "/run": "tmpfs",
            "/tmp": "tmpfs",
            "/var": "tmpfs",
            "/run/own/spools": "tmpfs",
            "/run/own/logs": "tmpfs",
            "/sys/fs/cgroup": "cgroup2",
        }.items()
    )
    assert {"nosuid", "nodev", "noexec"} <= set(mounted["/proc"].options.split(","))
    assert {"gid=5", "mode=620", "ptmxmode=666"} <= set(
        mounted["/dev/pts"].super_options.split(",")
    )
    assert "size=1024k" in mounted["/run/own/spools"].super_options.split(",")


def test_mounts_are_let_go_in_reverse_order(run: str, cgroup: str, tmp_path: Path) -> None:
    """In any other order a mount below would keep the one above busy."""
    with PidNamespace(Plan(run=run, cgroup=cgroup, tree=str(tmp_path / "tree"))) as bed:
        bed.wait_said("booted")
        with bed.connect() as client:
            client.ask("power", action="off")
        assert bed.wait_end() == ENDED_OFF
        said = "\n".join(bed.finish_console())
    assert "stays mounted" not in said
    assert "could not be unmounted" not in said


def test_a_dead_disk_and_a_dead_server_do_not_keep_the_machine_up(
    run: str, cgroup: str, tmp_path: Path
) -> None:
    """sync(2) and umount(2) that never return: stand-ins that ignore all but SIGKILL."""
    stuck = ("/bin/sh", "-c", 'trap "" TERM; sleep infinity & wait')
    plan = Plan(
        run=run,
        cgroup=cgroup,
        tree=str(tmp_path / "tree"),
        sync=stuck,
        unmount=stuck,
        bounds={"sync": 0.1, "unmount": 0.01},
    )
    with PidNamespace(plan) as bed:
        bed.wait_said("booted")
        os.kill(bed.init_pid, signal.SIGTERM)
        assert bed.wait_end() == ENDED_OFF
        said = "\n".join(bed.finish_console())
    assert f"sync of {tmp_path}/tree/proc had not ended after 0.1 s" in said
    assert "/proc could not be unmounted in time" in said


def test_one_that_hangs_keeps_no_other_from_being_unmounted(
    run: str, cgroup: str, tmp_path: Path
) -> None:
    """Neither its sync nor its unmounting is waited for twice: the bound of the latter is long."""
    stuck = 'case "$0" in */tree/proc) trap "" TERM; sleep infinity & wait;; esac'
    plan = Plan(
        run=run,
        cgroup=cgroup,
        tree=str(tmp_path / "tree"),
        sync=("/bin/sh", "-c", stuck),
        unmount=("/bin/sh", "-c", f'{stuck}; exec umount "$0"'),
        bounds={"sync": 5, "unmount": 60},
    )
    with PidNamespace(plan) as bed:
        bed.wait_said("booted")
        os.kill(bed.init_pid, signal.SIGTERM)
        assert bed.wait_end() == ENDED_OFF
        said = [line for line in bed.finish_console() if "/tree" in line]
    assert [line.split(": ", 1)[1] for line in said] == [
        f"sync of {tmp_path}/tree/proc had not ended after 5 s: going on",
        f"{tmp_path}/tree/proc could not be unmounted in time",
    ]

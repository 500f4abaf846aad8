"""The program that stands in for crun (see crun.py): processes are real, containers are not.

It is copied, with a `crun` that starts it, beside a file `plan.json`, which says where
things are and what goes wrong. A created process waits on a FIFO until `start`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import sys
import termios
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent


class RefusalError(Exception):
    """What crun would say."""


def main() -> None:
    arguments = parse()
    plan = json.loads((HERE / "plan.json").read_text())
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    try:
        if message := plan["fail"].get(arguments.operation):
            raise RefusalError(message)
        OPERATIONS[arguments.operation](arguments, plan)
        if arguments.operation in plan["hang"]:
            signal.pause()
    except RefusalError as refused:
        line = {"msg": str(refused), "level": "error", "time": "now"}
        Path(arguments.log).write_text(json.dumps(line) + "\n")
        sys.stderr.write(f"{refused}\n")
        sys.exit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--cgroup-manager", choices=["cgroupfs"], required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--log-format", choices=["json"], required=True)
    operations = parser.add_subparsers(dest="operation", required=True)
    for name in OPERATIONS:
        one = operations.add_parser(name)
        one.add_argument("id")
        if name in ("create", "exec"):
            one.add_argument("--pid-file", type=Path, required=True)
            one.add_argument("--console-socket", type=Path)
        if name == "create":
            one.add_argument("--bundle", type=Path, required=True)
        if name == "exec":
            one.add_argument("--detach", action="store_true", required=True)
            one.add_argument("--process", type=Path, required=True)
        if name == "update":
            one.add_argument("--resources", type=Path, required=True)
        if name == "delete":
            one.add_argument("--force", action="store_true", required=True)
    return parser.parse_args()


def create(arguments: argparse.Namespace, plan: dict[str, Any]) -> None:
    directory = arguments.root / arguments.id
    if directory.exists():
        raise RefusalError(f"container `{arguments.id}` already exists")
    config = json.loads((arguments.bundle / "config.json").read_text())
    directory.mkdir(parents=True)
    os.mkfifo(directory / "exec.fifo")
    cgroup = config["linux"]["cgroupsPath"]
    pid = begin(config["process"], arguments, plan, cgroup, directory / "exec.fifo")
    status = {"pid": pid, "cgroup": cgroup}
    (directory / "status").write_text(json.dumps(status))
    if "pid-file" not in plan["skip"]:
        arguments.pid_file.write_text(str(pid))


def start(arguments: argparse.Namespace, _plan: dict[str, Any]) -> None:
    fifo = arguments.root / arguments.id / "exec.fifo"
    if not fifo.exists():
        raise RefusalError(f"cannot open `{fifo}`: No such file or directory")
    with fifo.open("w") as go:
        go.write("go")
    fifo.unlink()


def execute(arguments: argparse.Namespace, plan: dict[str, Any]) -> None:
    status = read_status(arguments)
    process = json.loads(arguments.process.read_text())
    if not Path(process["args"][0]).exists():
        raise RefusalError(f"executable file `{process['args'][0]}` not found in $PATH")
    if "exec" in plan["stuck"]:
        # The child that has joined the container, before it becomes the process.
        process["args"] = [sys.executable, "-c", "import signal; signal.pause()", *sys.argv[1:]]
        begin(process, arguments, plan, status["cgroup"], None)
        signal.pause()
    pid = begin(process, arguments, plan, status["cgroup"], None)
    if "pid-file" not in plan["skip"]:
        arguments.pid_file.write_text(str(pid))


def update(arguments: argparse.Namespace, plan: dict[str, Any]) -> None:
    read_status(arguments)
    resources = json.loads(arguments.resources.read_text())
    with (HERE / "updates.jsonl").open("a") as updates:
        updates.write(json.dumps(resources) + "\n")
    # As crun: what comes before the one that is refused has taken effect.
    for name in resources:
        if message := plan["fail"].get(f"update {name}"):
            raise RefusalError(message)


def state(arguments: argparse.Namespace, _plan: dict[str, Any]) -> None:
    waits = (arguments.root / arguments.id / "exec.fifo").exists()
    pid = read_status(arguments)["pid"]
    running = "created" if waits else "running"
    answer = {"id": arguments.id, "status": running if alive(pid) else "stopped"}
    sys.stdout.write(json.dumps(answer))


def delete(arguments: argparse.Namespace, _plan: dict[str, Any]) -> None:
    directory = arguments.root / arguments.id
    if (directory / "status").exists():
        pid = read_status(arguments)["pid"]
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory)


OPERATIONS = {
    "create": create,
    "start": start,
    "exec": execute,
    "update": update,
    "state": state,
    "delete": delete,
}


def read_status(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads((arguments.root / arguments.id / "status").read_text())
    except FileNotFoundError as error:
        raise RefusalError(f"error opening file `{error.filename}`: No such file") from error
    return status


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def begin(
    process: dict[str, Any],
    arguments: argparse.Namespace,
    plan: dict[str, Any],
    cgroup: str,
    fifo: Path | None,
) -> int:
    """Start the process as an orphan, and tell the stand-in for PID 1 of it."""
    slave = make_terminal(arguments.console_socket) if arguments.console_socket else None
    read_end, write_end = os.pipe()
    middle = os.fork()
    if middle == 0:
        child = os.fork()
        if child == 0:
            become(process, slave, fifo)
        os.write(write_end, str(child).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    pid = int(os.read(read_end, 20))
    entry = Path(plan["proc"]) / str(pid)
    entry.mkdir(parents=True, exist_ok=True)
    (entry / "cgroup").write_text(f"0::{cgroup}\n")
    (entry / "fd").symlink_to(f"/proc/{pid}/fd")
    (entry / "ns").mkdir(exist_ok=True)
    (entry / "ns" / "net").touch()
    tell_pid1(plan["pid1"], pid, cgroup)
    return pid


def become(process: dict[str, Any], slave: int | None, fifo: Path | None) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if slave is not None:
        take_terminal(slave)
    if fifo is not None:
        with fifo.open() as go:
            go.read()
    environment = dict(entry.split("=", 1) for entry in process["env"])
    try:
        os.execve(process["args"][0], process["args"], environment)
    except OSError:
        os._exit(127)


def take_terminal(slave: int) -> None:
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(slave, fd)


def make_terminal(path: Path) -> int:
    master, slave = pty.openpty()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        socket.send_fds(sock, [b"/dev/ptmx"], [master])
    os.close(master)
    return slave


def tell_pid1(path: str, pid: int, cgroup: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)
        sock.send(json.dumps({"op": "adopt", "pid": pid, "cgroup": cgroup}).encode())
        sock.recv(100)


if __name__ == "__main__":
    main()

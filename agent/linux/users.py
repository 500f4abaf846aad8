"""Who uses a device: mounts, swap, devices on top, open descriptors, network namespaces.

Everything is read from proc and sysfs. It runs in a process that can be given up
(`fsworker`): looking at what somebody has open may ask the file system that it is on.

Nobody is passed over, the agent and this process included: none of them keeps a
device's node open for the sake of looking.

Not seen: descriptors of a thread with a table of its own (CLONE_THREAD without
CLONE_FILES), and descriptors on their way through a unix socket.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from agent.linux import blockstack, mounting, netusers, procs, pseudo, statx
from agent.linux.block import NodeNumbers, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHOWN = 32
"""Users in an answer, which must fit into one message."""

FILES_OF_ONE = 65_536
"""Descriptors and mapped files of one process that are looked at."""

FILES_OF_ALL = 262_144

UNSEEN = "a file system unmounted lazily or mounted where no process is, or the kernel itself"


class User(NamedTuple):
    """One who uses the device; protocol/innkeeper/v1/devices.proto explains the fields."""

    kind: str
    name: str = ""
    path: str = ""
    pid: int = 0
    command: str = ""


class Sought(NamedTuple):
    """The device: numbers of all its nodes with what to call them, and its block devices.

    `directory` is that of sysfs; `whole` are paths of nodes of block devices.
    """

    proc: str
    sys: str
    directory: str
    nodes: dict[NodeNumbers, str]
    blocks: blockstack.Stack
    whole: tuple[str, ...]


MountTable: TypeAlias = tuple[procs.Process, bool, tuple[mounting.MountEntry, ...]]
"""Mounts that one process sees, and whether these are PID 1's."""


def device_users(
    *, proc: str, sys: str, nodes: list[tuple[str, str, int, int]], blocks: list[str], device: str
) -> list[dict[str, Any]]:
    """The users of a device, at most `SHOWN`; the last says when there are more.

    `nodes` are path, type ("b" or "c"), major and minor; `blocks` names in
    /sys/class/block, of which partitions and what is on top are found here; `device`
    is the device's directory in sysfs.
    """
    sought = _sought(proc, sys, nodes, blocks, device)
    return [user._asdict() for user in _bounded(_users(sought))]


def _sought(
    proc: str, sys: str, nodes: list[tuple[str, str, int, int]], blocks: list[str], device: str
) -> Sought:
    stack = blockstack.stack(sys, blocks)
    numbers = {name: blockstack.numbers(sys, name) for name in stack.all}
    known = {NodeNumbers("b", *found): f"/dev/{name}" for name, found in numbers.items() if found}
    known |= {NodeNumbers(kind, major, minor): path for path, kind, major, minor in nodes}
    whole = tuple(path for path, kind, _, _ in nodes if kind == "b")
    return Sought(proc, sys, device, known, stack, whole)


def _users(sought: Sought) -> Iterator[User]:
    people = procs.processes(sought.proc)
    tables = list(_mount_tables(people))
    claims = [
        *(User("stacked", name) for name in sought.blocks.above),
        *_mounts(sought, tables),
        *_swaps(sought),
    ]
    # Everything of these three has claimed the disk, so the kernel knows of all of them.
    yield from claims or _unseen(sought)
    places = netusers.Places(sought.proc, people)
    yield from _descriptors(sought, people, places)
    for process, _, entries in tables:
        places.note_mounts(process, entries)
    yield from _namespaces(sought, places)


def _bounded(users: Iterable[User]) -> list[User]:
    found = list(users)
    if len(found) <= SHOWN:
        return found
    rest = found[SHOWN - 1 :]
    return [*found[: SHOWN - 1], User(rest[0].kind, f"and {len(rest)} more")]


def _mount_tables(people: list[procs.Process]) -> Iterator[MountTable]:
    """One for each mount namespace; more where somebody's root hides a part of it."""
    first = next((process for process in people if process.pid == 1), None)
    init = procs.namespace(first, "mnt") if first else None
    seen: set[tuple[str, str]] = set()
    # Threads of the kernel last: a process says more of where a mount comes from.
    for process in sorted(people, key=procs.is_kernel_thread):
        namespace = procs.namespace(process, "mnt")
        view = (namespace or "", procs.target_of(f"{process.directory}/root"))
        if namespace is None or view in seen:
            continue
        entries = _mountinfo(process)
        if entries:
            seen.add(view)
            yield process, namespace == init, entries


def _mountinfo(process: procs.Process) -> tuple[mounting.MountEntry, ...]:
    try:
        text = pseudo.read_text(f"{process.directory}/mountinfo")
    except OSError:
        return ()
    return mounting.parse_mountinfo(text)


def _mounts(sought: Sought, tables: list[MountTable]) -> Iterator[User]:
    # Numbers of mounts are the kernel's, not a namespace's.
    seen: set[int] = set()
    for process, is_init, entries in tables:
        for entry in entries:
            if entry.mount_id in seen or not _is_of(sought, entry):
                continue
            seen.add(entry.mount_id)
            name, path = procs.clean(entry.source), procs.clean(entry.mount_point)
            if is_init:
                yield User("mount", name, path)
            else:
                yield User("mount", name, path, process.pid, procs.command(process))


def _is_of(sought: Sought, entry: mounting.MountEntry) -> bool:
    if NodeNumbers("b", *entry.device) in sought.nodes:
        return True
    # btrfs has numbers of its own, and names one of its disks as the source.
    source = entry.source.removeprefix("/dev/")
    return entry.fs_type == "btrfs" and source in sought.blocks.all


def _swaps(sought: Sought) -> Iterator[User]:
    try:
        lines = pseudo.read_text(f"{sought.proc}/swaps").split("\n")[1:]
    except OSError:
        return
    for fields in (line.split() for line in lines):
        if fields[1:2] == ["partition"]:
            path = mounting.unescape(fields[0]).removesuffix(" (deleted)")
            node = _node(path)
            known = node in sought.nodes if node else path.rpartition("/")[2] in sought.blocks.all
            if known:
                yield User("swap", path=procs.clean(path))


def _unseen(sought: Sought) -> Iterator[User]:
    """Ask for a claim of our own, which the kernel refuses where there is one (open(2), O_EXCL)."""
    flags = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC
    for path in sought.whole:
        if _node(path) not in sought.nodes:
            continue
        try:
            os.close(os.open(path, flags))
        except OSError as error:
            if error.errno == errno.EBUSY:
                yield User("mount", UNSEEN, procs.clean(path))


def _descriptors(
    sought: Sought, people: list[procs.Process], places: netusers.Places
) -> Iterator[User]:
    left = FILES_OF_ALL
    for done, process in enumerate(people):
        if left == 0:
            rest = len(people) - done
            yield User("descriptor", f"and more: {rest} processes were not looked at")
            return
        limit = min(FILES_OF_ONE, left)
        looked = 0
        seen: set[NodeNumbers] = set()
        for file in procs.open_files(process, limit):
            looked += 1
            facts = _facts(file.link)
            if facts is None:
                continue
            places.note_file(file, facts)
            if facts.node in sought.nodes and facts.node not in seen:
                seen.add(facts.node)
                yield _holder(file, sought.nodes[facts.node])
        left -= looked
        if looked == limit:
            name = f"and more: only {looked} of its descriptors were looked at"
            yield User("descriptor", name, "", process.pid, procs.command(process))


def _holder(file: procs.OpenFile, node: str) -> User:
    """`path` is what it was opened by, which may be a container's own name for the node."""
    opened = procs.clean(procs.target_of(file.link))
    process = file.process
    return User("descriptor", "", opened or node, process.pid, procs.command(process))


def _namespaces(sought: Sought, places: netusers.Places) -> Iterator[User]:
    args = (sought.sys, sought.proc, sought.directory, places)
    for away in netusers.interfaces_elsewhere(*args):
        process = away.process
        command = procs.command(process)
        yield User("network-namespace", away.namespace, away.path, process.pid, command)


def _facts(link: str) -> statx.FileFacts | None:
    try:
        return statx.facts(link)
    except OSError:
        return None


def _node(path: str) -> NodeNumbers | None:
    try:
        return numbers_of(os.lstat(path))
    except OSError:
        return None

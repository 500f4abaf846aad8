"""Device-mapper devices of storages: making one, and taking it back.

The node is /dev/dm-N: there is no udev to make names. `verity.py` and `crypt.py` say
what is in the table.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from agent.core import commands
from agent.core.errors import AgentError, Reason, kernel_refused, timed_out, wrong_state
from agent.core.hotplug import Wish
from agent.core.verdict import NotYet, Ready, Verdict
from agent.handlers.devices import nodes
from agent.handlers.storage.pieces import Piece, PieceKind
from agent.linux.mounting import parse_mountinfo
from agent.linux.pseudo import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from agent.core.deadlines import Deadline
    from agent.core.model import DeviceNode
    from agent.core.tree import SysfsTree
    from agent.handlers.storage.base import Tools
    from agent.handlers.storage.job import Job
    from agent.linux.devicemapper import MappingTable

SECTOR = 512

_MODULE = "dm_mod"
_VIRTUAL = "/devices/virtual/block"
_HINTS = {
    errno.EBUSY: "a disk below it is mounted, or part of another mapping",
    errno.EINVAL: "the kernel has no such target or hash or cipher, or a value does not fit",
    errno.ENOENT: "the kernel has no such cipher or hash, or no module for it",
}


async def make(job: Job[Any], kind: str, table: MappingTable) -> DeviceNode:
    """A mapping `innkeeper.KIND.ID` of the job's storage; its node.

    Raises MAPPING_REFUSED with the kernel's errno and what its log says,
    OPERATION_TIMED_OUT, DEVICE_NOT_READY when the node does not come.
    """
    piece = Piece(kind=PieceKind.MAPPING, name=f"innkeeper.{kind}.{job.request.id}")
    control = await _control(job.tools, job.deadline)
    making = _Making(job.tools, control, piece.name, job.deadline)
    return await job.make(piece, lambda: making.make(table))


async def take_back(
    tools: Tools, piece: Piece, deadline: Deadline, *, deferred: bool = False
) -> None:
    """Remove the mapping; fine when it is gone.

    `deferred`: one that is in use (its file system was detached lazily) goes by itself
    after its last user. Raises STILL_IN_USE with its users otherwise.
    """
    if not await tools.files.settled(piece.name, deadline.left()):
        raise timed_out(f"an earlier call on the {piece} has not come back from the kernel")
    control = _control_node(tools)
    if not control.exists():
        return
    try:
        await tools.files.remove_mapping(control, piece.name, deadline, deferred=deferred)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise await _in_use(tools, piece, deadline) from error
        if error.errno != errno.ENXIO:
            doing = f"the {piece} cannot be removed"
            raise kernel_refused(error, doing=doing, reason=Reason.MAPPING_REFUSED) from error


def directory_of(tree: SysfsTree, node: DeviceNode) -> Path | None:
    """A block device's directory in sysfs, by its numbers."""
    return tree.real(tree.roots.sys / f"dev/block/{node.major}:{node.minor}")


def size_of(tree: SysfsTree, node: DeviceNode) -> int:
    """Bytes of a block device. Raises DEVICE_NOT_READY for one that is gone or empty."""
    directory = directory_of(tree, node)
    sectors = int(tree.text(directory / "size") or 0) if directory is not None else 0
    if not sectors:
        raise wrong_state(
            f"{node.path} ({node.major}:{node.minor}) has no size: its disk is gone, or not ready",
            reason=Reason.DEVICE_NOT_READY,
            node=node.path,
        )
    return sectors * SECTOR


def is_read_only(tree: SysfsTree, node: DeviceNode) -> bool:
    """Whether the kernel refuses writes to the device."""
    directory = directory_of(tree, node)
    return directory is not None and tree.text(directory / "ro") == "1"


class _Making:
    """The three steps of a new mapping."""

    def __init__(self, tools: Tools, control: Path, name: str, deadline: Deadline) -> None:
        self._tools = tools
        self._control = control
        self._name = name
        self._deadline = deadline

    async def make(self, table: MappingTable) -> DeviceNode:
        files, deadline = self._tools.files, self._deadline
        try:
            numbers = await files.create_mapping(self._control, self._name, self._name, deadline)
        except OSError as error:
            raise self._not_created(error) from error
        told = self._log(numbers)
        try:
            await files.load_mapping(self._control, self._name, table, deadline)
            await files.resume_mapping(self._control, self._name, deadline)
        except OSError as error:
            new = [line for line in self._log(numbers) if line not in told]
            raise self._refused(error, table.target, new) from error
        return await self._node(numbers)

    def _log(self, numbers: tuple[int, int]) -> tuple[str, ...]:
        """A number is used again, so the log may tell of an earlier mapping."""
        major, minor = numbers
        return self._tools.board.tree.log.lines((f"{major}:{minor}",))

    def _not_created(self, error: OSError) -> AgentError:
        hint = "a mapping of that name is left from before; attach again"
        return kernel_refused(
            error,
            doing=f"the mapping {self._name} cannot be made",
            reason=Reason.MAPPING_REFUSED,
            hint=hint if error.errno == errno.EBUSY else None,
        )

    def _refused(self, error: OSError, target: str, log: list[str]) -> AgentError:
        """`from error` keeps the errno's text; the parameters are in neither."""
        told = f"; the kernel's log: {log[-1]}" if log else ""
        refusal = kernel_refused(
            error,
            doing=f"the kernel refuses the {target} mapping {self._name}{told}",
            reason=Reason.MAPPING_REFUSED,
            hint=_HINTS.get(error.errno or 0),
        )
        refusal.fields["kernel_log"] = "\n".join(log) or "none"
        return refusal

    async def _node(self, numbers: tuple[int, int]) -> DeviceNode:
        wish = Wish(what=f"mapping {self._name}", probe=lambda tree: _probe(tree, numbers))
        return await self._tools.board.wait(wish, self._deadline)


def _probe(tree: SysfsTree, numbers: tuple[int, int]) -> Verdict[DeviceNode]:
    """devtmpfs makes the node before the kernel comes back from the load, as a rule."""
    directory = tree.real(tree.roots.sys / f"dev/block/{numbers[0]}:{numbers[1]}")
    if directory is None:
        evidence = f"sysfs has no block device {numbers[0]}:{numbers[1]} yet"
        return NotYet(evidence=evidence, near=(_VIRTUAL,))
    near = (tree.devpath(directory),)
    if (tree.text(directory / "size") or "0") == "0":
        return NotYet(evidence=f"{directory.name} has size 0 so far", near=near)
    node = nodes.node_of(tree, directory)
    if isinstance(node, nodes.NoNode):
        return NotYet(evidence=node.why, near=near)
    return Ready(node)


async def _control(tools: Tools, deadline: Deadline) -> Path:
    """The control node; it comes with the module, which only we ask for."""
    control = _control_node(tools)
    if control.exists():
        return control
    said = "modprobe says nothing"
    try:
        argv = ["modprobe", "-b", "--", _MODULE]
        result = await commands.run(argv, deadline=deadline, check=False)
        said = result.stderr_tail or said
    except AgentError as error:
        said = str(error)
    if not control.exists():
        raise wrong_state(
            f"this kernel has no device-mapper: there is no {control} ({said})",
            reason=Reason.MAPPING_REFUSED,
            hint=f"build the image with --module {_MODULE}",
        )
    return control


def _control_node(tools: Tools) -> Path:
    return tools.roots.dev / "mapper/control"


async def _in_use(tools: Tools, piece: Piece, deadline: Deadline) -> AgentError:
    users = await _users(tools, piece.name, deadline)
    return wrong_state(
        f"the {piece} is in use: {', '.join(users) or 'nobody shows'}",
        reason=Reason.STILL_IN_USE,
        hint="take away what uses it, then detach again",
        mapping=piece.name,
        users=", ".join(users),
    )


async def _users(tools: Tools, name: str, deadline: Deadline) -> list[str]:
    """As far as sysfs and the table of mounts tell, and how many opens there are in all."""
    try:
        status = await tools.files.mapping_status(_control_node(tools), name, deadline)
    except (OSError, AgentError) as error:
        return [f"its status is not to be had: {error}"]
    tree = tools.board.tree
    numbers = (status.major, status.minor)
    holders = tree.roots.sys / f"dev/block/{status.major}:{status.minor}/holders"
    above = [f"{each} on top of it" for each in tree.names(holders)]
    table = parse_mountinfo(read_text(tools.roots.proc / "self/mountinfo"))
    mounts = [f"the mount on {each.mount_point}" for each in table if each.device == numbers]
    return [*above, *mounts, f"opened {status.open_count} times"]

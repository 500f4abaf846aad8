"""NVIDIA's driver: nodes that devtmpfs does not make, and what /proc says of them.

The major of GPUs is 195, of everything else dynamic: /proc/devices has them, with
"nvidia" called "nvidia-frontend" before release 550. Minors of GPUs do not follow
their PCI addresses; /proc/driver/nvidia/gpus/BDF/information tells them
(nv-procfs.c of NVIDIA's open kernel modules). Owner and mode of nodes, and whether
anybody but the administrator may make them, are parameters of the module, which
nvidia-modprobe obeys and so do we (nvidia-modprobe-utils.c). Files below
/proc/driver/nvidia/capabilities are the MIG instances that there are, with the minor
of the node that opens each (nv-caps.c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.core.errors import Reason
from agent.core.verdict import Failed, NotYet, SlowRead
from agent.handlers.devices.gpus.parts import CharNode, Parts, content_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.core.tree import PciFunction, SysfsTree

VENDOR = "10de"
NAME = "nvidia"
GPU_DRIVER = "nvidia"
SWITCH_DRIVER = "nvidia-nvswitch"

_CONTROL = 255
_MODESET = 254

# NVRM's own words in the kernel's log for a GPU that it can't use.
_REFUSALS = (
    "RmInitAdapter failed",
    "rm_init_adapter failed",
    "has fallen off the bus",
    "is not supported by",
    "requires use of the NVIDIA open kernel modules",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """How nodes of one kind are to be made."""

    mode: int = 0o666
    uid: int = 0
    gid: int = 0
    modify: bool = True
    imex_channel: bool = False

    @classmethod
    def read(cls, text: str | None) -> _Rules:
        """From `params`, `permissions` or a capability's file; all numbers are decimal."""
        values = _values(text or "")
        return cls(
            mode=_number(values, "DeviceFileMode", 0o666),
            uid=_number(values, "DeviceFileUID", 0),
            gid=_number(values, "DeviceFileGID", 0),
            modify=_number(values, "ModifyDeviceFiles", 1) == 1
            and _number(values, "DeviceFileModify", 1) == 1,
            imex_channel=_number(values, "CreateImexChannel0", 0) == 1,
        )

    def node(self, path: Path, major: int, minor: int) -> CharNode:
        return CharNode(
            path=path,
            major=major,
            minor=minor,
            mode=self.mode,
            uid=self.uid,
            gid=self.gid,
            ours=self.modify,
        )


def refusal(tree: SysfsTree, function: PciFunction) -> Failed | None:
    """A line of the driver's in the kernel's log that says that it can't use the GPU."""
    names = names_of(function)
    for line in tree.log.lines(names):
        if any(words in line for words in _REFUSALS):
            return Failed(
                f"the NVIDIA driver can't use {function.bdf}: {line}", Reason.DRIVER_REFUSED, names
            )
    return None


def names_of(function: PciFunction) -> tuple[str, ...]:
    """The log's names of a GPU: messages of Xid leave the function's number out."""
    bdf = str(function.bdf)
    return (bdf, f"PCI:{bdf}", f"PCI:{bdf.rpartition('.')[0]}")


def look(tree: SysfsTree, function: PciFunction) -> Parts | NotYet | Failed:
    """What the bound driver has for a function; NotYet names the read that it needs."""
    refused = refusal(tree, function)
    if refused is not None:
        return refused
    majors = _majors(tree.text(tree.roots.proc / "devices") or "")
    if tree.link_name(function.directory / "driver") == SWITCH_DRIVER:
        return _switch(tree, function, majors)
    major = majors.get("nvidia", majors.get("nvidia-frontend"))
    if major is None:
        return _waiting(tree, function, "the driver is not loaded: /proc/devices has no nvidia")
    told = _information(tree, function)
    if not isinstance(told, dict):
        return told
    if told.get("GPU Excluded") == "Yes":
        why = f"the NVIDIA driver was told to leave {function.bdf} alone (NVreg_ExcludedGpus)"
        return Failed(why, Reason.DRIVER_REFUSED, names_of(function))
    return _gpu(tree, told, majors | {"nvidia": major})


def _waiting(
    tree: SysfsTree, function: PciFunction, evidence: str, needs: tuple[SlowRead, ...] = ()
) -> NotYet:
    return NotYet(
        evidence=f"{function.bdf} has the driver nvidia; {evidence}",
        near=(tree.devpath(function.directory),),
        needs=needs,
        names=names_of(function),
        hint="is the module in the request's load_modules, and its package in the image?",
    )


def _information(tree: SysfsTree, function: PciFunction) -> dict[str, str] | NotYet:
    """The driver's facts of a GPU; reading them may wake the GPU up, so a worker does it."""
    bdf = str(function.bdf)
    path = tree.roots.proc / "driver/nvidia/gpus" / bdf / "information"
    if not path.exists():
        return _waiting(tree, function, f"its list of GPUs has no {bdf}")
    read = SlowRead(path=path, instance=tree.instance(function.directory) or "")
    text = tree.slow_text(read)
    if text is None:
        return _waiting(tree, function, "it has not said what the GPU is", (read,))
    told = _values(text)
    if not told.get("Device Minor", "").isdecimal():
        return _waiting(tree, function, f"it tells no minor number ({text[:100]!r})")
    return told


def _gpu(tree: SysfsTree, told: Mapping[str, str], majors: Mapping[str, int]) -> Parts:
    minor = int(told["Device Minor"])
    rules = _Rules.read(tree.text(tree.roots.proc / "driver/nvidia/params"))
    uuid = told.get("GPU UUID", "")
    own = rules.node(tree.roots.dev / f"nvidia{minor}", majors["nvidia"], minor)
    return Parts(
        model=told.get("Model", ""),
        # Question marks stand for what the driver knows only once the GPU was opened.
        uuid="" if "?" in uuid else uuid,
        minor=minor,
        own=(own,),
        shared=_there_or_ours(tree, _shared(tree, rules, majors)),
        mig=_there_or_ours(tree, _instances(tree, minor, majors)),
    )


def _there_or_ours(tree: SysfsTree, nodes: Iterator[CharNode]) -> tuple[CharNode, ...]:
    """Where nodes are not ours to make, the administrator chose which there are."""
    return tuple(node for node in nodes if node.ours or content_of(tree, node.path) == node.content)


def _shared(tree: SysfsTree, rules: _Rules, majors: Mapping[str, int]) -> Iterator[CharNode]:
    dev = tree.roots.dev
    yield rules.node(dev / "nvidiactl", majors["nvidia"], _CONTROL)
    if (tree.roots.sys / "module/nvidia_modeset").exists():
        yield rules.node(dev / "nvidia-modeset", majors["nvidia"], _MODESET)
    if (uvm := majors.get("nvidia-uvm")) is not None:
        # The parameters are not for these: nvidia-modprobe makes them 0666 in any case.
        plain = _Rules(modify=rules.modify)
        yield plain.node(dev / "nvidia-uvm", uvm, 0)
        yield plain.node(dev / "nvidia-uvm-tools", uvm, 1)
    channels = majors.get("nvidia-caps-imex-channels")
    if channels is not None and rules.imex_channel:
        yield rules.node(dev / "nvidia-caps-imex-channels/channel0", channels, 0)


def _instances(tree: SysfsTree, gpu: int, majors: Mapping[str, int]) -> Iterator[CharNode]:
    """Nodes of a GPU's MIG instances: `giN` is a GPU instance, `giN/ciM` one for computing."""
    major = majors.get("nvidia-caps")
    if major is None:
        return
    top = tree.roots.proc / f"driver/nvidia/capabilities/gpu{gpu}/mig"
    table = _minors(tree.text(tree.roots.proc / "driver/nvidia-caps/mig-minors") or "")
    for name in _access_files(tree, top):
        text = tree.text(top / name) or ""
        minor = _number(_values(text), "DeviceFileMinor", table.get(f"gpu{gpu}/{name}", -1))
        if minor >= 0:
            path = tree.roots.dev / f"nvidia-caps/nvidia-cap{minor}"
            yield _Rules.read(text).node(path, major, minor)


def _access_files(tree: SysfsTree, top: Path) -> Iterator[str]:
    for gi in _numbered(tree, top, "gi"):
        yield f"{gi}/access"
        for ci in _numbered(tree, top / gi, "ci"):
            yield f"{gi}/{ci}/access"


def _numbered(tree: SysfsTree, directory: Path, prefix: str) -> list[str]:
    """`gi2` before `gi10`."""
    found = [
        name
        for name in tree.names(directory)
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    ]
    return sorted(found, key=lambda name: int(name.removeprefix(prefix)))


def _switch(tree: SysfsTree, function: PciFunction, majors: Mapping[str, int]) -> Parts | NotYet:
    """An NVSwitch. Its minor is told nowhere but in the name under which it holds its BAR."""
    major = majors.get(SWITCH_DRIVER)
    minor = _switch_minor(tree, str(function.bdf))
    if major is None or minor is None:
        return _waiting(tree, function, "the driver has no number for this switch yet")
    proc, dev = tree.roots.proc, tree.roots.dev
    rules = _Rules.read(tree.text(proc / "driver/nvidia-nvswitch/permissions"))
    shared = [rules.node(dev / "nvidia-nvswitchctl", major, _CONTROL)]
    if (nvlink := majors.get("nvidia-nvlink")) is not None:
        rights = _Rules.read(tree.text(proc / "driver/nvidia-nvlink/permissions"))
        shared.append(rights.node(dev / "nvidia-nvlink", nvlink, 0))
    return Parts(
        model="NVSwitch",
        minor=minor,
        own=(rules.node(dev / f"nvidia-nvswitch{minor}", major, minor),),
        shared=_there_or_ours(tree, iter(shared)),
    )


def _switch_minor(tree: SysfsTree, bdf: str) -> int | None:
    """From /proc/iomem, where a driver's region follows that of the function, at its address."""
    start = ""
    for line in (tree.text(tree.roots.proc / "iomem") or "").splitlines():
        span, _, name = line.strip().partition(" : ")
        if name == bdf:
            start = span.partition("-")[0]
        number = name.removeprefix(SWITCH_DRIVER)
        if start and span.partition("-")[0] == start and number != name and number.isdecimal():
            return int(number)
    return None


def _majors(devices: str) -> dict[str, int]:
    """Character devices of /proc/devices; block devices have names of their own below."""
    _, _, text = devices.partition("Character devices:\n")
    pairs = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdecimal()}


def _minors(table: str) -> dict[str, int]:
    """mig-minors: `gpu0/gi1/ci0/access 4`, for all instances that could ever be."""
    pairs = [line.split() for line in table.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _values(text: str) -> dict[str, str]:
    """Lines of `Name: value`, with blanks around either."""
    pairs: list[tuple[str, str, str]] = [line.partition(":") for line in text.splitlines()]
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    return int(text) if text.isdecimal() else default

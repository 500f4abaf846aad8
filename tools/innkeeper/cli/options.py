"""Words of the command line that more than one command has, and what they mean."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import hints
from innkeeper.shim.errors import ShimError
from innkeeper.shim.spec import LEAST_MEMORY, MIB, NinePShare

if TYPE_CHECKING:
    from innkeeper.shim.spec import VmSpec

# Ends of ranges that are far from everything real, and well within 64 bits.
_SIZE = re.compile(r"(\d{1,18})\s*([KMGT]?)(i?B)?", re.IGNORECASE)
_LARGEST_SIZE = 1 << 50
_LAST_ID = 2**32 - 2
_LONGEST_CALL = 10**9
_UNITS = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40}
_MOUNT = re.compile(r"(?P<what>.+?):(?P<mount>/[^:]*)(?P<read_only>:ro)?")
_STEP = r"[01][0-9a-fA-F](?:\.[0-7])?"
_DEVICE = re.compile(
    r"(?:(?P<bdf>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])"
    rf"|(?P<pci_path>(?:[0-9a-fA-F]{{4,8}}:[0-9a-fA-F]{{2}}/)?{_STEP}(?:/{_STEP})+)"
    r"|(?P<node>/dev/[^:]+)"
    r"|(?P<id>[A-Za-z0-9][A-Za-z0-9_.-]{0,63}))"
    r"(?::(?P<path>/[^:]*))?(?::(?P<permissions>[rwm]{1,3}))?"
)
_CDI = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_-]*=[A-Za-z0-9][A-Za-z0-9_.:-]*")
_DISK = re.compile(r"(?P<file>.+?):(?P<mount>/[^:]*)(?P<words>(?::[^:]+)*)")

ImageOption = Annotated[
    str, typer.Option(metavar="NAME", help="Flavour of the guest image, or an image's directory.")
]
MemoryOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help=f"The guest's memory, as in 512M or 2G, at least {LEAST_MEMORY // MIB}M;"
        " a bare number means MiB.",
    ),
]
CpusOption = Annotated[int, typer.Option(metavar="N", help="The guest's CPUs.")]
AccelOption = Annotated[
    str,
    typer.Option(metavar="auto|kvm|tcg", help="auto takes KVM only where it is known to work."),
]
TransportOption = Annotated[
    str,
    typer.Option(
        metavar="auto|vsock|vhost-user-vsock|serial",
        help="The way to the guest; auto takes the best that the host has.",
    ),
]
BootTimeoutOption = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Time to the agent's first answer; 0 means 30 with KVM and 120 without.",
    ),
]
AppendOption = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="A further word of the kernel's command line; repeatable."),
]
DisksOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE:MOUNT[:ro][:fs=TYPE][:format=raw|qcow2]",
        help="Plugs the disk image in and mounts it in the container; repeatable.",
    ),
]
SharesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR:MOUNT[:ro]",
        help="Shares a directory with the VM and mounts it in the container; repeatable.",
    ),
]
StoragesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ID:MOUNT[:ro]",
        help="Mounts a storage of the VM's (`storage attach`); repeatable; with --vm.",
    ),
]
NinePOption = Annotated[
    list[str] | None,
    typer.Option(
        "--share-9p",
        metavar="TAG=DIR[:ro]",
        help="Shares a directory by 9p, from the start; needs --image generic; repeatable.",
    ),
]
PrivateMemoryOption = Annotated[
    bool,
    typer.Option("--private-memory", help="No other process has it: no directory can be shared."),
]
TerminalOption = Annotated[
    bool, typer.Option("-t", "--tty", help="Give the command a terminal: this one.")
]
StdinOption = Annotated[
    bool,
    typer.Option(
        "-i/-n", "--stdin/--no-stdin", help="Pass our input on, or not.", show_default="on"
    ),
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option(
        "-e", "--env", metavar="NAME[=VALUE]", help="Sets a variable, or passes ours; repeatable."
    ),
]
DirectoryOption = Annotated[
    str, typer.Option("-w", "--workdir", metavar="DIR", help="Where the command starts.")
]
UserOption = Annotated[
    str,
    typer.Option(
        "-u",
        "--user",
        metavar="UID[:GID]|NAME[:GROUP]",
        help="Who runs it; names are the container's own.",
    ),
]
RunningOption = Annotated[
    str,
    typer.Option(
        "--vm",
        metavar="NAME",
        help="Run it in this VM, which runs already and goes on.",
        callback=hints.about,
    ),
]
PortsOption = Annotated[int, typer.Option(metavar="N", help="Ports for hot-plug.")]
BridgeOption = Annotated[
    bool, typer.Option("--bridge", help="Adds ports behind a conventional bridge (three levels).")
]
SwitchOption = Annotated[
    bool, typer.Option("--switch", help="Adds ports behind a PCI Express switch (four levels).")
]
SecondRootOption = Annotated[
    bool, typer.Option("--second-root", help="Adds ports on a second root complex (bus 80).")
]
IommuOption = Annotated[bool, typer.Option("--iommu", help="Adds an IOMMU, for VFIO in the guest.")]
NvdimmOption = Annotated[
    bool, typer.Option("--nvdimm", help="NVDIMMs can be attached; needs --max-memory.")
]
MaxMemoryOption = Annotated[
    str, typer.Option(metavar="SIZE", help="What its memory can grow to by `device attach`.")
]
MaxCpusOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="What its CPUs can grow to by `device attach`.",
        show_default="as many as --cpus",
    ),
]
ColdOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[ID=]KIND[:FILE][:vfs=N]",
        help="Hardware that is there from the start; kinds as in `device attach`; repeatable.",
    ),
]
NetsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="user|passt|tap=NAME|wire=NAME[,address=CIDR][,gateway=IP][,name=NAME]...",
        help="A network interface from the start, as of `net attach`; repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskOption:
    """`--disk FILE:MOUNT[:ro][:fs=TYPE][:format=raw|qcow2]`."""

    file: Path
    mount: str
    read_only: bool = False
    fs_type: str = "ext4"
    format: str = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountOption:
    """`--storage ID:MOUNT[:ro]`, `--share DIR:MOUNT[:ro]`."""

    what: str
    mount: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantOption:
    """`--device DEVICE[:PATH][:rwm]`."""

    device: str
    kind: str = "id"
    """How it is named: "id", "bdf", "pci_path", "node"."""
    path: str = ""
    permissions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWord:
    """`--user`: numbers, or a name that the container knows."""

    uid: int = 0
    gid: int = 0
    name: str = ""
    """ "name" or "name:group"; empty: the numbers count."""

    def to_oci(self) -> dict[str, int | str]:
        return {"username": self.name} if self.name else {"uid": self.uid, "gid": self.gid}


def parse_mount(option: str, text: str) -> MountOption:
    """Raises typer.BadParameter."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        form = "as in data:/data or data:/data:ro"
        raise typer.BadParameter(f"{option} {text!r}: write WHAT:MOUNT, {form}")
    return MountOption(what=match["what"], mount=match["mount"], read_only=bool(match["read_only"]))


def parse_share(text: str) -> MountOption:
    """The same of a directory that is there. Raises typer.BadParameter."""
    share = parse_mount("--share", text)
    if not existing_file(share.what).is_dir():
        raise typer.BadParameter(f"--share {share.what}: is no directory")
    return share


def parse_9p(text: str) -> NinePShare:
    """Raises typer.BadParameter."""
    tag, _, directory = text.partition("=")
    path = directory.removesuffix(":ro")
    if not (tag and path):
        raise typer.BadParameter(f"--share-9p {text!r}: write TAG=DIR, as in src=. or src=.:ro")
    if not existing_file(path).is_dir():
        raise typer.BadParameter(f"--share-9p {path}: is no directory")
    read_only = path != directory
    return NinePShare(tag=tag, directory=existing_file(path).resolve(), read_only=read_only)


def parse_grant(text: str) -> GrantOption:
    """Raises typer.BadParameter."""
    if _CDI.fullmatch(text):
        raise typer.BadParameter(f"--device {text}: CDI devices are not built yet")
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"--device {text!r}: write DEVICE[:PATH][:rwm], as in data:/dev/data:r; DEVICE is an"
            " attached device's id, a BDF or PCI path, or a node of the guest's"
        )
    kind = next(each for each in ("bdf", "pci_path", "node", "id") if match[each])
    device = match[kind]
    if kind == "bdf" and device.count(":") == 1:
        device = f"0000:{device}"
    return GrantOption(
        device=device.lower() if kind in ("bdf", "pci_path") else device,
        kind=kind,
        path=match["path"] or "",
        permissions=match["permissions"] or "",
    )


def parse_disk(text: str) -> DiskOption:
    """Raises typer.BadParameter for what is no such option or no such file."""
    match = _DISK.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r}: write FILE:MOUNT, as in data.img:/data or a.img:/a:ro")
    words = [word for word in match["words"].split(":") if word]
    options: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("ro", "fs", "format") or (name == "ro") == bool(value):
            raise typer.BadParameter(f"{text!r}: {word!r} is none of ro, fs=TYPE, format=FORMAT")
        options[name] = value
    return DiskOption(
        file=existing_file(match["file"]),
        mount=match["mount"],
        read_only="ro" in options,
        fs_type=options.get("fs", "ext4"),
        format=options.get("format", "raw"),
    )


def existing_file(text: str) -> Path:
    """An absolute path; the daemon has another working directory than we."""
    path = Path(text).absolute()
    if not path.exists():
        raise typer.BadParameter(f"{text}: no such file")
    return path


def exists(text: str) -> bool:
    return Path(text).exists()


def parse_size(text: str) -> int:
    """Bytes; a number without a unit is MiB."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r}: write a size as in 512M or 2G")
    size = int(match[1]) << _UNITS[match[2].upper()]
    if size > _LARGEST_SIZE:
        raise typer.BadParameter(f"{text}: not possible, at most {_LARGEST_SIZE >> 40}T")
    return size


def parse_number(name: str, text: str, range_: range) -> int:
    """Raises typer.BadParameter, with the name and the range."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise typer.BadParameter(f"{name} {text}: write a number, {_in_words(range_)}")
    return check_number(name, int(text), range_)


def check_number(name: str, number: int, range_: range) -> int:
    """Raises typer.BadParameter: protobuf's own error for what its fields can't hold
    says neither which nor what they can."""
    if number not in range_:
        raise typer.BadParameter(f"{name} {number}: not possible, {_in_words(range_)}")
    return number


def check_seconds(name: str, seconds: float) -> float:
    """Raises typer.BadParameter: gRPC takes an impossible deadline for one that has passed."""
    if not (math.isfinite(seconds) and 0 <= seconds <= _LONGEST_CALL):
        raise typer.BadParameter(f"{name} {seconds:g}: not possible, 0 to {_LONGEST_CALL}")
    return seconds


def _in_words(range_: range) -> str:
    return f"{range_.start} to {range_.stop - 1}"


def parse_memory(text: str, option: str = "--memory") -> int:
    """Bytes of a VM's memory."""
    size = parse_size(text)
    if size < LEAST_MEMORY or size % MIB:
        least = f"at least {LEAST_MEMORY // MIB}M"
        raise typer.BadParameter(
            f"{option} {text}: write whole MiB, {least}; a bare number means MiB"
        )
    return size


def parse_max_memory(text: str) -> int:
    """Bytes; empty is 0, no room."""
    return parse_size(text) if text else 0


def read_environment(file: str) -> list[str]:
    """Words of `--env-file`, one a line, as docker has it: no quotes, `#` at the beginning
    of a line is a comment. Raises typer.BadParameter."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no UTF-8"
        raise typer.BadParameter(f"--env-file {file}: {why}") from None
    words = [line.lstrip() for line in lines]
    words = [word for word in words if word and not word.startswith("#")]
    for word in words:
        name = word.partition("=")[0]
        if not name or any(letter.isspace() for letter in name):
            raise typer.BadParameter(f"--env-file {file}: {word[:60]!r}: write NAME=VALUE or NAME")
    return words


def parse_environment(words: list[str]) -> tuple[str, ...]:
    """`NAME=VALUE` as it is; `NAME` alone takes the value that we have, if any."""
    entries = []
    for word in words:
        name, equals, _ = word.partition("=")
        if not name:
            raise typer.BadParameter(f"{word!r}: write NAME=VALUE or NAME")
        if equals:
            entries.append(word)
        elif name in os.environ:
            entries.append(f"{name}={os.environ[name]}")
    return tuple(entries)


def parse_directory(text: str) -> str:
    """Empty, or absolute: a container has no directory that others are relative to."""
    if text and not text.startswith("/"):
        raise typer.BadParameter(f"--workdir {text}: write an absolute path, as in /srv")
    return text


def parse_user(text: str) -> UserWord | None:
    """`UID[:GID]` or `NAME[:GROUP]`, or nothing. Names are looked up in the container."""
    if not text:
        return None
    user, colon, group = text.partition(":")
    if not user or (colon and not group) or not text.isprintable() or ":" in group or " " in text:
        raise typer.BadParameter(f"--user {text!r}: write UID[:GID] or NAME[:GROUP]")
    for part in (user, group):
        if re.fullmatch(r"[0-9]+", part) and (len(part) > 10 or int(part) > _LAST_ID):
            raise typer.BadParameter(f"--user {text}: not possible, at most {_LAST_ID} each")
    if user.isdecimal() and (not group or group.isdecimal()):
        return UserWord(uid=int(user), gid=int(group or user))
    return UserWord(name=text)


def vm_spec(spec: VmSpec) -> VmSpec:
    """Checks what the command line made, as a usage error."""
    try:
        spec.check()
    except ShimError as error:
        raise typer.BadParameter(str(error)) from None
    return spec

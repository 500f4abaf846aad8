"""Options of `innkeeper run` that are about its container, in docker's words."""

from __future__ import annotations

from typing import Annotated

import typer

Words = list[str] | None


def _repeatable(*names: str, metavar: str, text: str) -> object:
    return typer.Option(*names, metavar=metavar, help=f"{text}; repeatable.")


CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- CMD",
        help="The command and its arguments; an OCI image may have one of its own.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the VM; with --vm: id of the container.",
        show_default="run-XXXXXXXX",
    ),
]
RootOption = Annotated[
    str,
    typer.Option(
        "--rootfs",
        metavar="DIR|TAR|OCI[:NAME]|storage:ID",
        help="The container's root: files of this host, an OCI layout, a storage of the VM's;"
        " without it: busybox, from the guest image.",
    ),
]
EntrypointOption = Annotated[
    str | None,
    typer.Option(
        "--entrypoint", metavar="PROGRAM", help="Comes before CMD, in place of the image's own."
    ),
]
StdinOption = Annotated[
    bool | None,
    typer.Option(
        "-i/-n",
        "--interactive/--no-stdin",
        "--stdin",
        help="Pass our input on, or not.",
        show_default="on; off with -d",
    ),
]
DetachOption = Annotated[
    bool,
    typer.Option(
        "-d",
        "--detach",
        help="Start it, print its name (VM CONTAINER; with --vm: CONTAINER), and leave it running;"
        " `logs` has its output.",
    ),
]
RemoveOption = Annotated[
    bool,
    typer.Option("--rm", help="Take it away at its end, as is done anyway."),
]
KeepOption = Annotated[
    bool,
    typer.Option(
        "--keep",
        help="Leave it there at its end: the VM, or with --vm the container and its disks.",
    ),
]
EnvFileOption = Annotated[
    Words, _repeatable("--env-file", metavar="FILE", text="A file of NAME[=VALUE], one a line")
]
InitOption = Annotated[
    bool, typer.Option("--init", help="A small init is process 1: it reaps, and passes signals on.")
]
HostnameOption = Annotated[
    str, typer.Option("-h", "--hostname", metavar="NAME", help="The container's host name.")
]
VolumeOption = Annotated[
    Words,
    _repeatable(
        "-v",
        "--volume",
        metavar="DIR:MOUNT[:ro]|STORAGE:MOUNT[:ro]",
        text="A directory of this host (it has a slash: ./src), by virtiofs as --share; or, with"
        " --vm, a storage of the VM's",
    ),
]
MountOption = Annotated[
    Words,
    _repeatable(
        "--mount",
        metavar="type=bind|volume|tmpfs,source=...,target=...[,readonly]",
        text="The same in docker's long form",
    ),
]
TmpfsOption = Annotated[
    Words, _repeatable("--tmpfs", metavar="MOUNT[:size=SIZE,mode=MODE,...]", text="Memory")
]
ReadOnlyOption = Annotated[
    bool, typer.Option("--read-only", help="Nothing can be written to the container's root.")
]
DeviceOption = Annotated[
    Words,
    _repeatable(
        "--device",
        metavar="DEVICE[:PATH][:rwm]",
        text="A device: its id (`device attach`), its BDF or PCI path in the guest, or a node"
        " (/dev/vfio/16), for which it waits 10 s; ids want --vm",
    ),
]
CpusOption = Annotated[
    str,
    typer.Option(
        "--cpus",
        metavar="N",
        help="CPU time of the container, as in 1.5; a new VM has as many CPUs, rounded up.",
    ),
]
MemoryOption = Annotated[
    str,
    typer.Option(
        "-m",
        "--memory",
        metavar="SIZE",
        help="Memory of the container, as in 512M or 2G (a bare number means MiB); a new VM has"
        " 256M more for itself.",
    ),
]
ReservationOption = Annotated[
    str, typer.Option("--memory-reservation", metavar="SIZE", help="Tried to be left to it.")
]
SwapOption = Annotated[
    str,
    typer.Option("--memory-swap", metavar="SIZE|-1", help="Memory and swap together; -1: any."),
]
PidsOption = Annotated[
    int | None, typer.Option("--pids-limit", metavar="N", help="Processes and threads; -1: any.")
]
CpusetOption = Annotated[
    str,
    typer.Option("--cpuset-cpus", metavar="LIST", help="CPUs that it runs on, as in 0-2,4."),
]
ShmOption = Annotated[
    str,
    typer.Option("--shm-size", metavar="SIZE", help="Of /dev/shm.", show_default="64M"),
]
UlimitOption = Annotated[
    Words,
    _repeatable("--ulimit", metavar="NAME=SOFT[:HARD]", text="A limit of its processes (nofile)"),
]
SysctlOption = Annotated[
    Words, _repeatable("--sysctl", metavar="NAME=VALUE", text="A sysctl of its namespaces")
]
CapAddOption = Annotated[
    Words, _repeatable("--cap-add", metavar="CAP|ALL", text="A capability more, as in NET_ADMIN")
]
CapDropOption = Annotated[
    Words, _repeatable("--cap-drop", metavar="CAP|ALL", text="A capability less")
]
PrivilegedOption = Annotated[
    bool,
    typer.Option(
        "--privileged",
        help="All capabilities, all devices that are attached, nothing masked: the VM is the wall.",
    ),
]
SecurityOption = Annotated[
    Words,
    _repeatable(
        "--security-opt",
        metavar="no-new-privileges|seccomp=FILE|apparmor=NAME|...",
        text="seccomp=unconfined is how it is anyway",
    ),
]
PidOption = Annotated[
    str, typer.Option("--pid", metavar="own|sandbox", help="Whose processes it sees.")
]
IpcOption = Annotated[str, typer.Option("--ipc", metavar="own|sandbox", help="Whose IPC it has.")]
UtsOption = Annotated[
    str, typer.Option("--uts", metavar="own|sandbox", help="Whose host name it has.")
]
NetworkOption = Annotated[
    str,
    typer.Option(
        "--network",
        metavar="sandbox|own",
        help="Whose network: the guest's, or its own with nothing but loopback (docker: none).",
    ),
]
DnsOption = Annotated[
    Words, _repeatable("--dns", metavar="IP", text="A name server of the new VM's")
]
DnsSearchOption = Annotated[
    Words, _repeatable("--dns-search", metavar="DOMAIN", text="A search domain")
]
AddHostOption = Annotated[
    Words, _repeatable("--add-host", metavar="NAME:IP", text="A line of /etc/hosts")
]
StopSignalOption = Annotated[
    str,
    typer.Option(
        "--stop-signal",
        metavar="SIGNAL",
        help="Sent first when a second Ctrl-C ends it.",
        show_default="SIGKILL",
    ),
]
StopTimeoutOption = Annotated[
    int | None,
    typer.Option(
        "--stop-timeout", metavar="SECONDS", min=0, help="Time that it then has.", show_default="10"
    ),
]
LogOption = Annotated[
    Words,
    _repeatable(
        "--log-opt",
        metavar="max-size=SIZE|max-file=N",
        text="Keep the output in the guest too, for `logs`, as -d does",
    ),
]
VmMemoryOption = Annotated[
    str,
    typer.Option(
        "--vm-memory",
        metavar="SIZE",
        help="Of the new VM, at least 192M.",
        show_default="512M, or --memory and 256M",
    ),
]
VmCpusOption = Annotated[
    int,
    typer.Option(
        "--vm-cpus", metavar="N", min=0, help="Of the new VM.", show_default="1, or --cpus"
    ),
]
MaxCpusOption = Annotated[
    int,
    typer.Option(
        "--max-cpus",
        metavar="N",
        help="What its CPUs can grow to by `device attach`.",
        show_default="as many as it has",
    ),
]

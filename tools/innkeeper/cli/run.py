"""`innkeeper run`: a VM for one command, or a container in one that runs."""
# ruff: noqa: ARG001 - the many options are read by their names

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import typer

from innkeeper.cli import asked, container_words, detach, forward_specs, options
from innkeeper.cli.loop import wait_for
from innkeeper.cli.panels import GroupedCommand
from innkeeper.cli.running import run_request

if TYPE_CHECKING:
    from collections.abc import Mapping


class RunCommand(GroupedCommand):
    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Where, and how long": (
            "vm",
            "name",
            "detached",
            "rm",
            "keep",
            "stop_signal",
            "stop_timeout",
        ),
        "The command": (
            *("stdin", "tty", "detach_keys", "env", "env_file", "workdir", "user"),
            *("entrypoint", "init", "log_opt"),
        ),
        "Root, mounts and devices": (
            *("rootfs", "read_only", "volume", "mount", "tmpfs", "disk", "share", "storage"),
            "device",
        ),
        "Limits of the container": (
            *("cpus", "memory", "memory_reservation", "memory_swap", "pids_limit"),
            *("cpuset_cpus", "shm_size", "ulimit"),
        ),
        "Rights and namespaces": (
            *("cap_add", "cap_drop", "privileged", "security_opt", "sysctl", "hostname"),
            *("pid", "ipc", "uts", "network"),
        ),
        "A new VM": (
            *("vm_memory", "vm_cpus", "image", "accel", "transport", "net", "publish", "forward"),
            *("reverse", "dns", "dns_search", "add_host", "cold", "share_9p", "max_memory"),
            *("max_cpus", "nvdimm", "iommu", "bridge", "switch", "second_root", "private_memory"),
        ),
    }


def run(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    command: container_words.CommandArgument = None,
    vm: options.RunningOption = "",
    name: container_words.NameOption = "",
    *,
    detached: container_words.DetachOption = False,
    rm: container_words.RemoveOption = False,
    keep: container_words.KeepOption = False,
    stop_signal: container_words.StopSignalOption = "",
    stop_timeout: container_words.StopTimeoutOption = None,
    stdin: container_words.StdinOption = None,
    tty: options.TerminalOption = False,
    detach_keys: detach.KeysOption = detach.DEFAULT_KEYS,
    env: options.EnvironmentOption = None,
    env_file: container_words.EnvFileOption = None,
    workdir: options.DirectoryOption = "",
    user: options.UserOption = "",
    entrypoint: container_words.EntrypointOption = None,
    init: container_words.InitOption = False,
    log_opt: container_words.LogOption = None,
    rootfs: container_words.RootOption = "",
    read_only: container_words.ReadOnlyOption = False,
    volume: container_words.VolumeOption = None,
    mount: container_words.MountOption = None,
    tmpfs: container_words.TmpfsOption = None,
    disk: options.DisksOption = None,
    share: options.SharesOption = None,
    storage: options.StoragesOption = None,
    device: container_words.DeviceOption = None,
    cpus: container_words.CpusOption = "",
    memory: container_words.MemoryOption = "",
    memory_reservation: container_words.ReservationOption = "",
    memory_swap: container_words.SwapOption = "",
    pids_limit: container_words.PidsOption = None,
    cpuset_cpus: container_words.CpusetOption = "",
    shm_size: container_words.ShmOption = "",
    ulimit: container_words.UlimitOption = None,
    cap_add: container_words.CapAddOption = None,
    cap_drop: container_words.CapDropOption = None,
    privileged: container_words.PrivilegedOption = False,
    security_opt: container_words.SecurityOption = None,
    sysctl: container_words.SysctlOption = None,
    hostname: container_words.HostnameOption = "",
    pid: container_words.PidOption = "own",
    ipc: container_words.IpcOption = "own",
    uts: container_words.UtsOption = "own",
    network: container_words.NetworkOption = "sandbox",
    vm_memory: container_words.VmMemoryOption = "",
    vm_cpus: container_words.VmCpusOption = 0,
    image: options.ImageOption = "cloud",
    accel: options.AccelOption = "auto",
    transport: options.TransportOption = "auto",
    net: options.NetsOption = None,
    publish: forward_specs.PublishOption = None,
    forward: forward_specs.ForwardOption = None,
    reverse: forward_specs.ReverseOption = None,
    dns: container_words.DnsOption = None,
    dns_search: container_words.DnsSearchOption = None,
    add_host: container_words.AddHostOption = None,
    cold: options.ColdOption = None,
    share_9p: options.NinePOption = None,
    max_memory: options.MaxMemoryOption = "",
    max_cpus: container_words.MaxCpusOption = 0,
    nvdimm: options.NvdimmOption = False,
    iommu: options.IommuOption = False,
    bridge: options.BridgeOption = False,
    switch: options.SwitchOption = False,
    second_root: options.SecondRootOption = False,
    private_memory: options.PrivateMemoryOption = False,
) -> None:
    """Runs a command in a container: in a VM of its own, or with --vm in one that runs.

    A VM of its own is booted for it and goes with it. With --vm the VM stays, and the container
    with its disks and shares is taken away at its end; --keep and -d leave them there.

    The command's output is all that goes to stdout, byte for byte, and its exit
    code is ours (128+n when signal n ended it; 125 when we failed, 126 and 127
    when the command could not be run or was not found). Our input goes to it too, as to
    any command of a shell; -n keeps it back.

    Ctrl-C goes to the command; a second one ends it. With -t all keys go to it, and with --vm
    ctrl-p ctrl-q leaves it running.

    What docker run has too is called as there, and means the same. Sizes: a bare number
    means MiB.

    \b
    Examples:
      innkeeper run -- sha256sum /etc/passwd
      echo hello | innkeeper run -- tr a-z A-Z
      innkeeper run -it -- sh
      innkeeper run -v .:/src:ro -w /src -u 1000 -e LANG=C -- make test
      innkeeper run --rootfs ./debian-root -m 1G --cpus 1.5 -- /usr/bin/make -C /src
      innkeeper run --rootfs ./layout:latest
      innkeeper run --rootfs alpine.tar.gz --read-only --tmpfs /tmp:size=64M -- apk info
      innkeeper run --cap-drop ALL --cap-add NET_BIND_SERVICE -p 8080:80 -- httpd -f -h /srv
      innkeeper run --disk data.img:/data:ro -- ls -l /data
      innkeeper run --net user -- wget -qO- http://10.0.2.2:8000/
      innkeeper run -d -p 8080:80 -- httpd -f -h /srv
    \b
    In a VM that runs (vm start web):
      innkeeper run --vm web --disk data.img:/data -- ls -l /data
      innkeeper run --vm web -v conf:/etc/app:ro --device gpu0 -- app
      innkeeper run --vm web --device /dev/vfio/16 --device 0000:01:00.0:r -- app
      innkeeper run --vm web -d --name db --rootfs storage:db-root -m 256M -- postgres
    """
    request = asked.request_of(context.params, said(context))
    raise typer.Exit(wait_for(run_request(request)))


def said(context: typer.Context) -> set[str]:
    """Names of the parameters that are on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}

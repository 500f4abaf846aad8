"""`innkeeper storage`: what is mounted in a running VM, for its containers."""
# ruff: noqa: ARG001 - the many options of `attach` are read by their names

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from innkeeper.cli import hints, options, output, refusals, storages
from innkeeper.cli.errors import OUR_FAILURE, explain
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    no_args_is_help=True,
    help="Storages of a running VM: mount, unmount, grow, look after them.",
)

VmArgument = Annotated[
    str, typer.Argument(metavar="VM", help="Name of the VM.", callback=hints.about)
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the storage.")]
TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time for it; 0 means the guest's default.")
]


def _source(name: str, metavar: str, text: str) -> Any:
    """An option that says what is mounted."""
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel="Sources")


_ATTACH_HELP = """Mounts something in the guest; containers get it by the storage's id.

One option says what: a disk that is attached (--device) or is plugged in for it
(--disk, --from), a directory of the host (--share), memory, other storages, a
network's share. What was plugged in for it goes with it: `storage detach` takes
both away, and neither stays when the mount fails.

\b
Examples:
  innkeeper storage attach web data --device disk1
  innkeeper storage attach web data --disk data.img --type xfs --format
  innkeeper storage attach web src --share . --read-only
  innkeeper storage attach web app --from app.tar.gz --type erofs
  innkeeper storage attach web scratch --tmpfs 64M -o noexec,nosuid
  innkeeper storage attach web root --overlay app,base --upper data:root
  innkeeper storage attach web conf --watch src:config
  innkeeper storage attach web huge --hugetlb 64M --page-size 2M
  innkeeper storage attach web home --nfs files.example:/home --protocol 4.2
  innkeeper storage attach web team --cifs //files/team --user ann --password-file pw
  innkeeper storage attach web img --device disk1 --type erofs --verity 8f4a...
"""


@app.command(help=_ATTACH_HELP)
def attach(  # noqa: PLR0913 - typer makes each parameter an option
    context: typer.Context,
    vm: VmArgument,
    storage_id: IdArgument,
    device: Annotated[str, _source("--device", "ID", "An attached disk.")] = "",
    disk: Annotated[str, _source("--disk", "FILE", "A disk's image, plugged in for it.")] = "",
    from_: Annotated[
        str,
        _source("--from", "DIR|TAR|OCI", "A disk made of it (see `disk make`), read-only."),
    ] = "",
    share: Annotated[str, _source("--share", "DIR", "A directory here, by virtiofs.")] = "",
    virtiofs: Annotated[str, _source("--virtiofs", "TAG", "A share that is plugged in.")] = "",
    nine_p: Annotated[str, _source("--9p", "TAG", "One of vm start --share-9p.")] = "",
    tmpfs: Annotated[str, _source("--tmpfs", "SIZE", "Memory; 0 means half of all.")] = "",
    hugetlb: Annotated[str, _source("--hugetlb", "SIZE", "Huge pages; 0 allocates none.")] = "",
    bind: Annotated[
        str, _source("--bind", "PATH|ID[:PATH]", "A path of the guest, or in a storage.")
    ] = "",
    overlay: Annotated[
        list[str] | None,
        _source("--overlay", "ID[:PATH],...", "Layers, the topmost first; repeatable."),
    ] = None,
    watch: Annotated[
        str, _source("--watch", "PATH|ID[:PATH]", "A small directory, copied when it changes.")
    ] = "",
    nfs: Annotated[str, _source("--nfs", "SERVER:PATH", "NFS.")] = "",
    cifs: Annotated[str, _source("--cifs", "//SERVER/SHARE", "SMB.")] = "",
    ceph: Annotated[str, _source("--ceph", "MONITOR,...:PATH", "CephFS.")] = "",
    pmem: Annotated[str, _source("--pmem", "ID", "Attached persistent memory.")] = "",
    *,
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="A directory made for it: in memory, or --in.",
            rich_help_panel="Sources",
        ),
    ] = False,
    fs_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="File system of a disk.")
    ] = "ext4",
    format_: Annotated[
        bool, typer.Option("--format", help="Make the file system on a disk that is empty.")
    ] = False,
    disk_format: Annotated[
        str, typer.Option(metavar="raw|qcow2", help="Of --disk; never guessed.")
    ] = "raw",
    partition: Annotated[
        str, typer.Option(metavar="N|LABEL", help="A partition of the disk.")
    ] = "",
    verity: Annotated[
        str, typer.Option(metavar="HEX", help="Root hash: reads of changed blocks fail.")
    ] = "",
    verity_salt: Annotated[str, typer.Option(metavar="HEX", help="Its salt.")] = "",
    verity_offset: Annotated[
        int, typer.Option(metavar="BYTES", min=0, help="Where the hashes begin.")
    ] = 0,
    verity_device: Annotated[
        str, typer.Option(metavar="ID", help="The disk of the hashes, if another.")
    ] = "",
    verity_hash: Annotated[str, typer.Option(metavar="NAME", help="Name of the hash.")] = "",
    verity_blocks: Annotated[int, typer.Option(metavar="N", min=0, help="Blocks of data.")] = 0,
    no_superblock: Annotated[
        bool, typer.Option("--no-superblock", help="The hashes have none.")
    ] = False,
    key_file: Annotated[
        str,
        typer.Option(metavar="FILE", help="Key of an encrypted disk (raw bytes), or Ceph's; or -."),
    ] = "",
    cipher: Annotated[str, typer.Option(metavar="NAME", help="As dm-crypt names it.")] = "",
    sector_size: Annotated[
        int, typer.Option(metavar="BYTES", min=0, max=4096, help="Of the encryption.")
    ] = 0,
    data_offset: Annotated[
        int, typer.Option(metavar="BYTES", min=0, help="Where encrypted data begins.")
    ] = 0,
    dax: Annotated[bool, typer.Option("--dax", help="Persistent memory without a cache.")] = False,
    msize: Annotated[str, typer.Option(metavar="SIZE", help="Of 9p: its largest packet.")] = "",
    mode: Annotated[
        str, typer.Option(metavar="OCTAL", help="Mode of the root of --tmpfs, --local.")
    ] = "",
    page_size: Annotated[str, typer.Option(metavar="SIZE", help="Of huge pages.")] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", help="--bind with what is mounted below it.")
    ] = False,
    upper: Annotated[
        str, typer.Option(metavar="ID[:PATH]", help="The writable layer; without it: read-only.")
    ] = "",
    work: Annotated[str, typer.Option(metavar="ID[:PATH]", help="Beside the upper one.")] = "",
    inside: Annotated[
        str, typer.Option("--in", metavar="ID", help="The storage that --local lies in.")
    ] = "",
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between looks of --watch; 0 means 2.")
    ] = 0,
    only_refresh: Annotated[
        bool, typer.Option("--only-refresh", help="--watch looks only at `storage refresh`.")
    ] = False,
    protocol: Annotated[
        str, typer.Option(metavar="VERSION", help="Of NFS or SMB, as in 4.2 or 3.1.1.")
    ] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="User of SMB or Ceph.")] = "",
    password_file: Annotated[
        str, typer.Option(metavar="FILE", help="Holds the password of SMB; or -.")
    ] = "",
    domain: Annotated[str, typer.Option(metavar="NAME", help="The user's domain.")] = "",
    file_system: Annotated[
        str, typer.Option(metavar="NAME", help="Of Ceph; else its default.")
    ] = "",
    mount_point: Annotated[
        str, typer.Option(metavar="PATH", help="In the guest; else the guest chooses.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("-o", metavar="OPTIONS", help="As in fstab: noexec,nosuid; repeatable."),
    ] = None,
    fs_group: Annotated[
        int, typer.Option(metavar="GID", min=0, max=2**32 - 2, help="Group of the whole tree.")
    ] = 0,
    fs_group_once: Annotated[
        bool, typer.Option("--fs-group-once", help="Only when the root is not the group's yet.")
    ] = False,
    timeout: TimeoutOption = 0,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nobody can write.")] = False,
    json: options.JsonOption = False,
) -> None:
    words = {name: context.params[name] for name in _given(context)}
    wanted = storages.wanted(storage_id, words)
    with refusals.told():
        attached = wait_for(storages.attach(find_vm(vm), wanted))
    storages.say_attached(attached, as_json=json)


def _given(context: typer.Context) -> Iterator[str]:
    """The names of the options that are on the command line."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        is_option = parameter.param_type_name == "option"
        if is_option and source is not None and source.name == "COMMANDLINE":
            yield name


@app.command()
def detach(
    vm: VmArgument,
    storage_id: IdArgument,
    timeout: TimeoutOption = 0,
    *,
    keep: Annotated[
        bool, typer.Option("--keep-device", help="What was plugged in for it stays.")
    ] = False,
) -> None:
    """Unmounts a storage; refused while somebody uses it, with who.

    A disk or share that `storage attach` plugged in for it is unplugged too. A file
    system that does not answer is taken off lazily, and that is said.

    \b
    Examples:
      innkeeper storage detach web data
      innkeeper storage detach web src --keep-device
    """
    options.check_seconds("--timeout", timeout)
    with refusals.told():
        done = wait_for(storages.detach(find_vm(vm), storage_id, timeout, unplug=not keep))
    if done.lazily:
        output.warn(f"{storage_id}: did not answer, so it goes when its last user does")
    for line in done.left:
        output.warn(f"{storage_id}: {line}")
    output.say(f"{storage_id}: detached")


@app.command("list")
def list_(vm: VmArgument, *, json: options.JsonOption = False) -> None:
    """Shows what is mounted, by whom it is used, and what builds on it.

    \b
    Examples:
      innkeeper storage list web
      innkeeper storage list web --json
    """
    found = wait_for(storages.all_of(find_vm(vm)))
    if json:
        output.say_json([storages.as_dict(each) for each in found])
    else:
        output.table(storages.COLUMNS, [storages.row(each) for each in found])


@app.command()
def stats(
    vm: VmArgument,
    storage_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the storage; without it: all.")
    ] = "",
    *,
    json: options.JsonOption = False,
) -> None:
    """Shows space, inodes and health, as df(1) would.

    \b
    Examples:
      innkeeper storage stats web
      innkeeper storage stats web data --json
    """
    with refusals.told():
        told = wait_for(storages.stats(find_vm(vm), storage_id))
    if json:
        output.say_json([{"id": name} | storages.figures(each) for name, each in told.figures])
    else:
        rows = [storages.stats_row(name, each) for name, each in told.figures]
        output.table(storages.STATS_COLUMNS, rows)
    for name, error in told.refused:
        output.fail(f"storage {name}: {explain(error)}")
    if told.refused:
        raise typer.Exit(OUR_FAILURE)


@app.command()
def resize(
    vm: VmArgument,
    storage_id: IdArgument,
    size: Annotated[
        str, typer.Argument(metavar="SIZE", help="The disk's new size, as in 2G.")
    ] = "",
) -> None:
    """Grows a disk, and then the file system on it; ext4, xfs and btrfs can.

    Without SIZE it grows to what its disk has now, or its image file.

    \b
    Examples:
      innkeeper storage resize web data 2G
      truncate --size 4G data.img; innkeeper storage resize web data
    """
    wanted = options.parse_size(size) if size else 0
    with refusals.told():
        done = wait_for(storages.resize(find_vm(vm), storage_id, wanted))
    was = "as before" if done.size == done.before else f"before: {output.size(done.before)}"
    output.say(f"{storage_id}: {output.size(done.size)}, {was}")


@app.command()
def trim(vm: VmArgument, storage_id: IdArgument) -> None:
    """Gives unused blocks back to the host.

    \b
    Example:
      innkeeper storage trim web data
    """
    with refusals.told():
        trimmed = wait_for(storages.trim(find_vm(vm), storage_id))
    output.say(f"{storage_id}: {output.size(trimmed)} given back")


@app.command()
def freeze(
    vm: VmArgument,
    storage_id: IdArgument,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="After it the guest thaws by itself.")
    ] = 30,
) -> None:
    """Stops all writes, for a consistent copy of the disk.

    \b
    Example:
      innkeeper storage freeze web data; cp data.img copy.img; innkeeper storage thaw web data
    """
    options.check_seconds("--timeout", timeout)
    with refusals.told():
        wait_for(storages.freeze(find_vm(vm), storage_id, timeout))
    output.say(f"{storage_id}: frozen for {timeout or 30:g} s at most")


@app.command()
def thaw(vm: VmArgument, storage_id: IdArgument) -> None:
    """Ends a freeze; fine when there is none.

    \b
    Example:
      innkeeper storage thaw web data
    """
    with refusals.told():
        wait_for(storages.thaw(find_vm(vm), storage_id))
    output.say(f"{storage_id}: thawed")


@app.command()
def refresh(vm: VmArgument, storage_id: IdArgument) -> None:
    """A watched storage (--watch) takes over what changed, now.

    \b
    Example:
      innkeeper storage refresh web conf
    """
    with refusals.told():
        changed = wait_for(storages.refresh(find_vm(vm), storage_id))
    output.say(f"{storage_id}: {'has what is new' if changed else 'nothing was new'}")

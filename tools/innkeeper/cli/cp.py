"""`innkeeper cp`: files and trees between this host and a storage or a container of a VM."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from innkeeper.cli import broken, hints, output
from innkeeper.cli.errors import CliError
from innkeeper.cli.loop import wait_for
from innkeeper.shim.client import find_vm
from innkeeper.shim.errors import printable
from innkeeper.shim.files import fetch, first_header, look, send
from innkeeper.shim.landing import TEMPORARY, Place
from innkeeper.shim.localtree import Sending
from innkeeper.v1 import files_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from grpc import aio

_REMOTE = re.compile(r"(?P<vm>[^/:]+):(?P<kind>storage|container)/(?P<id>[^/]+)(?P<path>/.*)?")
_CONTAINER = re.compile(r"(?P<vm>[^/:]+):(?P<id>[^/:]+):(?P<path>/.*)")
_LOOKS_REMOTE = re.compile(r"[^/:]+:")
_SYNTAX = "VM:CONTAINER:/PATH or VM:storage/ID/PATH"
_SHOWN_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A path in a storage or a container of a VM; `path` is below its root."""

    vm: str
    kind: str
    id: str
    path: str
    text: str

    @property
    def root(self) -> pb.FileRoot:
        if self.kind == "storage":
            return pb.FileRoot(storage_id=self.id)
        return pb.FileRoot(container_id=self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A path of this host."""

    path: Path
    text: str


End: TypeAlias = Remote | Local


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How to copy."""

    archive: bool = False
    follow: bool = False
    only_new: bool = False


def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help=f"A local path, or {_SYNTAX}.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The same; one is in a VM.")],
    *,
    archive: Annotated[
        bool,
        typer.Option("-a", "--archive", help="Keep numbers of owners and groups, and set-id bits."),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("-L", "--follow-link", help="If SRC is a link, copy what it leads to."),
    ] = False,
    only_new: Annotated[
        bool,
        typer.Option("--only-new", help="Into a VM: refuse to replace what is there."),
    ] = False,
) -> None:
    """Copies files and directories between this host and a VM, with all that is in them.

    VM:container/ID/PATH is the same as VM:ID:/PATH. PATH is one in the storage or the
    container, as it sees it: no link leads out. A container need not run. As with
    `docker cp`: what goes to a directory that is there goes into it, by its own name;
    SRC/. is what is in a directory; links are copied as links, and a file with several
    names once for each. Modes and times are kept. Each file is there whole, or what was
    there before still is. Missing directories are made in a VM, not here. What can't be
    copied, such as a socket, is told as "left out".

    \b
    Examples:
      innkeeper cp conf/ web:main:/etc/app
      innkeeper cp data.tar web:storage/data/
      innkeeper cp web:main:/var/log/. ./logs
      innkeeper cp -a web:storage/data/home ./backup
    """
    options = CopyOptions(archive=archive, follow=follow, only_new=only_new)
    match parse_end(source), parse_end(target):
        case Local() as local, Remote() as remote:
            hints.about(remote.vm)
            wait_for(_copy_in(local, remote, options))
        case Remote() as remote, Local() as local:
            if only_new:
                raise typer.BadParameter("--only-new is for copies into a VM")
            hints.about(remote.vm)
            wait_for(_copy_out(remote, local, options))
        case _:
            raise typer.BadParameter(
                f"one of SRC and DST is local, the other is {_SYNTAX}, as in:"
                " innkeeper cp conf web:container/main/etc"
            )


def parse_end(text: str) -> End:
    """Raises typer.BadParameter for what looks like a path in a VM and is none."""
    match = _REMOTE.fullmatch(text)
    if match is not None:
        path = match["path"] or ""
        return Remote(
            vm=match["vm"], kind=match["kind"], id=match["id"], path=path.strip("/"), text=text
        )
    if short := _CONTAINER.fullmatch(text):
        path = short["path"].strip("/")
        return Remote(vm=short["vm"], kind="container", id=short["id"], path=path, text=text)
    if not text:
        raise typer.BadParameter("an empty path")
    if text == "-":
        raise typer.BadParameter(
            "-: streams are not copied, files are (a file of that name is ./-); for a stream:"
            " tar c DIR | innkeeper exec VM CONTAINER -- tar x -C /PATH"
        )
    if _LOOKS_REMOTE.match(text) and not os.path.lexists(text):
        raise typer.BadParameter(f"{text}: write {_SYNTAX}; a local path with ':' as ./{text}")
    return Local(path=Path(text), text=text)


def name_of(text: str) -> str:
    """The last name of a path; empty when it has none of its own (".", "/", "a/..")."""
    name = text.rstrip("/").rpartition("/")[2]
    return "" if name in ("", ".", "..") else name


def only_content(text: str) -> bool:
    """`SRC/.` and `.`: what is in the directory."""
    return text == "." or text.endswith("/.")


async def _copy_in(local: Local, remote: Remote, options: CopyOptions) -> None:
    found = _local_source(local, options)
    vm = find_vm(remote.vm)
    async with vm.channel() as channel, broken.explained(vm, channel):
        there = await look(channel, remote.root, remote.path)
        target = target_in_guest(local, remote, found, there)
        content = there is not None and stat.S_ISDIR(found) and only_content(local.text)
        sending = Sending(
            source=local.path,
            keep_owner=options.archive,
            follow=_follows(local.text, options),
            only_content=content,
        )
        start = pb.CopyStart(root=remote.root, path=target, only_new=options.only_new)
        with output.busy(f"{local.text} → {remote.text}") as show, local_errors(local, options):
            answer = await send(channel, start, sending, _shown(show))
    _tell(sending.left_out)
    output.note(f"{_count(answer.files + answer.links)}, {output.size(answer.size)}")


def target_in_guest(local: Local, remote: Remote, found: int, there: pb.FileHeader | None) -> str:
    """The path that the source itself gets; raises CliError.

    `found` is the source's mode, `there` what is at the target now.
    """
    if there is None:
        if remote.text.endswith("/") and not stat.S_ISDIR(found):
            raise CliError(
                f"{remote.text}: there is no such directory",
                hint="without the '/' at its end it would be the file's new name",
            )
        return remote.path
    if there.type != pb.FILE_TYPE_DIRECTORY:
        if stat.S_ISDIR(found) or remote.text.endswith("/"):
            raise CliError(f"{remote.text} is no directory")
        return remote.path
    if stat.S_ISDIR(found) and only_content(local.text):
        return remote.path
    name = name_of(local.text) or name_of(str(local.path.resolve()))
    if not name:
        raise CliError(f"{local.text} has no name of its own", hint="write SRC/. for what is in it")
    return f"{remote.path}/{name}" if remote.path else name


async def _copy_out(remote: Remote, local: Local, options: CopyOptions) -> None:
    vm = find_vm(remote.vm)
    request = pb.CopyOutRequest(
        root=remote.root,
        path=remote.path,
        follow_link=_follows(remote.text, options),
        recursive=True,
    )
    async with vm.channel() as channel, broken.explained(vm, channel):
        place = landing_place(remote, local, await _type_of(channel, request, remote), options)
        with output.busy(f"{remote.text} → {local.text}") as show, local_errors(local, options):
            done = [0, 0]

            def progress(files: int, size: int) -> None:
                done[:] = files, size
                _shown(show)(files, size)

            left_out = await fetch(channel, request, place, progress)
    _tell(left_out)
    output.note(f"{_count(done[0])}, {output.size(done[1])}")


async def _type_of(channel: aio.Channel, request: pb.CopyOutRequest, remote: Remote) -> int:
    question = pb.CopyOutRequest()
    question.CopyFrom(request)
    question.recursive = False
    header = await first_header(channel, question)
    if header is None:
        raise CliError(f"{remote.text}: there is no such file")
    return header.type


def landing_place(remote: Remote, local: Local, kind: int, options: CopyOptions) -> Place:
    """Where it lands here; raises CliError."""
    target = local.path
    folder = kind == pb.FILE_TYPE_DIRECTORY
    name = name_of(remote.path) or remote.id
    if only_content(remote.text) and not folder:
        raise CliError(f"{remote.text} is no directory")
    if target.is_dir():
        # A link to a directory is one to whoever names it.
        real = target.resolve()
        if folder and only_content(remote.text):
            return Place(folder=real.parent, name=real.name, into=True, keep_owner=options.archive)
        return Place(folder=real, name=name, keep_owner=options.archive)
    if folder and target.exists():
        raise CliError(f"{local.text} is no directory")
    if target.exists() and not target.is_file():
        raise CliError(f"{local.text} is no regular file")
    if local.text.endswith("/") and not folder:
        raise CliError(f"{local.text}: there is no such directory")
    above = target.parent.resolve()
    if not above.is_dir():
        raise CliError(f"{target.parent}: there is no such directory", hint="make it first")
    return Place(folder=above, name=target.name, keep_owner=options.archive)


def _follows(text: str, options: CopyOptions) -> bool:
    """Whether a source that is a link stands for what it leads to: "LINK/" and "LINK/." do."""
    return options.follow or text.endswith("/") or only_content(text)


def _local_source(local: Local, options: CopyOptions) -> int:
    """The mode of what is to be copied; raises CliError."""
    try:
        found = local.path.stat() if _follows(local.text, options) else local.path.lstat()
    except OSError as error:
        raise CliError(f"{local.text}: {error.strerror}") from error
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or _is_link(found)):
        raise CliError(f"{local.text} is no regular file, directory or link")
    return found.st_mode


def _is_link(found: os.stat_result) -> bool:
    return stat.S_ISLNK(found.st_mode)


def _tell(left_out: Sequence[str]) -> None:
    for line in left_out[:_SHOWN_LINES]:
        output.warn(f"left out: {printable(line)}")
    if len(left_out) > _SHOWN_LINES:
        output.warn(f"left out: {len(left_out) - _SHOWN_LINES} more")


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def _shown(show: Callable[[str], None]) -> Callable[[int, int], None]:
    return lambda files, size: show(f"{_count(files)}, {output.size(size)}")


@contextlib.contextmanager
def local_errors(local: Local, options: CopyOptions) -> Iterator[None]:
    """What the host's own files refuse is an answer, not a bug."""
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        where = local.text if not name or name.startswith(TEMPORARY) else name
        message = f"{where}: {error.strerror or error}"
        hint = ""
        if error.errno == errno.EPERM and options.archive:
            hint = "only root can give files to others: without -a they are yours"
        raise CliError(message, hint=hint) from error

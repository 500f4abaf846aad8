"""Files over real gRPC with real worker processes: copies in and out of a directory.

The situations are those of public reports about copies into guests: planted links
(kata-containers#12971), chunks, modes and sizes (kata-containers/agent#433).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from innkeeper.v1 import files_pb2 as pb
from tests.fakes.agent_server import refused
from tests.fakes.copying import (
    file_part,
    folder_part,
    frames,
    header,
    link_part,
    mode_of,
    tree,
)
from tests.fakes.files_server import FilesServer, serving_files
from tests.fakes.waiting import until

pytestmark = [pytest.mark.contract, pytest.mark.storage]

NOT_WRITTEN = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FilesServer]:
    with tempfile.TemporaryDirectory(prefix="ik-") as folder:
        async with serving_files(Path(folder), tmp_path) as running:
            yield running


def start(server: FilesServer, path: str = "", **more: object) -> pb.CopyStart:
    return pb.CopyStart(root=server.root, path=path, **more)  # type: ignore[arg-type]


async def out(server: FilesServer, **request: object) -> tuple[dict[str, bytes], list[str]]:
    """Contents by path, and what was left out."""
    found: dict[str, bytes] = {}
    left_out: list[str] = []
    path = ""
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, **request))  # type: ignore[arg-type]
    async for answer in call:
        left_out += answer.left_out
        for part in answer.parts:
            if part.HasField("header"):
                path = part.header.path
                found[path] = b""
            found[path] += bytes(part.hole) + part.data
    return found, left_out


async def test_a_tree_goes_in_and_comes_out_as_it_was(server: FilesServer) -> None:
    parts = [
        folder_part("", 0o750),
        file_part("a", b"A", mode=0o4755, modified=pb.FileTime(seconds=-5, nanoseconds=7)),
        folder_part("d", 0o1777, modified=pb.FileTime(seconds=1_000_000_000, nanoseconds=1)),
        file_part("d/empty", b"", mode=0o400),
        link_part("d/up", "../../outside"),
        file_part("d/ü", "ü".encode() * 100),
    ]
    answer = await server.stub.CopyIn(frames(start(server, "tree"), parts[:3], parts[3:]))
    assert answer == pb.CopyInResponse(size=201, files=3, directories=2, links=1)
    top = server.top / "tree"
    assert tree(top) == {
        "a": b"A",
        "d": 0o1777,
        "d/empty": b"",
        "d/up": "-> ../../outside",
        "d/ü": "ü".encode() * 100,
    }
    assert (mode_of(top), mode_of(top / "a"), mode_of(top / "d/empty")) == (0o750, 0o4755, 0o400)
    assert (top / "a").stat().st_mtime_ns == -5 * 10**9 + 7
    assert (top / "d").stat().st_mtime_ns == 10**18 + 1

    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="tree", recursive=True))
    headers = [part.header async for answer in call for part in answer.parts]
    sent = {part.header.path: part.header for part in parts}
    assert [each.path for each in headers] == ["", "a", "d", "d/empty", "d/up", "d/ü"]
    for each in headers:
        wanted = sent[each.path]
        assert (each.type, each.uid, each.gid) == (wanted.type, wanted.uid, wanted.gid)
        assert (each.size, each.link_target) == (wanted.size, wanted.link_target)
        if wanted.HasField("modified"):
            assert each.modified == wanted.modified


async def test_a_file_of_many_chunks_is_not_seen_before_it_is_whole(server: FilesServer) -> None:
    """5 MiB, mode 0400, parents made with 0750, an existing parent unchanged."""
    (server.top / "there").mkdir(mode=0o700)
    data = os.urandom(5 << 20)
    whole = header("new/deep/file", size=len(data), mode=0o400)
    call = server.stub.CopyIn()
    await call.write(pb.CopyInRequest(start=start(server, "there", directory_mode=0o750)))
    for at in range(0, len(data), 2 << 20):
        assert not (server.top / "there/new/deep/file").exists()
        part = pb.FilePart(header=None if at else whole, data=data[at : at + (2 << 20)])
        await call.write(pb.CopyInRequest(parts=[part]))
    await call.done_writing()
    assert (await call).size == 5 << 20
    there = server.top / "there"
    assert (there / "new/deep/file").read_bytes() == data
    modes = [mode_of(there / name) for name in ("", "new", "new/deep", "new/deep/file")]
    assert modes == [0o700, 0o750, 0o750, 0o400]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([pb.FilePart(header=header("f", size=10), data=b"x" * 11)], "more bytes than"),
        ([pb.FilePart(header=header("f", size=10), data=b"x" * 9)], "ends after 9 of 10"),
        (
            [pb.FilePart(header=header("f", size=10), hole=9), file_part("g", b"")],
            "begins after 9 of 10",
        ),
        ([file_part("f", b""), pb.FilePart(data=b"x")], "beyond the size"),
        ([pb.FilePart(data=b"x")], "beyond the size"),
        ([pb.FilePart(header=header("f", size=10), hole=11)], "more bytes than"),
    ],
)
async def test_a_wrong_size_is_refused_and_the_old_file_stays(
    server: FilesServer, parts: list[pb.FilePart], text: str
) -> None:
    (server.top / "f").write_bytes(b"old")
    refusal = await refused(server.stub.CopyIn(frames(start(server), parts)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert text in refusal.message
    assert tree(server.top)["f"] in (b"old", b"")
    assert set(tree(server.top)) == {"f"}


@pytest.mark.parametrize(
    ("plant", "path"),
    [
        (("x", "/etc"), "x/evil"),
        (("y", "../outside"), "y/passwd"),
        (("y", "../../outside"), "y/deep/passwd"),
        (("self", "."), "self/f"),
        (("gone", "nowhere"), "gone/f"),
    ],
)
async def test_a_planted_link_is_never_followed(
    server: FilesServer, plant: tuple[str, str], path: str
) -> None:
    """First the link by a copy, then a file through it."""
    await server.stub.CopyIn(frames(start(server), [link_part(*plant)]))
    before = tree(server.top)
    refusal = await refused(server.stub.CopyIn(frames(start(server), [file_part(path, b"evil")])))
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
    assert (refusal.reason, refusal.fields["path"]) == ("LEADS_OUTSIDE", path)
    assert tree(server.top) == before
    assert list(server.outside.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["../z", "a/../../z", "..", "/z", "a//b", "./a", "a/.", "a/", "a\0"]
)
async def test_paths_that_are_no_names_below_are_refused(server: FilesServer, path: str) -> None:
    refusal = await refused(server.stub.CopyIn(frames(start(server), [file_part(path, b"x")])))
    assert refusal.code in NOT_WRITTEN
    assert tree(server.top.parent) == {"data": mode_of(server.top), "outside": 0o755}


@pytest.mark.parametrize("path", ["../outside", "a/../../outside"])
async def test_a_start_has_no_way_up(server: FilesServer, path: str) -> None:
    copy = server.stub.CopyIn(frames(start(server, path), [file_part("f", b"x")]))
    assert (await refused(copy)).code in NOT_WRITTEN
    assert list(server.outside.iterdir()) == []


async def test_links_of_the_start_lead_where_a_process_inside_would_come(
    server: FilesServer,
) -> None:
    """An absolute link starts at the root of the copy, `..` ends there."""
    (server.top / "real").mkdir()
    (server.top / "absolute").symlink_to("/real")
    (server.top / "up").symlink_to("../../../real")
    for name in ("absolute", "up"):
        await server.stub.CopyIn(frames(start(server, name), [file_part(name, b"x")]))
    assert sorted(os.listdir(server.top / "real")) == ["absolute", "up"]


async def test_a_file_takes_the_place_of_a_link_and_not_of_its_target(server: FilesServer) -> None:
    (server.outside / "secret").write_bytes(b"secret")
    (server.top / "leaf").symlink_to(server.outside / "secret")
    await server.stub.CopyIn(frames(start(server), [file_part("leaf", b"new")]))
    assert tree(server.top) == {"leaf": b"new"}
    assert (server.outside / "secret").read_bytes() == b"secret"


async def test_the_start_itself_can_be_a_file(server: FilesServer) -> None:
    """docker cp's renaming: an empty path is CopyStart.path; a link there is replaced too."""
    (server.top / "to").symlink_to("elsewhere")
    await server.stub.CopyIn(frames(start(server, "new/name"), [file_part("", b"1")]))
    await server.stub.CopyIn(frames(start(server, "to"), [file_part("", b"2")]))
    assert tree(server.top) == {"new": 0o755, "new/name": b"1", "to": b"2"}
    refusal = await refused(server.stub.CopyIn(frames(start(server), [file_part("", b"1")])))
    assert refusal.reason == "BAD_FIELD"


@pytest.mark.parametrize(
    ("part", "code", "reason"),
    [
        (folder_part("link"), "PERMISSION_DENIED", "LEADS_OUTSIDE"),
        (folder_part("file"), "FAILED_PRECONDITION", "WRONG_STATE"),
        (file_part("file/below", b""), "FAILED_PRECONDITION", "WRONG_STATE"),
        (file_part("empty", b""), "FAILED_PRECONDITION", "WRONG_STATE"),
        (link_part("full", "x"), "FAILED_PRECONDITION", "WRONG_STATE"),
        (file_part("x" * 256, b""), "INVALID_ARGUMENT", "BAD_FIELD"),
        (pb.FilePart(header=header("p", type=4)), "INVALID_ARGUMENT", "BAD_FIELD"),
        (pb.FilePart(header=header("p", type=0)), "INVALID_ARGUMENT", "BAD_FIELD"),
        (pb.FilePart(header=header("p", mode=0o10000)), "INVALID_ARGUMENT", "BAD_FIELD"),
        (pb.FilePart(header=header("p", uid=2**32 - 1)), "INVALID_ARGUMENT", "BAD_FIELD"),
        (pb.FilePart(header=header("p", size=2**63)), "INVALID_ARGUMENT", "BAD_FIELD"),
        (link_part("p", ""), "INVALID_ARGUMENT", "BAD_FIELD"),
    ],
)
async def test_what_can_not_be_written_is_refused_with_a_reason(
    server: FilesServer, part: pb.FilePart, code: str, reason: str
) -> None:
    (server.top / "empty").mkdir()
    (server.top / "full").mkdir()
    (server.top / "full/f").write_bytes(b"")
    (server.top / "file").write_bytes(b"old")
    (server.top / "link").symlink_to(server.outside)
    before = tree(server.top)
    refusal = await refused(server.stub.CopyIn(frames(start(server), [part])))
    assert (refusal.code.name, refusal.reason) == (code, reason)
    assert refusal.fields["path"] == part.header.path
    assert tree(server.top) == before
    assert list(server.outside.iterdir()) == []


async def test_only_new_replaces_nothing(server: FilesServer) -> None:
    (server.top / "d").mkdir(mode=0o700)
    (server.top / "d/f").write_bytes(b"old")
    (server.top / "d/link").symlink_to("nowhere")
    for part in (file_part("f", b"new"), link_part("f", "x"), file_part("link", b"")):
        copy = server.stub.CopyIn(frames(start(server, "d", only_new=True), [part]))
        refusal = await refused(copy)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.ALREADY_EXISTS, "FILE_EXISTS")
    assert tree(server.top) == {"d": 0o700, "d/f": b"old", "d/link": "-> nowhere"}
    news = [folder_part("d", 0o755), file_part("d/g", b"g"), link_part("d/l", "g")]
    await server.stub.CopyIn(frames(start(server, only_new=True), news))
    assert tree(server.top) == {
        "d": 0o700,
        "d/f": b"old",
        "d/g": b"g",
        "d/l": "-> g",
        "d/link": "-> nowhere",
    }


async def test_the_same_again_gives_the_same(server: FilesServer) -> None:
    parts = [folder_part("d"), file_part("d/f", b"1" * 5000), link_part("d/l", "f")]
    first = await server.stub.CopyIn(frames(start(server), parts))
    assert await server.stub.CopyIn(frames(start(server), parts)) == first
    assert sorted(tree(server.top)) == ["d", "d/f", "d/l"]


async def test_holes_stay_holes_both_ways(server: FilesServer) -> None:
    """1 GiB of size and 8 KiB of data."""
    size = 1 << 30
    parts = [
        pb.FilePart(header=header("sparse", size=size), hole=1 << 20, data=b"a" * 4096),
        pb.FilePart(hole=(1 << 29) - 4096, data=b"b" * 4096),
        pb.FilePart(hole=size - (1 << 20) - (1 << 29) - 4096),
    ]
    answer = await server.stub.CopyIn(frames(start(server), parts))
    assert answer.size == size
    written = (server.top / "sparse").stat()
    assert (written.st_size, written.st_blocks * 512 < 1 << 20) == (size, True)
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="sparse"))
    parts_out = [part async for answer in call for part in answer.parts]
    assert sum(part.hole + len(part.data) for part in parts_out) == size
    assert sum(len(part.data) for part in parts_out) < 1 << 20
    assert b"".join(part.data for part in parts_out).strip(b"\0") == b"a" * 4096 + b"b" * 4096


@pytest.mark.parametrize("kind", [pb.FILE_TYPE_LINK, pb.FILE_TYPE_FILE])
@pytest.mark.parametrize("size", [4096, 70_000])
async def test_a_links_target_has_a_paths_length(
    server: FilesServer, kind: pb.FileType.ValueType, size: int
) -> None:
    """symlink(2): ENAMETOOLONG is for a target of PATH_MAX bytes, its NUL included."""
    part = pb.FilePart(header=header("f", type=kind, link_target="x" * size))
    refusal = await refused(server.stub.CopyIn(frames(start(server), [part])))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
    assert tree(server.top) == {}


@pytest.mark.parametrize("frame", [None, pb.CopyInRequest(parts=[file_part("f", b"")])])
async def test_the_first_frame_says_where(
    server: FilesServer, frame: pb.CopyInRequest | None
) -> None:
    refusal = await refused(server.stub.CopyIn(iter([frame] if frame else [])))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        (pb.FileRoot(), "BAD_FIELD"),
        (pb.FileRoot(storage_id="../x"), "BAD_ID"),
        (pb.FileRoot(storage_id="other"), "UNKNOWN_STORAGE"),
        (pb.FileRoot(container_id="other"), "UNKNOWN_CONTAINER"),
    ],
)
async def test_a_root_that_is_none(server: FilesServer, root: pb.FileRoot, reason: str) -> None:
    copy = server.stub.CopyIn(frames(pb.CopyStart(root=root), [file_part("f", b"")]))
    assert (await refused(copy)).reason == reason
    call = server.stub.CopyOut(pb.CopyOutRequest(root=root))
    assert (await refused(anext(aiter(call)))).reason == reason


async def test_a_host_that_leaves_in_the_middle_leaves_nothing(server: FilesServer) -> None:
    """Entries before are there; what was in progress is not, nor a trace of it."""
    (server.top / "big").write_bytes(b"old")
    call = server.stub.CopyIn()
    await call.write(pb.CopyInRequest(start=start(server), parts=[file_part("first", b"1")]))
    half = pb.FilePart(header=header("big", size=1 << 20), data=b"x" * 1000)
    await call.write(pb.CopyInRequest(parts=[half]))
    await until(lambda: "first" in tree(server.top))
    assert server.files.storages.users["data"] == 1
    call.cancel()
    await until(lambda: not server.files.storages.users["data"])
    assert tree(server.top) == {"first": b"1", "big": b"old"}


async def test_a_storage_is_in_use_while_it_is_copied(server: FilesServer) -> None:
    await server.stub.CopyIn(frames(start(server), [file_part("f", b"x")]))
    await out(server, path="f")
    assert server.files.storages.heard == ["Files.CopyIn", "Files.CopyOut"]
    assert server.files.storages.users["data"] == 0


async def test_out_of_a_directory_without_recursion_is_the_directory(server: FilesServer) -> None:
    (server.top / "d").mkdir()
    (server.top / "d/f").write_bytes(b"")
    assert await out(server, path="d") == ({"": b""}, [])
    assert await out(server) == ({"": b""}, [])


async def test_a_link_is_copied_or_followed_inside_the_root(server: FilesServer) -> None:
    (server.top / "f").write_bytes(b"inside")
    (server.outside / "f").write_bytes(b"outside")
    (server.top / "link").symlink_to("/f")
    (server.top / "up").symlink_to("../../outside/f")
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="link"))
    (answer,) = [answer async for answer in call]
    assert answer.parts[0].header.link_target == "/f"
    assert await out(server, path="link", follow_link=True) == ({"": b"inside"}, [])
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="up", follow_link=True))
    refusal = await refused(anext(aiter(call)))
    assert (refusal.code, refusal.fields["errno"]) == (grpc.StatusCode.NOT_FOUND, "ENOENT")


async def test_a_file_from_an_offset(server: FilesServer) -> None:
    (server.top / "f").write_bytes(b"0123456789")
    assert await out(server, path="f", offset=7) == ({"": b"789"}, [])
    assert await out(server, path="f", offset=10) == ({"": b""}, [])
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="f", offset=11))
    assert (await refused(anext(aiter(call)))).code is grpc.StatusCode.OUT_OF_RANGE
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, offset=1))
    assert (await refused(anext(aiter(call)))).reason == "BAD_FIELD"


async def test_what_is_no_file_is_told_and_left_out(server: FilesServer) -> None:
    """A fifo that nobody writes to would keep a reader for ever."""
    (server.top / "d").mkdir()
    os.mkfifo(server.top / "d/fifo")
    (server.top / "d/f").write_bytes(b"x")
    (server.top / "d" / os.fsdecode(b"\xff")).write_bytes(b"")
    found, left_out = await out(server, path="d", recursive=True)
    assert found == {"": b"", "f": b"x"}
    assert sorted(left_out) == ["\\xff: it is not in UTF-8", "fifo: a fifo"]
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="d/fifo"))
    assert (await refused(anext(aiter(call)))).reason == "WRONG_STATE"


async def test_a_reader_that_stops_reading_stops_the_copy(server: FilesServer) -> None:
    """Back-pressure: of a file of 1 GiB nearly nothing is read when nobody takes it."""
    with (server.top / "big").open("wb") as file:
        file.truncate(1 << 30)
        for at in range(0, 1 << 30, 64 << 20):
            os.pwrite(file.fileno(), b"x", at)
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, path="big"))
    assert (await anext(aiter(call))).parts[0].header.size == 1 << 30
    call.cancel()
    await until(lambda: not server.files.storages.users["data"])


async def test_thousands_of_small_files_come_in_few_frames(server: FilesServer) -> None:
    def batches() -> Iterator[list[pb.FilePart]]:
        for at in range(10):
            yield [folder_part(f"d{at}")]
            yield [file_part(f"d{at}/f{number}", b"%d" % number) for number in range(200)]

    answer = await server.stub.CopyIn(frames(start(server), *batches()))
    assert (answer.files, answer.directories) == (2000, 10)
    call = server.stub.CopyOut(pb.CopyOutRequest(root=server.root, recursive=True))
    answers = [len(answer.parts) async for answer in call]
    assert sum(answers) == 2011
    assert len(answers) < 10

"""What the classes ask for is what the kernel's clients take: they get as far as the network.

Nobody listens, so that each ends with the network's refusal. An option that the kernel did
not know would be EINVAL before that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.deadlines import Deadline
from agent.core.fileops import FileRefusal, FileWorkers
from agent.core.sources import CephSource, CifsSource, NfsSource, Source
from agent.handlers.storage.base import StorageClass
from agent.handlers.storage.ceph import CephStorage
from agent.handlers.storage.cifs import CifsStorage
from agent.handlers.storage.nfs import NfsStorage
from tests.fakes.served import served_bench

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.storage,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
]

PASSWORD = "hunter2, too"
# A key as `ceph auth print-key` shows one.
SECRET = "AQAwTe5mAAAAABAAZ5bmXbmVpl8WHQ3c5dVEzA=="
REFUSED = {errno.ECONNREFUSED}
# A monitor that refuses is tried again until mount_timeout.
UNANSWERED = {errno.ETIMEDOUT, errno.EIO, errno.EHOSTUNREACH}


@pytest.fixture
async def files() -> AsyncIterator[FileWorkers]:
    made = FileWorkers()
    yield made
    await made.close()


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """A port of 127.0.0.1 where nobody listens, and nobody else can."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


CASES: dict[str, tuple[StorageClass[Any], Source, str, set[int]]] = {
    "nfs": (
        NfsStorage(),
        NfsSource(server="server", path="/x"),
        "soft,timeo=10,retrans=1,port={port}",
        REFUSED,
    ),
    "nfs 4.0": (
        NfsStorage(),
        NfsSource(server="server", path="/x", version="4.0"),
        "soft,timeo=10,retrans=1,port={port}",
        REFUSED,
    ),
    "nfs 3": (
        NfsStorage(),
        NfsSource(server="server", path="/x", version="3"),
        "soft,timeo=10,retrans=1,port={port},mountport={port}",
        REFUSED,
    ),
    "cifs": (
        CifsStorage(),
        CifsSource(
            server="server",
            share="data/sub",
            user="eve",
            password=PASSWORD,
            domain="OFFICE",
            version="3.1.1",
        ),
        "port={port},file_mode=0640,iocharset=utf8",
        REFUSED,
    ),
    "cifs guest": (CifsStorage(), CifsSource(server="server", share="d"), "port={port}", REFUSED),
    "ceph": (
        CephStorage(),
        CephSource(
            monitors=("server:1",), path="/x", user="guest", password=SECRET, file_system="cold"
        ),
        "mount_timeout=1",
        UNANSWERED,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_the_kernel_takes_the_options(
    name: str, tmp_path: Path, files: FileWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, source, options, expected = CASES[name]
    fs_type = name.split(maxsplit=1)[0]
    try:
        await files.know_fs_type(fs_type, Deadline.after(30))
    except OSError:
        pytest.skip(f"this machine's kernel has no {fs_type}")
    target = tmp_path / "target"
    target.mkdir()
    async with served_bench(tmp_path / "guest", served, monkeypatch) as lab:
        with nobody() as port:
            lab.names.hosts = {"server": ("127.0.0.1",)}
            lab.network.answers = {("127.0.0.1", port)}
            call = await lab.call(source, options.format(port=port))
            with pytest.raises(FileRefusal) as caught:
                await files.mount(call, str(target), Deadline.after(60))
    assert caught.value.errno in expected, (caught.value, caught.value.log)
    said = "\n".join((str(caught.value), *caught.value.log))
    assert PASSWORD not in said
    assert SECRET not in said

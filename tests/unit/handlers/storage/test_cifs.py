"""SMB: what the kernel is told without mount.cifs (fs/smb/client/fs_context.c, mount.cifs(8))."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core import sources
from agent.core.errors import Code, Reason
from agent.core.fileops import FsMount, MountOption
from agent.core.model import StorageRequest
from agent.core.sources import CifsSource
from agent.handlers.storage.cifs import CifsStorage
from tests.fakes.served import ServedBench, served_bench, shown

pytestmark = [pytest.mark.unit, pytest.mark.storage]

SHARE = CifsSource(server="files.example", share="data", user="eve", password="hunter2")
GUEST = CifsSource(server="files.example", share="data")


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedBench]:
    async with served_bench(tmp_path, CifsStorage(), monkeypatch) as made:
        made.names.hosts = {"files.example": ("2001:db8::5", "192.0.2.7")}
        made.network.answers = {("192.0.2.7", 445)}
        yield made


async def test_the_address_and_the_user_are_added(lab: ServedBench) -> None:
    call = await lab.call(
        CifsSource(
            server="files.example",
            share="data",
            user="eve",
            password="hunter2",
            domain="OFFICE",
            version="3.1.1",
        ),
        "file_mode=0640",
    )
    assert call == FsMount(
        fs_type="cifs",
        source="//files.example/data",
        options=(
            MountOption(key="username", value="eve"),
            MountOption(key="domain", value="OFFICE"),
            MountOption(key="vers", value="3.1.1"),
            MountOption(key="password", value="hunter2", secret=True),
            MountOption(key="file_mode", value="0640"),
            MountOption(key="ip", value="192.0.2.7"),
        ),
    )
    assert lab.network.tried == [("2001:db8::5", 445), ("192.0.2.7", 445)]


async def test_without_a_user_it_is_a_guest(lab: ServedBench) -> None:
    """The kernel wants a user or sec=none: "No username specified" otherwise."""
    assert await lab.options(GUEST) == ["sec=none", "ip=192.0.2.7"]
    assert await lab.options(GUEST, "guest") == ["sec=none", "guest", "ip=192.0.2.7"]


@pytest.mark.parametrize("words", ["username=eve", "user=eve", "sec=krb5"])
async def test_an_option_may_say_who(lab: ServedBench, words: str) -> None:
    assert await lab.options(GUEST, words) == [words, "ip=192.0.2.7"]


async def test_a_password_for_the_user_of_an_option(lab: ServedBench) -> None:
    source = CifsSource(server="files.example", share="data", password="hunter2")
    options = await lab.options(source, "username=eve")
    assert options == ["password=***", "username=eve", "ip=192.0.2.7"]
    error = await lab.refusal(source)
    assert error.fields["field"] == "source.cifs.user"


@pytest.mark.parametrize("word", ["ip=192.0.2.99", "addr=192.0.2.99"])
async def test_a_hand_made_address_is_kept(lab: ServedBench, word: str) -> None:
    assert await lab.options(GUEST, word) == ["sec=none", word]
    assert (lab.names.asked, lab.network.tried) == ([], [])


@pytest.mark.parametrize(
    ("server", "source"),
    [
        ("192.0.2.7", "//192.0.2.7/data"),
        ("[2001:db8::5]", "//2001:db8::5/data"),
        ("files.example", "//files.example/data"),
    ],
)
async def test_the_source_is_a_unc_name(lab: ServedBench, server: str, source: str) -> None:
    lab.network.answers.add(("2001:db8::5", 445))
    assert (await lab.call(CifsSource(server=server, share="data"))).source == source


async def test_a_share_may_have_a_directory(lab: ServedBench) -> None:
    call = await lab.call(CifsSource(server="files.example", share="data/sub/deep"))
    assert call.source == "//files.example/data/sub/deep"


@pytest.mark.parametrize("share", ["", "/data", "a\\b"])
async def test_shares_that_unc_would_read_otherwise(lab: ServedBench, share: str) -> None:
    error = await lab.refusal(CifsSource(server="files.example", share=share))
    assert (error.code, error.fields["field"]) == (Code.INVALID_ARGUMENT, "source.cifs.share")


async def test_another_port(lab: ServedBench) -> None:
    lab.network.answers = {("192.0.2.7", 4450)}
    assert "ip=192.0.2.7" in await lab.options(GUEST, "port=4450")
    lab.network.tried.clear()
    assert "ip=2001:db8::5" in await lab.options(GUEST, "rdma")
    assert lab.network.tried == []


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("username=bob", "user"),
        ("user=bob", "user"),
        ("dom=HOME", "domain"),
        ("vers=2.1", "version"),
    ],
)
async def test_what_is_said_twice_and_not_the_same(
    lab: ServedBench, words: str, field: str
) -> None:
    source = CifsSource(
        server="files.example", share="data", user="eve", domain="OFFICE", version="3.0"
    )
    error = await lab.refusal(source, words)
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, f"source.cifs.{field}")


async def test_what_is_said_twice_and_the_same(lab: ServedBench) -> None:
    assert await lab.options(SHARE, "username=eve") == [
        *("password=***", "username=eve", "ip=192.0.2.7")
    ]


@pytest.mark.parametrize(
    "word",
    [
        *("password=hunter2", "pass=hunter2", "PASSWORD=hunter2", 'password=hun"ter2'),
        *("uid=5,password2=hunter2", " pass2=hunter2", "credentials=/hunter2", "cred=/hunter2"),
    ],
)
async def test_secrets_are_no_options(lab: ServedBench, word: str) -> None:
    """Options are saved and shown as they were asked for; mount.cifs alone reads files of them."""
    error = await lab.refusal(SHARE, word)
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, "options")
    assert "hunter2" not in str(error)
    assert 'hun"ter2' not in str(error)


def passwords() -> list[str]:
    chance = random.Random(5)
    letters = [chr(code) for code in (*range(0x20, 0x7F), 0xE9, 0x4E2D, 0x1F600)]
    return ["".join(chance.choices(letters, k=chance.randint(8, 60))) for _ in range(200)]


async def test_no_password_is_ever_shown(lab: ServedBench) -> None:
    for password in passwords():
        source = CifsSource(server="files.example", share="data", user="eve", password=password)
        call = await lab.call(source)
        # It goes to the kernel as it is: fsconfig(2) needs no escapes.
        assert MountOption(key="password", value=password, secret=True) in call.options
        lab.network.answers = set()
        refusal = await lab.refusal(source)
        lab.network.answers = {("192.0.2.7", 445)}
        request = StorageRequest(id="data", source=source)
        texts = (
            shown(call),
            *(str(refusal), repr(refusal), repr(refusal.fields)),
            *(repr(source), str(source), repr(request), json.dumps(sources.to_data(source))),
        )
        assert [text for text in texts if password in text] == []


def test_the_same_request_is_the_same_without_its_password() -> None:
    without = CifsSource(server="files.example", share="data", user="eve")
    assert without == SHARE
    assert sources.from_data(sources.to_data(SHARE)) == SHARE
    assert StorageRequest(id="data", source=without) == StorageRequest(id="data", source=SHARE)


async def test_hints(lab: ServedBench) -> None:
    hints = (await lab.plan(SHARE)).hints
    assert "user, password or domain" in hints[errno.EACCES]
    assert "data" in hints[errno.ENOENT]

"""How forwards are written: docker's -p, ssh's -L and -R."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from innkeeper.cli import forward_specs
from innkeeper.cli.app import app
from innkeeper.shim.forwarding.words import End, Forward, ForwardState
from innkeeper.shim.spec import VmSpec

pytestmark = [pytest.mark.unit, pytest.mark.network]


def ends(forwards: tuple[Forward, ...]) -> list[str]:
    return [f"{each.listen}->{each.target}" for each in forwards]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8080:80", ["127.0.0.1:8080->localhost:80"]),
        ("8080:80/tcp", ["127.0.0.1:8080->localhost:80"]),
        ("80", ["127.0.0.1:0->localhost:80"]),
        ("0:80", ["127.0.0.1:0->localhost:80"]),
        ("0.0.0.0:8080:80", ["0.0.0.0:8080->localhost:80"]),
        ("*:8080:80", [":8080->localhost:80"]),
        ("[::1]:8080:80", ["[::1]:8080->localhost:80"]),
        ("8080:127.0.0.2:80", ["127.0.0.1:8080->127.0.0.2:80"]),
        ("127.0.0.2:8080:[::1]:80", ["127.0.0.2:8080->[::1]:80"]),
        (
            "8000-8002:9000-9002",
            [
                "127.0.0.1:8000->localhost:9000",
                "127.0.0.1:8001->localhost:9001",
                "127.0.0.1:8002->localhost:9002",
            ],
        ),
        ("9000-9001", ["127.0.0.1:0->localhost:9000", "127.0.0.1:0->localhost:9001"]),
    ],
)
def test_publish(text: str, meant: list[str]) -> None:
    assert ends(forward_specs.parse_publish(text)) == meant


@pytest.mark.parametrize(
    "text",
    [
        *("", "http", "8080:", ":80", "8080:80:90:100", "70000:80", "8080:0", "8080:80/sctp"),
        *("8000-8002:9000-9001", "8002-8000:9000-9002", "0-1:80-81", "1-1000:1-1000"),
        *("8080:80/udp", "[1.2.3.4]:8080:80", "[::zz]:8080:80", "example.org:8080:80"),
    ],
)
def test_what_can_not_be_published(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        forward_specs.parse_publish(text)


def test_udp_is_told_apart() -> None:
    with pytest.raises(typer.BadParameter, match="only TCP is forwarded, not UDP"):
        forward_specs.parse_publish("53:53/udp")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8080:80", "127.0.0.1:8080->localhost:80"),
        # As ssh's -L [bind_address:]port:host:hostport, ssh(1).
        ("8080:localhost:80", "127.0.0.1:8080->localhost:80"),
        ("127.0.0.2:8080:10.0.2.2:80", "127.0.0.2:8080->10.0.2.2:80"),
        ("[::1]:8080:[fd00::1]:80", "[::1]:8080->[fd00::1]:80"),
        ("*:8080:80", ":8080->localhost:80"),
        (":8080:80", ":8080->localhost:80"),
        ("/tmp/a.sock:/run/b.sock", "/tmp/a.sock->/run/b.sock"),
        ("/tmp/a.sock:80", "/tmp/a.sock->localhost:80"),
        ("8080:/run/b.sock", "127.0.0.1:8080->/run/b.sock"),
        ("8080:main@80", "127.0.0.1:8080->main@localhost:80"),
        ("8080:main@/run/b.sock", "127.0.0.1:8080->main@/run/b.sock"),
        ("8080->80", "127.0.0.1:8080->localhost:80"),
        ("/tmp/a:b -> main@/run/c:d", "/tmp/a:b->main@/run/c:d"),
    ],
)
def test_forward(text: str, meant: str) -> None:
    assert ends((forward_specs.parse_forward(text),)) == [meant]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8080:80", "localhost:8080->localhost:80"),
        ("0.0.0.0:8080:registry.example:5000", "0.0.0.0:8080->registry.example:5000"),
        ("main@/run/agent.sock:/tmp/agent.sock", "main@/run/agent.sock->/tmp/agent.sock"),
    ],
)
def test_reverse(text: str, meant: str) -> None:
    forward = forward_specs.parse_reverse(text)
    assert forward.reverse
    assert ends((forward,)) == [meant]


@pytest.mark.parametrize(
    "text",
    [
        *("", "80", "8080:", "8080:0", "8080:*:80", "main@8080:80", "8080:run/b.sock"),
        *("8080:./b.sock", "8080:80:90", "70000:80", "a b:80"),
    ],
)
def test_what_can_not_be_forwarded(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        forward_specs.parse_forward(text)


def test_a_path_of_this_host_is_made_absolute() -> None:
    """The daemon has another working directory."""
    forward = forward_specs.parse_forward("./a.sock:80")
    assert forward.listen == End(path=str(Path("a.sock").absolute()))


def test_an_arrow_that_the_shell_took() -> None:
    """`8080->80` without quotes is the word `8080-` and a file named 80."""
    with pytest.raises(typer.BadParameter, match="quote it"):
        forward_specs.parse_forward("8080-")


def test_the_daemon_reads_what_the_command_wrote() -> None:
    forwards = forward_specs.parse_all(["8080:80"], None, ["main@/a:/b"])
    spec = VmSpec(name="web", forwards=forwards)
    assert VmSpec.from_json(spec.to_json()).forwards == forwards


def test_a_state_has_the_host_on_its_left() -> None:
    state = ForwardState(listen="localhost:5000", target="/tmp/a", reverse=True)
    assert str(state) == "/tmp/a<-localhost:5000"
    assert (
        str(ForwardState(listen=":80", target="localhost:80", reverse=False)) == ":80->localhost:80"
    )


def test_nothing_to_forward() -> None:
    told = CliRunner().invoke(app, ["forward", "web"])
    assert told.exit_code == 2
    assert "say what to forward" in " ".join(told.output.split())

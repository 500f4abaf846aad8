"""passt: which one, and that it gets QEMU's connection and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from innkeeper.shim import passt
from innkeeper.shim.errors import Reason, ShimError
from tests.fakes.passt import fake_passt

pytestmark = [pytest.mark.unit, pytest.mark.network]


def test_a_host_without_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ShimError) as caught:
        passt.find()
    assert caught.value.reason is Reason.NOT_INSTALLED
    assert caught.value.code.name == "FAILED_PRECONDITION"
    assert "apt install passt" in caught.value.hint


def test_it_gets_the_first_client_and_no_port_of_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """passt(1): --fd takes a connected socket; ports are forwarded only when asked for."""
    monkeypatch.setenv("PATH", str(fake_passt(tmp_path / "bin")))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "net.sock"))
        listener.listen()
        client.connect(str(tmp_path / "net.sock"))
        argv = passt.find().argv(listener.fileno())
        with subprocess.Popen(argv, pass_fds=(listener.fileno(),)):
            said = client.recv(4096).decode().split()
            client.shutdown(socket.SHUT_WR)
    assert said[said.index("--tcp-ports") + 1] == said[said.index("--udp-ports") + 1] == "none"
    assert "--foreground" in said
    assert argv[0] == sys.executable

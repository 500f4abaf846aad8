"""vsock: who the host is, and what an occupied port says."""

from __future__ import annotations

import errno
import socket

import pytest

from agent.linux import vsock

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def _free_port() -> int:
    """A port that nobody has; the kernel picks it (VMADDR_PORT_ANY)."""
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
            sock.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
            port: int = sock.getsockname()[1]
            return port
    except OSError as error:
        pytest.skip(f"this kernel has no vsock: {error}")


def test_the_constants_are_the_kernels() -> None:
    """linux/vm_sockets.h."""
    assert vsock.ANY_CID == socket.VMADDR_CID_ANY
    assert vsock.HOST_CID == socket.VMADDR_CID_HOST == 2


@pytest.mark.parametrize(("cid", "is_host"), [(2, True), (1, False), (0, False), (3, False)])
def test_only_cid_2_is_the_host(cid: int, is_host: bool) -> None:
    """Through loopback the guest's own processes show as CID 1."""
    assert vsock.is_host((cid, 4711)) is is_host


def test_a_listener_does_not_block() -> None:
    with vsock.listen(_free_port()) as listener:
        assert listener.family == socket.AF_VSOCK
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_an_occupied_port_is_named() -> None:
    port = _free_port()
    with vsock.listen(port), pytest.raises(OSError, match="bind, listen") as failure:
        vsock.listen(port)
    assert failure.value.errno == errno.EADDRINUSE
    assert failure.value.filename == f"vsock port {port}"


def test_a_kernel_without_vsock_is_a_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "AF_VSOCK", 9999)
    with pytest.raises(OSError, match="socket: ") as failure:
        vsock.listen(1024)
    assert failure.value.errno == errno.EAFNOSUPPORT

"""Finding virtio-serial ports in a made-up sysfs."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.linux import virtio_ports

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def _sysfs(root: Path, ports: Mapping[str, str | None]) -> str:
    for device, name in ports.items():
        folder = root / "class/virtio-ports" / device
        folder.mkdir(parents=True)
        if name is not None:
            (folder / "name").write_text(f"{name}\n")
    return str(root)


def test_ports_are_found_by_name(tmp_path: Path) -> None:
    ports = {
        "vport1p2": "innkeeper.agent.1",
        "vport0p1": "innkeeper.agent.0",
        "vport0p3": "org.qemu.guest_agent.0",
    }
    assert virtio_ports.find("innkeeper.agent.", sys_root=_sysfs(tmp_path, ports)) == [
        ("innkeeper.agent.0", "/dev/vport0p1"),
        ("innkeeper.agent.1", "/dev/vport1p2"),
    ]


def test_a_port_without_its_name_yet_is_left_out(tmp_path: Path) -> None:
    """The name comes in a later message of the device, with a change event."""
    root = _sysfs(tmp_path, {"vport0p1": None})
    assert virtio_ports.find("innkeeper.agent.", sys_root=root) == []


def test_without_the_driver_there_are_none(tmp_path: Path) -> None:
    assert virtio_ports.find("innkeeper.agent.", sys_root=str(tmp_path)) == []


def test_opening_does_not_block_and_names_the_node(tmp_path: Path) -> None:
    fifo = tmp_path / "vport0p1"
    os.mkfifo(fifo)
    fd = virtio_ports.open_port(str(fifo))
    assert os.get_blocking(fd) is False
    assert os.get_inheritable(fd) is False
    os.close(fd)
    with pytest.raises(FileNotFoundError) as failure:
        virtio_ports.open_port(str(tmp_path / "gone"))
    assert failure.value.filename == str(tmp_path / "gone")


class _Netlink(socket.socket):
    """A datagram socket whose messages seem to come from the port ids in `senders`."""

    senders: list[int]

    def recvfrom(self, *_arguments: object) -> tuple[bytes, tuple[int, int]]:
        message, _address = super().recvfrom(16 * 1024)
        if message == b"lost":
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return message, (self.senders.pop(0), 1)


@pytest.mark.parametrize(
    ("message", "sender", "changed"),
    [
        (b"change@/d/vport0p1\0ACTION=change\0SUBSYSTEM=virtio-ports\0SEQNUM=1\0", 0, True),
        (b"change@/d/vport0p1\0ACTION=change\0SUBSYSTEM=virtio-ports\0SEQNUM=1\0", 71, False),
        (b"add@/d/sda\0ACTION=add\0SUBSYSTEM=block\0SEQNUM=1\0", 0, False),
        (b"lost", 0, True),
    ],
    ids=["port", "not from the kernel", "other device", "messages lost"],
)
def test_which_announcements_mean_a_look(message: bytes, sender: int, changed: bool) -> None:
    kernel, relay = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with kernel, _Netlink(fileno=relay.detach()) as listener:
        listener.setblocking(False)
        listener.senders = [sender]
        kernel.send(message)
        assert virtio_ports.ports_changed(listener) is changed


def test_the_announcement_socket_is_the_kernels(tmp_path: Path) -> None:
    with virtio_ports.announcements() as listener:
        assert listener.family == socket.AF_NETLINK
        assert listener.getsockname()[1] == 1
        assert virtio_ports.ports_changed(listener) in {False, True}

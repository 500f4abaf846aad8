"""vhost-device-vsock (rust-vmm): vsock for a guest without any help of the host's kernel.

The program serves one unix socket to QEMU (vhost-user) and one to us (hybrid
vsock). It reads the guest's memory, which therefore must be shared; a guest
with such a device cannot be migrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.shim.transport.address import HybridAddress

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "vhost-device-vsock"


@dataclass(frozen=True, slots=True, kw_only=True)
class VhostUserVsock:
    """One VM's device: the two sockets lie in the VM's own directory.

    `cid` needs to be unique only among VMs that share a process of the
    program, and ours share none.
    """

    program: Path
    directory: Path
    cid: int = 3

    @property
    def device_socket(self) -> Path:
        """Where QEMU connects; there once the program is ready for it."""
        return self.directory / "vhost.sock"

    @property
    def host_socket(self) -> Path:
        """Where the host connects to the guest's ports."""
        return self.directory / "vsock.sock"

    def address(self, port: int) -> HybridAddress:
        return HybridAddress(path=self.host_socket, port=port)

    def argv(self) -> tuple[str, ...]:
        """The program's command line; it must run before QEMU starts, and ends with it."""
        return (
            str(self.program),
            f"--guest-cid={self.cid}",
            f"--socket={self.device_socket}",
            f"--uds-path={self.host_socket}",
        )

    def qemu_arguments(self) -> tuple[str, ...]:
        """QEMU's arguments; the machine's memory backend must have share=on beside them."""
        path = str(self.device_socket).replace(",", ",,")  # QEMU's own escape
        return (
            *("-chardev", f"socket,id=vsock,path={path}"),
            *("-device", "vhost-user-vsock-pci,id=vsock0,chardev=vsock"),
        )

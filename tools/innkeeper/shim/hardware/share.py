"""A directory of the host, served by virtiofsd: in the guest a storage, no device."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from innkeeper.shim import virtiofsd
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import Backend, Hardware, Helper, Names, Setting, bad_field

if TYPE_CHECKING:
    from innkeeper.shim.qmp import Monitor
    from innkeeper.shim.virtiofsd import Virtiofsd
    from innkeeper.v1 import host_pb2

# struct virtio_fs_config, virtio 1.2, 5.11.4.
LONGEST_TAG = 36
# As QEMU's documentation has it: requests that may be on their way at once.
_QUEUE = 1024


def parse(message: host_pb2.Share, device_id: str, setting: Setting) -> Hardware:
    if not setting.shared_memory:
        raise ShimError(
            Reason.NOT_PLUGGABLE,
            f"device {device_id}: this VM's memory is private, and virtiofsd has to read it",
            hint="start the VM without --private-memory",
            fields={"id": device_id},
        )
    return Share(
        directory=check_directory(message.directory),
        tag=check_tag(message.tag or device_id),
        read_only=message.read_only,
        vm_directory=setting.directory,
    )


def check_directory(text: str) -> Path:
    """Raises BAD_FIELD or FILE_NOT_FOUND."""
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise bad_field("directory", f"directory {text!r}: not an absolute path")
    if not path.exists():
        message = f"directory {text}: does not exist"
        raise ShimError(Reason.FILE_NOT_FOUND, message, fields={"directory": text})
    if not path.is_dir():
        raise bad_field("directory", f"directory {text}: is no directory")
    if not os.access(path, os.R_OK | os.X_OK):
        message = f"directory {text}: may not be read"
        raise ShimError(Reason.FILE_NOT_FOUND, message, fields={"directory": text})
    return path


def check_tag(tag: str) -> str:
    """Raises BAD_FIELD."""
    if len(tag.encode()) > LONGEST_TAG or not tag.isprintable():
        hint = f"a tag has at most {LONGEST_TAG} bytes; without one it is the id"
        raise bad_field("tag", f"tag {tag!r}: not possible", hint)
    return tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(Hardware):
    """vhost-user-fs, and the virtiofsd behind it."""

    not_cold: ClassVar[str] = "its virtiofsd is started when it is plugged"

    directory: Path
    tag: str
    read_only: bool
    vm_directory: Path
    server: Virtiofsd | None = None

    @property
    def driver(self) -> str:
        return "vhost-user-fs-pci"

    @property
    def model(self) -> str:
        return "virtiofs"

    @property
    def source(self) -> str:
        return str(self.directory)

    @property
    def share_tag(self) -> str:
        return self.tag

    async def resolve(self, names: Names, monitor: Monitor) -> Hardware:  # noqa: ARG002
        """Which virtiofsd there is. Raises HOST_LACKS."""
        server = await asyncio.to_thread(lambda: virtiofsd.look_at(virtiofsd.find()))
        return replace(self, server=server)

    def helper(self, names: Names) -> Helper | None:
        server = self.server
        if server is None:
            return None

        def argv(listener: int) -> tuple[str, ...]:
            as_root = os.geteuid() == 0
            return server.argv(self.directory, listener, read_only=self.read_only, as_root=as_root)

        return Helper(name=virtiofsd.PROGRAM, socket=self._socket(names), argv=argv)

    def backends(self, names: Names) -> tuple[Backend, ...]:
        address = {"type": "unix", "data": {"path": str(self._socket(names))}}
        data = {"addr": address, "server": False}
        return (
            Backend(
                add="chardev-add",
                arguments={"id": names.backend, "backend": {"type": "socket", "data": data}},
                remove="chardev-remove",
                removal={"id": names.backend},
            ),
        )

    def properties(self, names: Names) -> dict[str, object]:
        return {"chardev": names.backend, "tag": self.tag, "queue-size": _QUEUE}

    def _socket(self, names: Names) -> Path:
        return self.vm_directory / f"fs{names.number}.sock"

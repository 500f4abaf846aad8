"""A disk's content as a backend, and what QEMU says when it can't be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innkeeper.shim.disks import DiskFile
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware.base import Backend

if TYPE_CHECKING:
    from innkeeper.shim.hardware.base import Names
    from innkeeper.shim.qmp import QemuRefusedError
    from innkeeper.v1 import host_pb2


def parse(message: host_pb2.DiskFile) -> DiskFile:
    return DiskFile.check(message.file, message.format, read_only=message.read_only)


def backend(file: DiskFile, names: Names) -> Backend:
    return Backend(
        add="blockdev-add",
        arguments=file.blockdev(names.backend),
        remove="blockdev-del",
        removal={"node-name": names.backend},
    )


def explain(file: DiskFile, error: QemuRefusedError) -> ShimError:
    """QEMU takes the file's lock when somebody begins to use the node, so a lock
    may be what `device_add` fails with."""
    fields: dict[str, object] = {"file": file.path, "error": error.text}
    if "lock" in error.text and "Failed to get" in error.text:
        return ShimError(
            Reason.FILE_IN_USE,
            f"disk file {file.path}: in use by somebody else: {error.text}",
            hint="stop who uses it, or plug it read-only in every VM",
            fields=fields,
        )
    if error.command != "blockdev-add":
        return error
    if "No such file" in error.text:
        message = f"disk file {file.path}: {error.text}"
        return ShimError(Reason.FILE_NOT_FOUND, message, fields=fields)
    message = f"disk file {file.path}: QEMU refused it: {error.text}"
    return ShimError(Reason.QEMU_REFUSED, message, fields=fields)

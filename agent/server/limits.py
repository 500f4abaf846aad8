"""The limits of the protocol, as protocol/innkeeper/v1/README.md states them.

Each is checked where the request comes in; Sandbox.Describe tells those that a
host has to know.
"""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES: Final = 16 << 20
"""Largest request, answer and stream frame: length of the serialized protobuf message.

HTTP/2 headers and gRPC's five bytes of framing don't count.
"""

TRANSPORT_BYTES: Final = 2 * MESSAGE_BYTES
"""Where gRPC itself refuses, before we have the bytes and could say a reason."""

INPUT_FRAME_BYTES: Final = 1 << 20
"""Largest `data` of one input frame of Processes.Attach."""

OUTPUT_FRAME_BYTES: Final = 1 << 20
"""Largest `data` of one output frame of Processes.Attach."""

DEVICE_BATCH: Final = 64
"""Most devices in one Devices.Attach."""

OBJECTS: Final = 1024
"""Most devices, storages and containers, of each kind."""

CALLS_IN_FLIGHT: Final = 4096
"""Most calls at the same time, streams included."""

LONGEST_TIMEOUT: Final = 86_400.0
"""Largest timeout a request may ask for, in seconds."""

MODULES: Final = 16
"""Kernel modules that one device may ask for."""

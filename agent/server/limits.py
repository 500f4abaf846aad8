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

INTERFACE_BATCH: Final = 64
"""Most interfaces in one Network.ApplyInterfaces."""

INTERFACE_ADDRESSES: Final = 1024
"""Most addresses that a request gives one interface."""

ALTERNATIVE_NAMES: Final = 64
"""Most alternative names that a request gives one interface."""

OFFLOADS: Final = 256
"""Most offloads that a request sets on one interface."""

ROUTES: Final = 100_000
"""Most routes in one Network.ApplyRoutes."""

RULES: Final = 4096
"""Most policy rules in one Network.ApplyRoutes."""

NEXT_HOPS: Final = 256
"""Most ways of one route."""

NEIGHBORS: Final = 16_384
"""Most neighbours and forwarding entries in one Network.ApplyNeighbors, together."""

EXACT_DEVICES: Final = 1024
"""Most devices that one Network.ApplyNeighbors makes exact."""

DNS_ENTRIES: Final = 32
"""Most name servers, search domains and options, of each."""

HOSTS: Final = 4096
"""Most lines of /etc/hosts that a request gives."""

HOST_NAMES: Final = 64
"""Most names on one line of /etc/hosts."""

SYSCTLS: Final = 256
"""Most sysctls in one Network.ApplySysctls."""

FIREWALL_BYTES: Final = 8 << 20
"""Largest text of a firewall's rules."""

PRESSURE_THRESHOLDS: Final = 16
"""Most thresholds of pressure of a container, and of the guest."""

TAIL_BYTES: Final = 64 << 10
"""Most of a process's standard error that Processes.Wait gives."""

STATS_CONTAINERS: Final = OBJECTS
"""Most containers in one Containers.WatchStats."""

SANDBOX_MODULES: Final = 64
"""Most modules of one Sandbox.Create."""

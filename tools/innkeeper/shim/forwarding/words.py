"""What a forward is: who listens, and where its connections go."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from innkeeper.v1 import sockets_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One side: a unix socket's path, or host and port of TCP.

    To listen: an empty host is all addresses, port 0 a free one. `container` is for ends in
    the guest.
    """

    host: str = ""
    port: int = 0
    path: str = ""
    container: str = ""

    def __str__(self) -> str:
        where = f"{self.container}@" if self.container else ""
        if self.path:
            return f"{where}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{where}{host}:{self.port}"

    def to_address(self) -> pb.SocketAddress:
        """As an end in the guest."""
        if self.path:
            return pb.SocketAddress(unix=self.path, container_id=self.container)
        return pb.SocketAddress(tcp=str(replace(self, container="")), container_id=self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Connections to `listen` go on to `target`; `reverse`: the guest listens."""

    listen: End
    target: End
    reverse: bool = False

    def __str__(self) -> str:
        return f"{self.listen}->{self.target}{' (from the guest)' if self.reverse else ''}"

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Forward:
        return cls(
            listen=End(**record["listen"]),
            target=End(**record["target"]),
            reverse=record["reverse"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardState:
    """A forward of a running VM, with the port that was chosen."""

    listen: str
    target: str
    reverse: bool
    trouble: str = ""
    """Why it does not listen just now; empty when it does."""

    def __str__(self) -> str:
        """The host's side is on the left; the arrow is the way that connections go."""
        trouble = " (!)" if self.trouble else ""
        if self.reverse:
            return f"{self.target}<-{self.listen}{trouble}"
        return f"{self.listen}->{self.target}{trouble}"

    def to_record(self) -> dict[str, Any]:
        return asdict(self)

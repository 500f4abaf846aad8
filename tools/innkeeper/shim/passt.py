"""passt: a program that carries a guest's connections as the host's own.

It takes its client as a connected socket (`--fd`, in Debian since 12) and ends with it.
QEMU connects by a path (`-netdev stream`, QEMU 7.2), so a few words of Python accept
that one client and become passt: what listens is there before QEMU is told of it, and
if passt is not what it seems, QEMU's connection goes with it.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass

from innkeeper.shim.errors import Reason, ShimError

PROGRAM = "passt"

_ACCEPT = (
    "import os, socket, sys; "
    "client, _ = socket.socket(fileno=int(sys.argv[1])).accept(); "
    "client.set_inheritable(True); "
    "os.execv(sys.argv[2], [*sys.argv[2:], '--fd', str(client.detach())])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passt:
    """The program that the host has."""

    program: str

    def argv(self, listener: int) -> tuple[str, ...]:
        """`listener`: descriptor of the socket on which it waits for QEMU. In the
        foreground, as it is watched; ports of the host are none of the guest's."""
        python = (sys.executable, "-I", "-S", "-c", _ACCEPT, str(listener))
        options = ("--foreground", "--quiet", "--tcp-ports", "none", "--udp-ports", "none")
        return (*python, self.program, *options)


def find() -> Passt:
    """Raises NOT_INSTALLED."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise ShimError(
            Reason.NOT_INSTALLED,
            f"{PROGRAM}: not installed on this host",
            hint="install it with: apt install passt; or take QEMU's own user mode network",
            fields={"program": PROGRAM},
        )
    return Passt(program=program)

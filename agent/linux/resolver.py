"""A host's addresses as getaddrinfo(3) finds them; that takes as long as its servers do."""

from __future__ import annotations

import socket


def resolve(*, host: str) -> dict[str, list[str] | str]:
    """Addresses as text in the order of RFC 6724, or the resolver's words why there are none.

    An address of a link carries its interface: `fe80::1%eth0`.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        # Most are a gaierror; EAI_SYSTEM comes with the errno of the system call.
        return {"addresses": [], "failure": error.strerror or str(error)}
    except UnicodeError:
        return {"addresses": [], "failure": "no host can have this name"}
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return {"addresses": list(addresses), "failure": ""}

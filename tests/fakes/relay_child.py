"""A relay in a process of its own, on descriptors that it inherits.

The listener stands in for AF_VSOCK and the port for a virtio-serial port:

    python relay_child.py RUN_DIR GREETING_LIMIT LISTENER_FD PORT_FD
"""

from __future__ import annotations

import socket
import sys

from agent.relay.relay import Relay


def main() -> None:
    run_dir, limit, listener_fd, port_fd = sys.argv[1:]
    relay = Relay(run_dir=run_dir, greeting_limit=float(limit))
    relay.listen(socket.socket(fileno=int(listener_fd)), admit=lambda _address: True)
    relay.serve_port("innkeeper.agent.0", int(port_fd), gone=lambda: None)
    relay.run()


if __name__ == "__main__":
    main()

"""The relay's entry point: AF_VSOCK and virtio-serial ports to the agent's unix socket.

    python -m agent.relay [--port=1024] [--run-dir=/run/innkeeper] [--ports=innkeeper.agent.]

It runs until it is killed. PID 1 starts it before the agent and again when it
dies; connections die with it, calls do not (the agent keeps what they need).
"""

from __future__ import annotations

import sys

from agent.linux import vsock
from agent.relay.counters import say
from agent.relay.relay import Relay

_DEFAULTS = {"port": "1024", "run-dir": "/run/innkeeper", "ports": "innkeeper.agent."}


def settings(arguments: list[str]) -> dict[str, str]:
    """The options with their defaults. Raises ValueError for one that does not exist."""
    chosen = dict(_DEFAULTS)
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals or name not in chosen:
            known = " ".join(f"--{name}={value}" for name, value in _DEFAULTS.items())
            raise ValueError(
                f"{argument!r} is no option of the relay; known, with defaults: {known}"
            )
        chosen[name] = value
    if not chosen["port"].isdecimal():
        raise ValueError(f"--port={chosen['port']}: a vsock port is a decimal number")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    try:
        chosen = settings(sys.argv[1:] if arguments is None else arguments)
    except ValueError as error:
        say(str(error))
        return 2
    relay = Relay(run_dir=chosen["run-dir"])
    try:
        listener = vsock.listen(int(chosen["port"]))
    except OSError as error:
        say(f"no vsock ({error}); serving virtio-serial alone")
    else:
        relay.listen(listener, admit=vsock.is_host)
    relay.serve_ports(chosen["ports"])
    try:
        relay.run()
    finally:
        relay.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A relay in the test's own process, one turn at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.relay.loop import Loop
from agent.relay.relay import Relay
from tests.fakes.clock import FakeClock

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LONGEST_TURN = 5.0


class RelayBench:
    """The relay, its clock, and a listener in the agent's place."""

    def __init__(self, run_dir: Path) -> None:
        self.clock = FakeClock()
        self.relay = Relay(run_dir=str(run_dir), loop=Loop(self.clock), greeting_limit=10)
        self.run_dir = run_dir

    def agent_listens(self) -> socket.socket:
        agent = socket.socket(socket.AF_UNIX)
        agent.bind(str(self.run_dir / "agent.sock"))
        agent.listen()
        agent.settimeout(LONGEST_TURN)
        return agent

    def connection(self) -> socket.socket:
        """The client's end of a fresh connection, as after accept."""
        ours, theirs = socket.socketpair()
        self.relay._welcome(theirs, admitted=True, address="test")
        ours.settimeout(LONGEST_TURN)
        return ours

    def settle(self) -> None:
        """Turns until nothing is left to do: a marker event comes last."""
        for _ in range(20):
            self.relay.loop.again(lambda: None)  # so that no turn waits
            self.relay.turn()

    @property
    def counts(self) -> dict[str, int]:
        return self.relay.counters.values


@contextmanager
def relay_bench(run_dir: Path) -> Iterator[RelayBench]:
    bench = RelayBench(run_dir)
    try:
        yield bench
    finally:
        bench.settle()
        bench.relay.close()

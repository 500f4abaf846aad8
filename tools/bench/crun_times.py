"""How long crun takes by itself, by the guest's clock.

    python3 -I -S -c PROGRAM ROUNDS CONFIG

It runs in the guest, as root of a container that sees all of it, and has nothing but the
standard library. From there it goes into the guest's own mount namespace and cgroup, makes
ROUNDS containers of the specification CONFIG, one after the other, and prints a list of
pairs as JSON: seconds of create and start, seconds of an exec to its end.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

_HOME = Path("/tmp/bench-crun")
_CGROUP = Path("/sys/fs/cgroup/bench-crun")
_CRUN = ("/usr/bin/crun", "--root", f"{_HOME}/state", "--cgroup-manager=cgroupfs")
_MOST = 4096


def main(rounds: int, config: str) -> None:
    _enter_guest()
    bundle = _HOME / "bundle"
    bundle.mkdir(parents=True)
    try:
        (bundle / "config.json").write_text(config)
        with Crun(_CRUN) as crun:
            taken = [one_round(crun, bundle) for _ in range(rounds)]
    finally:
        shutil.rmtree(_HOME)
        with suppress(FileNotFoundError):
            _CGROUP.rmdir()
    print(json.dumps(taken))


def one_round(crun: Crun, bundle: Path) -> tuple[float, float]:
    began = time.monotonic()
    crun("create", "--bundle", str(bundle), "bench")
    crun("start", "bench")
    started = time.monotonic()
    crun("exec", "bench", "true")
    ended = time.monotonic()
    crun("delete", "--force", "bench")
    return started - began, ended - started


class Crun:
    """crun, with a pipe as all three standard streams: it gives them to the process's user,
    and they outlive it in the container."""

    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv
        self._said, self._says = os.pipe()
        os.set_blocking(self._said, False)

    def __enter__(self) -> Crun:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._said)
        os.close(self._says)

    def __call__(self, *words: str) -> None:
        """Raises SystemExit with what it said."""
        ends = {0: self._said, 1: self._says, 2: self._says}
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in ends.items()]
        argv = (*self._argv, *words)
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
        _, status = os.waitpid(pid, 0)
        if status:
            with suppress(BlockingIOError):
                print(os.read(self._said, _MOST).decode(errors="replace"), file=sys.stderr)
            raise SystemExit(f"crun {' '.join(words)}: wait status {status}")


def _enter_guest() -> None:
    """All are opened before the first is entered: after that /proc is another one."""
    kinds = ("cgroup", "mnt")
    for fd in [os.open(f"/proc/1/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]:
        os.setns(fd)  # type: ignore[attr-defined] # since Python 3.12, which the guest has


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

"""`python -m innkeeper.shim`: the daemon of one VM. `client.start_vm` starts it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from innkeeper.shim.daemon import Daemon
from innkeeper.shim.progress import Reporter
from innkeeper.shim.spec import VmSpec
from innkeeper.shim.statedir import Claim, StateDir, VmPaths


def main() -> int:
    """Descriptors come from the starter, who made the directory and its lock."""
    parser = argparse.ArgumentParser(prog="innkeeper.shim", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="the VM's directory")
    for name, help_text in (
        ("lock", "descriptor that holds the directory's lock"),
        ("progress", "descriptor of the pipe for progress"),
        ("leash", "descriptor that becomes readable when the starter ends"),
    ):
        parser.add_argument(f"--{name}", type=int, required=True, help=help_text)
    arguments = parser.parse_args()
    for descriptor in (arguments.lock, arguments.progress, arguments.leash):
        # Inherited by us; QEMU and its helpers must not have them too.
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its own signature
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    with Claim(VmPaths(directory=arguments.directory), arguments.lock) as claim:
        try:
            return asyncio.run(_run(claim.paths, arguments.progress, arguments.leash))
        finally:
            claim.remove()


async def _run(paths: VmPaths, progress: int, leash: int) -> int:
    spec = VmSpec.from_json(paths.spec.read_text())
    state = StateDir(root=paths.directory.parent)
    return await Daemon(spec, state, Reporter(progress), leash).run()


if __name__ == "__main__":
    sys.exit(main())

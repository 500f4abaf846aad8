"""Makes the Python code beside the .proto files, and the recorded descriptor.

    python protocol/generate.py            writes the generated code
    python protocol/generate.py --record   also records the descriptor, on
                                           purpose (see innkeeper/v1/README.md)

`generate(target)` is what the freshness test calls with a directory of its own.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("innkeeper/v1")
RECORD = ROOT / PACKAGE / "recorded.binpb"


def protos() -> list[str]:
    """The .proto files, relative to the import root, in a fixed order."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).glob("*.proto"))


def generate(target: Path) -> None:
    """Writes messages, services and their type stubs below `target`."""
    _protoc(
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out={target}",
        f"--mypy_grpc_out={target}",
    )


def record(target: Path, *, comments: bool = False) -> None:
    """Writes the whole protocol as one FileDescriptorSet to `target`."""
    sources = ("--include_source_info",) if comments else ()
    _protoc(f"--descriptor_set_out={target}", *sources)


def _protoc(*outputs: str) -> None:
    bundled = str(files("grpc_tools") / "_proto")
    arguments = ["protoc", f"-I{ROOT}", f"-I{bundled}", *outputs, *protos()]
    status = protoc.main(arguments)  # type: ignore[no-untyped-call]
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


if __name__ == "__main__":
    generate(ROOT)
    if "--record" in sys.argv[1:]:
        record(RECORD)

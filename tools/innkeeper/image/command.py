"""`innkeeper image`: the builder on the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from innkeeper.image.builder import build as build_image
from innkeeper.image.check import check_image
from innkeeper.image.checkout import find_checkout
from innkeeper.image.model import BuildOptions, Flavour, Image
from innkeeper.image.progress import Shown

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Guest images.")

_SHOWN_COMPONENTS = 14


@app.callback()
def _image() -> None:
    """Guest images: build them, look at them."""


_Flavour = Annotated[Flavour, typer.Option(help="Which of Debian's kernels.")]
_Out = Annotated[Path | None, typer.Option(help="The image is OUT/FLAVOUR.")]
_Kernel = Annotated[
    Path | None, typer.Option(help="A vmlinuz, or a kernel .deb with modules.", exists=True)
]
_Packages = Annotated[list[str] | None, typer.Option(help="One more Debian package.")]
_Modules = Annotated[list[str] | None, typer.Option(help="One more kernel module.")]
_Firmware = Annotated[list[Path] | None, typer.Option(help="A file for /lib/firmware.")]
_Overlays = Annotated[
    list[Path] | None, typer.Option(help="A directory copied over the guest's root.")
]
_Mirror = Annotated[str | None, typer.Option(help="A Debian mirror instead of the host's.")]
_UpdateLock = Annotated[
    bool, typer.Option("--update-lock", help="Take the newest packages and record them.")
]


@app.command()
def build(  # noqa: PLR0913 - one parameter per option is how typer works
    *,
    flavour: _Flavour = Flavour.CLOUD,
    out: _Out = None,
    kernel: _Kernel = None,
    package: _Packages = None,
    module: _Modules = None,
    firmware: _Firmware = None,
    overlay: _Overlays = None,
    mirror: _Mirror = None,
    update_lock: _UpdateLock = False,
) -> None:
    """Builds a guest image, or finds it already built.

    The image is the guest's own root: kernel, PID 1, agent. What containers see is
    something else; for that, use: innkeeper run --rootfs DIR|TAR

    The default image, into build/images/cloud of the checkout:

        innkeeper image build

    With a driver, its firmware and a tool:

        innkeeper image build --module e1000 --firmware ./x.bin --package pciutils

    With your own kernel and files (./files/etc/x becomes /etc/x), into ./my/cloud:

        innkeeper image build --kernel ./vendor.deb --overlay ./files --out ./my

    And a VM from that one:

        innkeeper run --image ./my/cloud -- uname -r
    """
    options = BuildOptions(
        flavour=flavour,
        out=out,
        kernel=kernel,
        packages=tuple(package or ()),
        modules=tuple(module or ()),
        firmware=tuple(firmware or ()),
        overlays=tuple(overlay or ()),
        mirror=mirror,
        update_lock=update_lock,
    )
    _build_and_show(options)


@app.command()
def check(
    *,
    flavour: _Flavour = Flavour.CLOUD,
    out: _Out = None,
) -> None:
    """Opens a built image and verifies what must and must not be in it.

    The default image:

        innkeeper image check

    The one that was made elsewhere:

        innkeeper image check --flavour generic --out ./my
    """
    console = Console()
    directory = (out or find_checkout().images) / flavour
    check_image(Image.load(directory))
    console.print(f"{directory}: as it must be", highlight=False)


def _build_and_show(options: BuildOptions) -> None:
    console = Console()
    start = time.monotonic()
    with Shown(console) as progress:
        image = build_image(options, progress)
    _show(console, image, time.monotonic() - start)


def _show(console: Console, image: Image, took: float) -> None:
    sizes: dict[str, int] = json.loads((image.directory / "sizes.json").read_text())
    table = Table("component", "MB", box=None, header_style="dim")
    table.columns[1].justify = "right"
    shown = list(sizes.items())[:_SHOWN_COMPONENTS]
    for name, size in shown:
        table.add_row(name, f"{size / 1e6:.1f}")
    rest = sum(sizes.values()) - sum(size for _, size in shown)
    table.add_row(f"{len(sizes) - len(shown)} others", f"{rest / 1e6:.1f}")
    console.print(table)
    kernel = image.kernel_path.stat().st_size
    initrd = image.initrd_path.stat().st_size
    console.print(
        f"{image.directory.parent / image.flavour}: kernel {image.kernel_version}, "
        f"root {image.size / 1e6:.1f} MB, vmlinuz {kernel / 1e6:.1f} MB, "
        f"initrd {initrd / 1e6:.1f} MB, took {took:.1f} s",
        highlight=False,
        soft_wrap=True,
    )

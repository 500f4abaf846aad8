"""Makes an image, from its options to a directory with kernel, initrd and root file system."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innkeeper.image.archive import Archive
from innkeeper.image.base import (
    Base,
    BaseInputs,
    KernelInputs,
    KernelLayer,
    make_base,
    make_kernel,
)
from innkeeper.image.check import check_image
from innkeeper.image.checkout import Checkout, find_checkout
from innkeeper.image.cpio import write_cpio
from innkeeper.image.debs import DebCache
from innkeeper.image.filesystem import make_ext4
from innkeeper.image.initrd import initrd_tree
from innkeeper.image.layers import (
    cached,
    exclusive,
    keep_newest,
    key_of,
    key_of_sources,
    key_of_tree,
    remove_half_made,
)
from innkeeper.image.lock import Lock, Role
from innkeeper.image.manifest import Part, debian_part, spdx, wheel_part
from innkeeper.image.model import BuildOptions, Image, ImageError
from innkeeper.image.own import Own, assemble, read_own
from innkeeper.image.recipe import Recipe
from innkeeper.image.resolution import Request, Resolver
from innkeeper.image.wheels import parse_wheels_lock

if TYPE_CHECKING:
    from pathlib import Path

    from innkeeper.image.progress import Progress
    from innkeeper.image.toolbox import Toolbox
    from innkeeper.image.tree import Tree
    from innkeeper.image.wheels import Wheel

# cgroup v1 would take controllers away from the v2 tree that containers live in.
CMDLINE = "cgroup_no_v1=all"

_KEPT_IMAGES = 4
_KEPT_LAYERS = 6
_MOST_STEPS = 9


def build(options: BuildOptions, progress: Progress) -> Image:
    """Builds what `options` ask for, or finds it already built.

    The image is OUT/FLAVOUR, a link to a directory that is complete or not
    there. Raises `ImageError` and `CommandError`. Needs no root where
    mmdebstrap needs none.
    """
    checkout = find_checkout()
    out = options.out or checkout.images
    cache = options.cache or checkout.cache
    with exclusive(cache, progress), exclusive(out, progress):
        for parent in (cache / "base", cache / "kernel", out):
            remove_half_made(parent)
        progress.plan(_MOST_STEPS)
        work = _Work.prepare(options, checkout, cache, progress)
        directory = out / f".{options.flavour}-{work.inputs_hash[:16]}"
        cached(directory, work.make)
        _point(out / options.flavour, directory)
        _clear(cache, out, options)
    image = Image.load(out / options.flavour)
    target = image.flavour.size_target
    if target is not None and image.size > target:
        progress.warn(f"root is {image.size / 1e6:.1f} MB, more than {target / 1e6:.0f} MB")
    return image


def debian_toolbox(options: BuildOptions, progress: Progress) -> Toolbox:
    """Debian 13's own programs, those of the build root of such an image.

    It is made where it is not there yet. Raises as `build` does.
    """
    checkout = find_checkout()
    cache = options.cache or checkout.cache
    with exclusive(cache, progress):
        return _Work.prepare(options, checkout, cache, progress).base.toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """All inputs of one image, read and in the cache."""

    options: BuildOptions
    checkout: Checkout
    progress: Progress
    lock: Lock
    wheels: tuple[Wheel, ...]
    base: Base
    kernel: KernelLayer
    own: Own

    @classmethod
    def prepare(
        cls, options: BuildOptions, checkout: Checkout, cache: Path, progress: Progress
    ) -> _Work:
        recipe = Recipe.read(checkout.guest_image, options.flavour).also(options.packages)
        builder = key_of_sources(checkout.builder)
        debs = DebCache(directory=cache / "debs")
        wheels = parse_wheels_lock(checkout.wheels_lock.read_text(), source="wheels.lock")
        lock = _lock(options, recipe, checkout, debs, progress)
        inputs = BaseInputs(lock=lock, recipe=recipe, wheels=wheels, builder=builder)
        base = make_base(inputs, debs, cache, progress)
        kernel_inputs = KernelInputs(
            source=options.kernel or debs.path(lock.of(Role.KERNEL)[0]),
            modules=(*recipe.modules, *options.modules),
            initrd_modules=recipe.initrd_modules,
            strict=options.kernel is None,
            builder=builder,
        )
        kernel = make_kernel(kernel_inputs, base.toolbox, cache, progress)
        return cls(
            options=options,
            checkout=checkout,
            progress=progress,
            lock=lock,
            wheels=wheels,
            base=base,
            kernel=kernel,
            own=read_own(checkout, recipe, options),
        )

    @property
    def inputs_hash(self) -> str:
        return key_of(
            base=self.base.directory.name,
            kernel=self.kernel.directory.name,
            own=[key_of_tree(tree) for tree in self.own.trees],
            initrd=key_of_tree(self.own.initrd),
            flavour=self.options.flavour,
            cmdline=CMDLINE,
        )

    def make(self, place: Path) -> None:
        """Fills a directory that becomes the image."""
        toolbox = self.base.toolbox
        with self.progress.step("agent and overlays"):
            tree = assemble(self.base, self.kernel, self.own)
        with self.progress.step("initrd"):
            shutil.copyfile(self.kernel.vmlinuz, place / "vmlinuz")
            (place / "initrd.img").write_bytes(self._initrd(tree))
        with self.progress.step("root file system (mke2fs)"):
            make_ext4(tree, place / "root.ext4", toolbox)
        name = f"innkeeper-{self.options.flavour}"
        manifest = spdx(self._parts(tree), name=name, inputs_hash=self.inputs_hash)
        (place / "manifest.spdx.json").write_text(manifest)
        (place / "packages.lock").write_text(self.lock.format())
        (place / "sizes.json").write_text(json.dumps(tree.sizes(), indent=1) + "\n")
        image = self._record(place)
        image.save()
        with self.progress.step("check"):
            check_image(image, tree)

    def _record(self, place: Path) -> Image:
        return Image(
            directory=place,
            flavour=self.options.flavour,
            kernel="vmlinuz",
            initrd="initrd.img",
            root="root.ext4",
            cmdline=CMDLINE,
            inputs_hash=self.inputs_hash,
            kernel_version=self.kernel.version,
            size=(place / "root.ext4").stat().st_size,
        )

    def _initrd(self, tree: Tree) -> bytes:
        busybox = tree.nodes["usr/bin/busybox"].content
        applets = self.base.toolbox.busybox("--list").split()
        modules = self.kernel.initrd_files()
        return write_cpio(initrd_tree(self.own.initrd, busybox, applets, modules))

    def _parts(self, tree: Tree) -> list[Part]:
        sizes = tree.sizes()
        parts = [debian_part(entry, sizes.pop(entry.name, 0)) for entry in self.lock.of(Role.IMAGE)]
        parts += [
            debian_part(entry, self.kernel.vmlinuz.stat().st_size)
            for entry in self.lock.of(Role.KERNEL)
        ]
        parts += [wheel_part(wheel, sizes.pop(wheel.component, 0)) for wheel in self.wheels]
        others = sorted(sizes.items())
        return parts + [Part(name=name, version="0", size=size) for name, size in others]


def _lock(
    options: BuildOptions,
    recipe: Recipe,
    checkout: Checkout,
    debs: DebCache,
    progress: Progress,
) -> Lock:
    request = Request(
        packages=recipe.packages,
        tools=recipe.tools,
        left_out=recipe.left_out,
        kernel=None if options.kernel else options.flavour.kernel_package,
    )
    resolver = Resolver(
        cache=debs,
        resolved=debs.directory.parent / "locks",
        open_archive=lambda: _open_archive(debs.directory.parent / "apt", options, progress),
        progress=progress,
    )
    path = checkout.packages_lock(options.flavour)
    recorded = Lock.parse(path.read_text(), source=str(path)) if path.exists() else None
    with progress.step("packages"):
        if not options.update_lock:
            return resolver.from_lock(request, recorded)
        if options.packages or options.kernel:
            raise ImageError("--update-lock goes with the recipe alone, without other packages")
        lock = resolver.anew(request, recorded)
        path.write_text(lock.format())
        return lock


def _open_archive(state: Path, options: BuildOptions, progress: Progress) -> Archive:
    progress.trace("apt-get update")
    archive = Archive.of_host(state, mirror=options.mirror)
    archive.update()
    return archive


def _point(link: Path, directory: Path) -> None:
    """Makes `link` point to `directory`, in one step for whoever looks meanwhile."""
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(directory.name)
    fresh.rename(link)


def _clear(cache: Path, out: Path, options: BuildOptions) -> None:
    keep_newest(out, f".{options.flavour}-" + "[0-9a-f]" * 16, _KEPT_IMAGES)
    keep_newest(cache / "base", "[0-9a-f]*", _KEPT_LAYERS)
    keep_newest(cache / "kernel", "[0-9a-f]*", _KEPT_LAYERS)

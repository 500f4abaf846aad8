"""Builds guest images: Debian 13, our agent, a kernel, an initrd. See guest-image/README.md.

`builder.build` is not named here on purpose: who only reads an image
(`model.Image`) needs neither the builder nor rich.
"""

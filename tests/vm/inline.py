"""Python in a probe: the guest's own interpreter, as one line of shell."""

from __future__ import annotations


def python(program: str, *words: str) -> str:
    """A command for a container that has the guest at /guest; `words` may be shell's own."""
    text = program.encode().hex()
    arguments = " ".join(words)
    return f'chroot /guest python3 -IS -c "$(echo {text} | xxd -r -p)" {arguments}'

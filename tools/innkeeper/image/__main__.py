"""`python -m innkeeper.image` is `innkeeper image`."""

from __future__ import annotations

from innkeeper.image.command import app

if __name__ == "__main__":
    app()

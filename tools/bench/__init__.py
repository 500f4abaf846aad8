"""Figures of a running Innkeeper: `python -m bench`. It measures, it asserts nothing."""

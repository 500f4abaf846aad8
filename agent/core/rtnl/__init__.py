"""The words of `agent.core.network` in the kernel's messages, and back.

Builders are pure: words in, a `Change` out. Readers ask a `Netlink` and give words. The
messages are pyroute2's (`messages.py` is its only door); nothing else of it is used, so no
socket, thread or cache of its own comes along.
"""

"""Byte streams between the host and sockets of the guest (innkeeper.v1.Sockets)."""

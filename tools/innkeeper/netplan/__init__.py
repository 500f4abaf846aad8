"""A guest's network in netplan's words: a YAML file becomes requests to the guest.

What the words mean is netplan's to say (its "YAML configuration" reference): netplan's
version 2, less what the guest has nothing for. `read` is pure: a text goes in, and comes
out complete and right, or as one error that names a line.

    tree.py      YAML as a tree that knows its lines
    fields.py    one mapping of it, key by key; no key is left over
    words.py     what is said, as data
    ways.py      routes and rules
    devices.py   interfaces
    requests.py  the protocol's messages
"""

from __future__ import annotations

from innkeeper.netplan.devices import read
from innkeeper.netplan.requests import Requests, requests_of
from innkeeper.netplan.tree import NetplanError

__all__ = ["NetplanError", "Requests", "read", "requests_of"]

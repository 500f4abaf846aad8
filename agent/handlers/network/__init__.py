"""The guest's network: interfaces, names, routes, neighbours, resolver, firewall.

`manager.py` is the way in and light; everything that speaks netlink is loaded when it is
first needed (`parts.py`).
"""

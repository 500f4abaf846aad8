"""Port forwards: byte streams between this host and a guest, over `innkeeper.v1.Sockets`.

words.py says what a forward is, local.py has this host's sockets, joining.py carries one
connection, outward.py and inward.py take connections on this host and in the guest, and
forwards.py runs any number of both.
"""

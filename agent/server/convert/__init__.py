"""Protobuf <-> the agent's own values: the border, one file per subject.

Requests are checked as they are read: ids (BAD_ID), addresses (BAD_ADDRESS),
fields (BAD_FIELD, naming the field). What the protocol has and the agent has not
is NOT_BUILT_YET, never silently less.
"""

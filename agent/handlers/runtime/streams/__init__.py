"""A process's streams: kept outside the agent, read and written by offset."""

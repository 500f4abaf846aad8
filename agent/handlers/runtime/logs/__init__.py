"""Logs of output: files that rotate, and their readers."""

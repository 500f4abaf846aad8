"""The command `innkeeper`: one file per group of commands."""

"""The OCI specification: checked word by word, completed, and what this guest can do of it."""

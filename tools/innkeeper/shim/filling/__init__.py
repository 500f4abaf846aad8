"""Disks made of files: a directory, a tar or an OCI layout becomes one tree, the tree a tar
stream with owners and all, and that a file system, without mounting and without root."""

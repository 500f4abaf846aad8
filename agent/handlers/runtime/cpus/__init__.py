"""CPUs that a container has for itself."""

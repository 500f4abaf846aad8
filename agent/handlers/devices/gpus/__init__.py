"""What GPUs need beyond the kernel's own nodes, by vendor; `gpu.py` puts it together."""

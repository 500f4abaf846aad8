"""What containers use, what the kernel tells of them, and who is in them."""

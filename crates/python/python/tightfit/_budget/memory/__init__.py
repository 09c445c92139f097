"""Device and host memory: what the allocator may take, what it reserves, and copies between device and host."""

"""Device and host memory: the allocator's limit, and copies between device and host."""

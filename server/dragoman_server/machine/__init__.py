"""The machine or container: CPU quota, memory limits and the allocator."""

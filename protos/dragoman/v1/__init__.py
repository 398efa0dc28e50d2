"""The generated messages and stubs of dragoman/v1/generation.proto (`make protos` renews them)."""

"""The generated messages and stubs of dragoman/inference/open_inference.proto (`make protos` renews them)."""

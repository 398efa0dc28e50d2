"""The generated messages and stubs of the .proto files in dragoman/v1 (`make protos` regenerates them)."""

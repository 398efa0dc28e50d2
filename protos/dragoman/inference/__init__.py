"""The generated messages and stubs of dragoman/inference/open_inference.proto (`make protos` regenerates them)."""

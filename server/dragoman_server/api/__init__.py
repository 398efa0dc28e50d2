"""The gRPC services: generation, administration, health, reflection and the Open Inference Protocol."""

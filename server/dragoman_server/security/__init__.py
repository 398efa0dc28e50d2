"""TLS certificates of the gRPC port and API keys, read from files that may change while the server runs."""

"""Who may come in: certificates of the gRPC port and the keys of callers, read from files that may change."""

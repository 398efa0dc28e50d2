"""The gRPC face: requests are checked and turned into token ids here, and token ids into answers."""

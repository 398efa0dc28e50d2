"""Bundle -> gRPC service: scheduler, engine, runtime, metrics. Never imports torch."""

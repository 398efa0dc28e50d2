"""Logs and traces: a line per call, a summary every few seconds, OpenTelemetry spans."""

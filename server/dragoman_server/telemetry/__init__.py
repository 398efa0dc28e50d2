"""Logs and traces: one line for each call, a summary every few seconds, OpenTelemetry spans."""

"""Scheduler and engine: many requests, one decode step after the other."""

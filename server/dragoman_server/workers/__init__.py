"""Worker processes: each computes on its own device and is restarted if it dies or hangs.

Engines, with their queues and searches, stay in the server's process. A worker holds the sessions and cache pools. Each
engine thread has its own socket to a worker, through which it calls the worker's runtime: encode these sources, step
those rows.
"""

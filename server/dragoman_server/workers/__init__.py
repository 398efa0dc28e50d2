"""Worker processes: each computes on a device of its own, and is started anew where it dies or hangs.

Engines, with their queue and their searches, stay in the server's process. A worker holds graphs and caches, and does
what one engine thread asks of it, through a socket of their own: encode these, step those.
"""

"""The bundle: the only thing that passes from export to server."""

"""The bundle format, the only interface between export and server."""

"""The server's options: definition, sources and display."""

from dragoman_server.config.options import ServerConfig

__all__ = ["ServerConfig"]

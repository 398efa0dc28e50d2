"""The server's configuration: its options, where their values come from, and how they are shown."""

from dragoman_server.config.options import ServerConfig

__all__ = ["ServerConfig"]

"""The `dragoman` command: the client for people and shell scripts."""

from dragoman.cli.app import main

__all__ = ["main"]

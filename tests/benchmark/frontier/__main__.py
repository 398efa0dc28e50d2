"""Runs `python -m tests.benchmark.frontier`."""

import typer

from tests.benchmark.frontier.cli import main

if __name__ == "__main__":
    typer.run(main)

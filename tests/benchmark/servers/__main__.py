"""Runs the benchmark against other servers: `python -m tests.benchmark.servers --help`."""

if __name__ == "__main__":  # worker processes import this module under another name, and must stay light
    import typer

    from tests.benchmark.servers.cli import main

    typer.run(main)

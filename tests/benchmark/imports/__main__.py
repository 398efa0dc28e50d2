"""Runs the benchmark: `python -m tests.benchmark.imports --help`."""

if __name__ == "__main__":  # worker processes import this module under another name, and must stay light
    import typer

    from tests.benchmark.imports.cli import main

    typer.run(main)

"""Measures how cost grows: `python -m tests.benchmark.growth --help`."""

if __name__ == "__main__":
    import typer

    from tests.benchmark.growth.cli import main

    typer.run(main)

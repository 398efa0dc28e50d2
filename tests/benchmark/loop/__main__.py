"""Measures what stands around the graphs: `python -m tests.benchmark.loop --help`."""

if __name__ == "__main__":
    import typer

    from tests.benchmark.loop.cli import main

    typer.run(main)

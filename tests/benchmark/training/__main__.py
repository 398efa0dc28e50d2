"""Measures training: `python -m tests.benchmark.training --help`."""

if __name__ == "__main__":  # worker processes import this module under another name, and must stay light
    from dragoman_training.startup import configure_process

    configure_process()

    import typer

    from tests.benchmark.training.cli import main

    typer.run(main)

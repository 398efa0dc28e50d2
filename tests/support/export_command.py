"""Runs `dragoman-export` in this process."""

from pathlib import Path

from typer.testing import CliRunner

from dragoman_export.cli import app


def run_export(*arguments: str | Path, status: int = 0) -> str:
    """Runs the command and returns what it prints; it must end with this exit status."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def refusal(*arguments: str | Path) -> str:
    """Runs the command, which must fail with one sentence, and returns that."""
    output = run_export(*arguments, status=1)
    error = output[output.index("error: ") :]
    assert error.count("\n") == 1
    return error

"""Tests the version bounds in pyproject.toml with the oldest and the newest releases that they allow.

Builds the wheel and installs it with its extra `server` into fresh environments, from binary packages:

- `floors`: the lowest release of each requirement,
- `protobuf 6`: the newest releases that are compatible with protobuf 6, which many programs still require,
- `newest`: the newest releases.

In each environment the shipped model is served and used through every feature of the API (`tests.platforms.asking`).
All answers must equal those of the environment that runs this, byte by byte. Prints a line per environment; the exit
status is 1 if an answer differs or an environment can't be installed.

    python -m tests.platforms.bounds                  takes some minutes, and downloads what pip has not cached
    python -m tests.platforms.bounds --folder DIR     keeps the environments, which a later run recreates
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRA = "server"
WORDS = 300
SECONDS = 600  # timeout of a command
Answers = dict[str, list[list[str]]]


@dataclass(frozen=True)
class Environment:
    """A set of releases to install.

    Attributes:
        requirements: Requirements for pip in addition to the wheel's.
    """

    name: str
    requirements: list[str]


class FailedError(Exception):
    """A program failed; the message is the end of its error output."""


def run(*command: str | Path) -> str:
    """Runs a command and returns its standard output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise FailedError(done.stderr.strip()[-1500:] or f"exit status {done.returncode}")
    return done.stdout


def requirements(extra: str) -> Iterator[Requirement]:
    """Yields the requirements of the package and of an extra, nested extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def of(texts: list[str]) -> Iterator[Requirement]:
        for requirement in map(Requirement, texts):
            if requirement.name == project["name"]:
                for nested in requirement.extras:
                    yield from of(project["optional-dependencies"][nested])
            else:
                yield requirement

    yield from of(project["dependencies"] + project["optional-dependencies"][extra])


def floors(extra: str) -> list[str]:
    """Returns the requirements, pinned to their lower bounds."""
    pinned = []
    for requirement in requirements(extra):
        lower = [bound.version for bound in requirement.specifier if bound.operator in (">=", "==", "~=")]
        if len(lower) != 1:
            raise FailedError(f"pyproject.toml gives {requirement.name} {len(lower)} lower bounds; one is expected")
        pinned.append(f"{requirement.name}=={lower[0]}")
    return pinned


def words() -> list[str]:
    """Returns words of the documentation, spread over the alphabet."""
    texts = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    vocabulary = sorted({word for text in texts for word in re.findall(r"\b[a-z]{3,}\b", text)})
    return [vocabulary[i * len(vocabulary) // WORDS] for i in range(WORDS)]


def build_wheel(folder: Path) -> Path:
    """The project's wheel, built here."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT)
    (wheel,) = folder.glob("dragoman-*.whl")
    return wheel


def answers(python: Path) -> Answers:
    """Returns the answers of the shipped model, served and requested by this Python."""
    found: Answers = json.loads(run(python, "-I", Path(__file__).with_name("asking.py"), *words()))
    return found


def make(environment: Environment, wheel: Path, folder: Path) -> Path:
    """Makes an environment and returns the path of its Python."""
    venv.create(folder, clear=True, with_pip=True)
    python = folder / "bin" / "python"
    packages = [f"{wheel}[{EXTRA}]", *environment.requirements]
    run(python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *packages)
    run(python, "-m", "pip", "check")
    return python


def releases(folder: Path) -> str:
    """Returns the installed releases of the direct requirements."""
    names = {canonicalize_name(requirement.name) for requirement in requirements(EXTRA)}
    installed = {
        canonicalize_name(d.name): d.version
        for d in distributions(path=[*map(str, folder.glob("lib/*/site-packages"))])
    }
    return ", ".join(f"{name} {installed[name]}" for name in sorted(names & installed.keys()))


def differences(actual: Answers, expected: Answers) -> list[str]:
    """Describes every answer that differs."""
    return [
        f"{kind}, number {i + 1}: {answer}, not {other}"
        for kind in expected
        for i, (answer, other) in enumerate(zip_longest(actual.get(kind, []), expected[kind]))
        if answer != other
    ]


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder in which to make and keep the environments.")] = None,
) -> None:
    """Installs the oldest and the newest allowed releases and compares their answers."""
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        expected = answers(Path(sys.executable))
        for environment in (
            Environment("floors", floors(EXTRA)),
            Environment("protobuf 6", ["protobuf<7"]),
            Environment("newest", []),
        ):
            path = (folder or Path(scratch)) / environment.name.replace(" ", "-")
            try:
                others = differences(answers(make(environment, wheel, path)), expected)
                summary = f"{len(others)} answers differ; {others[0]}" if others else "the same answers"
            except (FailedError, subprocess.TimeoutExpired) as error:
                others, summary = [str(error)], f"failed: {error}"
            failed |= bool(others)
            print(f"{environment.name}: {summary} ({releases(path)})", flush=True)
    raise typer.Exit(code=failed)


if __name__ == "__main__":
    typer.run(main)

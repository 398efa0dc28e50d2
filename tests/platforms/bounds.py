"""What the bounds in pyproject.toml are worth: the oldest and the newest that they allow, installed and asked.

Builds the wheel and installs it with its extra `server` into environments of their own, from packages that are built:

- `floors`: of each requirement the lowest release that its bound names,
- `protobuf 6`: of each the newest that goes with protobuf 6, which many programs still hold on to,
- `newest`: of each the newest.

In each of them the model that ships is served and asked for the same words in every way the API has
(`tests.platforms.asking`). All answers have to be, byte by byte, those of the environment that runs this. It says a
line for each environment; the exit status is 1 where an answer differs, or an environment does not come about.

    python -m tests.platforms.bounds                  takes some minutes, and downloads what pip does not keep
    python -m tests.platforms.bounds --folder DIR     keeps the environments, which a later run makes anew
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
SECONDS = 600  # for pip, or for all questions together
Answers = dict[str, list[list[str]]]


@dataclass(frozen=True)
class Environment:
    """Releases to install.

    Attributes:
        name: in words.
        requirements: for pip, beside those of the wheel.
    """

    name: str
    requirements: list[str]


class FailedError(Exception):
    """A program failed; the message is the end of what it said."""


def run(*command: str | Path) -> str:
    """Standard output of a command."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise FailedError(done.stderr.strip()[-1500:] or f"exit status {done.returncode}")
    return done.stdout


def requirements(extra: str) -> Iterator[Requirement]:
    """What pyproject.toml wants for an extra, those it is made of included, and for every installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def of(texts: list[str]) -> Iterator[Requirement]:
        for requirement in map(Requirement, texts):
            if requirement.name == project["name"]:
                for each in requirement.extras:
                    yield from of(project["optional-dependencies"][each])
            else:
                yield requirement

    yield from of(project["dependencies"] + project["optional-dependencies"][extra])


def floors(extra: str) -> list[str]:
    """Each requirement held to the release that its lower bound names."""
    held = []
    for requirement in requirements(extra):
        lower = [bound.version for bound in requirement.specifier if bound.operator in (">=", "==", "~=")]
        if len(lower) != 1:
            raise FailedError(f"pyproject.toml gives {requirement.name} {len(lower)} lower bounds; one is expected")
        held.append(f"{requirement.name}=={lower[0]}")
    return held


def words() -> list[str]:
    """Words of our own documentation, from all of the alphabet."""
    texts = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    found = sorted({word for text in texts for word in re.findall(r"\b[a-z]{3,}\b", text)})
    return [found[i * len(found) // WORDS] for i in range(WORDS)]


def build_wheel(folder: Path) -> Path:
    """The project's wheel, built here."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT)
    (wheel,) = folder.glob("dragoman-*.whl")
    return wheel


def answers(python: Path) -> Answers:
    """What the model that ships answers, served and asked by this Python."""
    found: Answers = json.loads(run(python, "-I", Path(__file__).with_name("asking.py"), *words()))
    return found


def make(environment: Environment, wheel: Path, folder: Path) -> Path:
    """Makes an environment, and gives the path of its Python."""
    venv.create(folder, clear=True, with_pip=True)
    python = folder / "bin" / "python"
    wanted = [f"{wheel}[{EXTRA}]", *environment.requirements]
    run(python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *wanted)
    run(python, "-m", "pip", "check")
    return python


def releases(folder: Path) -> str:
    """The releases there of what pyproject.toml names."""
    names = {canonicalize_name(requirement.name) for requirement in requirements(EXTRA)}
    there = {
        canonicalize_name(d.name): d.version
        for d in distributions(path=[*map(str, folder.glob("lib/*/site-packages"))])
    }
    return ", ".join(f"{name} {there[name]}" for name in sorted(names & there.keys()))


def differences(found: Answers, expected: Answers) -> list[str]:
    """A sentence for each answer that is another."""
    return [
        f"{kind}, number {i + 1}: {one}, not {other}"
        for kind in expected
        for i, (one, other) in enumerate(zip_longest(found.get(kind, []), expected[kind]))
        if one != other
    ]


def main(
    folder: Annotated[Path | None, typer.Option(help="Where to make the environments, and keep them.")] = None,
) -> None:
    """Installs the oldest and the newest that the bounds allow, and compares what is answered there."""
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        expected = answers(Path(sys.executable))
        for environment in (
            Environment("floors", floors(EXTRA)),
            Environment("protobuf 6", ["protobuf<7"]),
            Environment("newest", []),
        ):
            place = (folder or Path(scratch)) / environment.name.replace(" ", "-")
            try:
                others = differences(answers(make(environment, wheel, place)), expected)
                told = f"{len(others)} answers differ; {others[0]}" if others else "the same answers"
            except (FailedError, subprocess.TimeoutExpired) as error:
                others, told = [str(error)], f"failed: {error}"
            failed |= bool(others)
            print(f"{environment.name}: {told} ({releases(place)})", flush=True)
    raise typer.Exit(code=failed)


if __name__ == "__main__":
    typer.run(main)

"""Writes the dashboards' JSON and the recording rules; `--check` only reports whether they are up to date."""

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.monitoring.build.engine import engine
from deploy.monitoring.build.fleet import fleet
from deploy.monitoring.build.overview import overview
from deploy.monitoring.build.recording import recording

# Part of the chart, so that a copy of the chart is complete.
FILES = Path(__file__).parents[2] / "helm" / "dragoman" / "files"
DASHBOARDS, RECORDING = FILES / "dashboards", FILES / "rules" / "recording.yaml"


def rendered() -> dict[Path, str]:
    """Returns the expected content of each file."""
    boards: list[Dashboard] = [overview(), engine(), fleet()]
    texts = {DASHBOARDS / f"{board.uid}.json": json.dumps(board, cls=JSONEncoder, indent=2) for board in boards}
    return {path: f"{text}\n" for path, text in texts.items()} | {RECORDING: recording()}


def outdated() -> list[Path]:
    """Returns files that are missing or stale, and dashboards without code."""
    expected = rendered()
    stale = {path for path, text in expected.items() if not path.exists() or path.read_text() != text}
    return sorted(stale | (set(DASHBOARDS.iterdir()) - expected.keys()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    if not parser.parse_args().check:
        for path, text in rendered().items():
            path.write_text(text)
    elif stale := outdated():
        names = ", ".join(path.name for path in stale)
        sys.exit(f"out of date, run `make dashboards`: {names}")


if __name__ == "__main__":
    main()

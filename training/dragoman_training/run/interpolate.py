"""Averages the weights of a fine-tuned run with those that it started from.

    python -m dragoman_training.run.interpolate runs/tuned runs/before runs/between --share 0.6

Fine-tuning gains what its data teach and loses some of what others taught. The weights in between often have most of
both ("Robust fine-tuning of zero-shot models", Wortsman et al. 2022). `dragoman-export` takes the result like any run.
"""

import argparse
import json
import sys
from pathlib import Path

from dragoman_training.errors import TrainingError
from dragoman_training.files import TOKENIZER_FILES
from dragoman_training.run.derived import check_absent, write_derived_run
from dragoman_training.run.load import Run, load_run
from dragoman_training.run.start import weight_differences


def interpolate(tuned: Path, before: Path, out: Path, share: float) -> None:
    """Writes a finished run whose weights are share * tuned + (1 - share) * before.

    Recipe, tokenizers and dev set are those of `tuned`; report.json names the two runs and the share.

    Raises:
        TrainingError: The share is not between 0 and 1, `out` exists, a run cannot be loaded, or the two differ in
            shape or tokenizers.
    """
    if not 0 <= share <= 1:
        raise TrainingError(f"--share: expected a number from 0 to 1, got {share:g}")
    check_absent(out)
    one, other = load_run(tuned), load_run(before)
    _check(one, other)
    theirs = other.model.state_dict()
    weights = {
        name: (share * value.double() + (1 - share) * theirs[name].double()).to(value.dtype)
        for name, value in one.model.state_dict().items()
    }
    report = {"interpolated": {"tuned": tuned.name, "before": before.name, "share": share}}
    write_derived_run(out, one, one.recipe, weights, report)


def _check(one: Run, other: Run) -> None:
    if differences := weight_differences(one.recipe, other.recipe):
        described = (f"{key} is {json.dumps(a)} and {json.dumps(b)}" for key, a, b in differences)
        raise TrainingError(f"{one.path} and {other.path} do not fit together: {', '.join(described)}")
    for name in TOKENIZER_FILES:
        contents = [path.read_bytes() if path.exists() else None for path in (one.path / name, other.path / name)]
        if contents[0] != contents[1]:
            raise TrainingError(f"{one.path} and {other.path} differ in {name}, so their weights do not fit together")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_training.run.interpolate", description=__doc__.splitlines()[0]
    )
    parser.add_argument("tuned", type=Path, help="run that was fine-tuned")
    parser.add_argument("before", type=Path, help="run that it started from")
    parser.add_argument("out", type=Path, help="run to write")
    parser.add_argument("--share", type=float, default=0.5, help="weight of the fine-tuned run, 0 to 1 (default: 0.5)")
    options = parser.parse_args(arguments)
    try:
        interpolate(options.tuned, options.before, options.out, options.share)
    except (TrainingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

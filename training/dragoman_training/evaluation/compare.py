"""Whether one system is better than another: `python -m dragoman_training.evaluation.compare REFERENCES A B`.

BLEU, chrF and TER of two sets of answers, each with its 95 % interval, and the probability that B is only better or
worse than A by chance: paired bootstrap resampling (Koehn 2004), computed by sacrebleu.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from dragoman_training.data.pairs import read_pairs_file
from dragoman_training.errors import DataError, TrainingError
from dragoman_training.files import DATA_FILE, DEV_ANSWERS_FILE, DEV_FILE, TEST_ANSWERS_FILE


@dataclass(frozen=True)
class Compared:
    """One metric of both systems.

    Attributes:
        values: Scores of A and B.
        half_widths: Half widths of their 95 % intervals.
        p_value: Probability of such a difference between equal systems.
        signature: Signature of sacrebleu.
    """

    values: tuple[float, float]
    half_widths: tuple[float, float]
    p_value: float
    signature: str


def compare(a: Sequence[str], b: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Compared]:
    """Compares two systems on the same sources.

    Args:
        a: Answers of one system.
        b: Answers of the other one.
        references: References of each source, one or more.

    Returns:
        The comparison by the name of the metric: BLEU, chrF2, TER.
    """
    count = max(map(len, references))
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(count)]
    metrics: dict[str, Metric] = {"BLEU": BLEU(), "chrF": CHRF(), "TER": TER()}
    test = PairedTest([("A", a), ("B", b)], metrics, streams, test_type="bs")  # type: ignore[arg-type]
    signatures, found = test()
    compared: dict[str, Compared] = {}
    for name, signature in signatures.items():
        first, second = found[name]
        assert not isinstance(first, str)
        assert not isinstance(second, str)
        compared[name] = Compared(
            (first.score, second.score),
            (first.ci or 0.0, second.ci or 0.0),
            # sacrebleu finds equal systems significantly different.
            1.0 if first.score == second.score or second.p_value is None else float(second.p_value),
            str(signature),
        )
    return compared


def read_systems(references: Path, a: Path, b: Path) -> tuple[list[str], list[str], list[list[str]]]:
    """Reads two files of answers and their references.

    A line is a text, or source<TAB>text as in RUN/test_answers.tsv. If all lines of all files have a source, answers
    and references belong together by it, and a source may have several references; otherwise by their line.

    Returns:
        The answers of A and of B, and the references of each.

    Raises:
        DataError: A file cannot be read, or they do not fit together.
    """
    files = {path: read_answers(path) for path in (references, a, b)}
    expected, *systems = (files[path] for path in (references, a, b))
    if all(source is not None for lines in files.values() for source, _ in lines):
        texts: dict[str | None, list[str]] = {}
        for source, text in expected:
            texts.setdefault(source, []).append(text)
        answers = [dict(lines) for lines in systems]
        for path, other in ((a, answers[1]), (b, answers[0])):
            for source, _ in files[path]:
                if source not in texts or source not in other:
                    where = references if source not in texts else (b if path == a else a)
                    raise DataError(f"{where}: lacks the source {source!r}, which {path} answers")
        order = list(answers[0])
        return [answers[0][key] for key in order], [answers[1][key] for key in order], [texts[key] for key in order]
    for path in (a, b):
        if len(files[path]) != len(expected):
            raise DataError(f"{path}: has {len(files[path])} lines, expected {len(expected)} as {references} has")
    first, second = ([text for _, text in lines] for lines in systems)
    return first, second, [[text] for _, text in expected]


def read_answers(path: Path) -> list[tuple[str | None, str]]:
    """Reads lines of a text, or of source<TAB>text as in RUN/test_answers.tsv.

    Files of a run have escapes: a backslash in a text is two in the file.

    Raises:
        DataError: The file is empty or cannot be read.
    """
    of_run = path.name in (DEV_FILE, DEV_ANSWERS_FILE, TEST_ANSWERS_FILE) and (path.parent / DATA_FILE).exists()
    if of_run and (pairs := read_pairs_file(path)):
        return [(pair.source, pair.target) for pair in pairs]
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise DataError(f"{path}: is empty, expected one text per line")
    parts = (line.rpartition("\t") for line in lines)
    return [(source if tab else None, text) for source, tab, text in parts]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_training.evaluation.compare", description=__doc__.splitlines()[0]
    )
    parser.add_argument("references", type=Path, help="one reference per line, or source<TAB>reference")
    parser.add_argument("a", type=Path, help="one answer per line, or source<TAB>answer, as in RUN/test_answers.tsv")
    parser.add_argument("b", type=Path, help="those of the other system")
    options = parser.parse_args(arguments)
    try:
        a, b, references = read_systems(options.references, options.a, options.b)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(a):,} sources; A: {options.a}, B: {options.b}")
    for name, found in compare(a, b, references).items():
        one, two = (f"{v:.2f} ± {w:.2f}" for v, w in zip(found.values, found.half_widths, strict=True))
        difference = found.values[1] - found.values[0]
        print(f"{name:6}A {one}  B {two}  B - A {difference:+.2f}  p = {found.p_value:.4f}  {found.signature}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""BLEU as papers before sacrebleu score it: `python -m dragoman_training.evaluation.tokenized_bleu ANSWERS REFERENCES`.

Both files are tokenized as Moses does it and, with --lowercase, lower-cased first; then the n-grams of these tokens are
counted. Papers that preprocess their data this way report this BLEU, which is not comparable with sacrebleu's own
tokenization (Post 2018). That one is printed beside it.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacremoses import MosesTokenizer

from dragoman_training.errors import TrainingError
from dragoman_training.evaluation.compare import read_answers


def tokenized_bleu(
    answers: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> BLEUScore:
    """Computes BLEU (Papineni et al. 2002) of Moses tokens, as multi-bleu.perl does.

    Args:
        answers: One text for each reference.
        references: The expected texts.
        language: Code of the language whose rules Moses applies, e.g. "de".
        lowercase: Whether both are lower-cased first.

    Raises:
        ValueError: The numbers of answers and references differ.
    """
    if len(answers) != len(references):
        raise ValueError(f"there are {len(answers)} answers but {len(references)} references")
    tokenizer = MosesTokenizer(language)
    tokenized = [
        [tokenizer.tokenize(text.lower() if lowercase else text, return_str=True, escape=False) for text in texts]
        for texts in (answers, references)
    ]
    score: BLEUScore = BLEU(tokenize="none", force=True).corpus_score(tokenized[0], [tokenized[1]])
    return score


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_training.evaluation.tokenized_bleu", description=__doc__.splitlines()[0]
    )
    parser.add_argument("answers", type=Path, help="one answer per line")
    parser.add_argument("references", type=Path, help="one reference per line")
    parser.add_argument("--language", required=True, help="language of the answers, e.g. de")
    parser.add_argument("--lowercase", action="store_true", help="lower-case both first")
    options = parser.parse_args(arguments)
    try:
        answers, references = (
            [text for _, text in read_answers(path)] for path in (options.answers, options.references)
        )
        score = tokenized_bleu(answers, references, options.language, lowercase=options.lowercase)
    except (TrainingError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    cased = BLEU()
    print(f"{'lower-cased, ' if options.lowercase else ''}Moses tokens  {score}")
    print(f"sacrebleu  {cased.corpus_score(answers, [references])}  {cased.get_signature()}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as `head` may stop early
    raise SystemExit(main())

"""How to search, as options of the commands that generate many answers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from dragoman.cli.common import Command, SourceLanguage, TargetLanguage, with_options

if TYPE_CHECKING:
    from dragoman.requests import GenerateOptions

length = partial(typer.Option, rich_help_panel="Length")
beam = partial(typer.Option, rich_help_panel="Beam search")
sampling = partial(typer.Option, rich_help_panel="Sampling")
constraint = partial(typer.Option, rich_help_panel="Constraints")


@dataclass(frozen=True)
class Decoding:
    """How to search. Each field is an option of the command; most have the names of GenerateOptions."""

    source_language: SourceLanguage = None
    target_language: TargetLanguage = None
    max_new_tokens: Annotated[
        int | None, length(metavar="N", help="Generate at most N tokens. Default: the model's limit.")
    ] = None
    min_new_tokens: Annotated[int | None, length(metavar="N", help="Generate at least N tokens. Default: 0.")] = None
    beam_size: Annotated[int | None, beam(metavar="N", help="Use beam search with N hypotheses.")] = None
    length_normalization: Annotated[
        Literal["length", "gnmt", "none"] | None,
        beam(
            help="Score: length: sum / |Y|^A (default); gnmt: sum / ((5+|Y|)/6)^A; none: sum.",
            metavar="KIND",
        ),
    ] = None
    length_penalty: Annotated[
        float | None, beam(metavar="A", help="Exponent A: the higher, the longer the answers. Default: 1.")
    ] = None
    coverage_penalty: Annotated[
        float | None,
        beam(metavar="B", help="Weight of the penalty for source tokens without attention. Default: 0."),
    ] = None
    early_stopping: Annotated[
        bool | None,
        beam(
            "--early-stopping",
            help="End when enough hypotheses are finished, even if others might win.",
        ),
    ] = None
    stopping: Annotated[
        Literal["exact", "early", "current_length", "max_length"] | None,
        beam(
            metavar="RULE",
            help="When to end: exact: when no other hypothesis can win; early: --early-stopping; current_length, "
            'max_length: early_stopping=False and "never" of transformers. Default: exact, or the model\'s rule.',
        ),
    ] = None
    patience: Annotated[
        float | None,
        beam(metavar="P", help="--early-stopping ends at P times the beam size. Default: 1."),
    ] = None
    beam_groups: Annotated[
        int | None,
        beam(
            metavar="N",
            help="Diverse beam search: N groups that avoid each other's tokens. Default: 1.",
        ),
    ] = None
    diversity_penalty: Annotated[
        float | None,
        beam(metavar="D", help="Penalty on a token for each earlier group that chose it. Default: 0.5."),
    ] = None
    sample: Annotated[bool | None, sampling("--sample", help="Draw each token at random from the distribution.")] = None
    temperature: Annotated[
        float | None, sampling(metavar="T", help="Below 1 for less randomness, above 1 for more. Default: 1.")
    ] = None
    top_k: Annotated[int | None, sampling(metavar="K", help="Draw from the K most probable tokens.")] = None
    top_p: Annotated[
        float | None, sampling(metavar="P", help="Draw from the most probable tokens whose probabilities sum to P.")
    ] = None
    min_p: Annotated[
        float | None, sampling(metavar="P", help="Draw from tokens at least P times as probable as the best one.")
    ] = None
    typical_p: Annotated[
        float | None,
        sampling(
            metavar="P",
            help="Draw from the most typical tokens whose probabilities sum to P.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        sampling(
            metavar="N",
            help="The same seed gives the same answer. Default: the server's choice, see --json.",
        ),
    ] = None
    prefix: Annotated[str | None, constraint(metavar="TEXT", help="Start the answer with this text.")] = None
    prefix_ids: Annotated[
        str | None, constraint(metavar="IDS", help='Start the answer with these target token ids, as in "5 17".')
    ] = None
    prefix_bias: Annotated[
        float | None,
        constraint(metavar="B", help="Prefer the prefix with this weight instead of forcing it."),
    ] = None
    suppressed_tokens: Annotated[
        list[int] | None,
        constraint("--suppress-token", metavar="ID", help="Never choose this target token. May be repeated."),
    ] = None
    suppress_sequence: Annotated[
        list[str] | None,
        constraint(metavar="TEXT", help="Never generate the tokens of this text in sequence. May be repeated."),
    ] = None
    suppress_sequence_ids: Annotated[
        list[str] | None,
        constraint(metavar="IDS", help="Never generate these target token ids in sequence. May be repeated."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        constraint(metavar="R", help="Above 1, makes tokens that already occurred less probable. Default: 1."),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, constraint(metavar="N", help="Never repeat N tokens in sequence. Default: 0, no such rule.")
    ] = None
    encoder_no_repeat_ngram_size: Annotated[
        int | None,
        constraint(metavar="N", help="Never generate N tokens that occur in sequence in the source. Default: 0."),
    ] = None
    stop_sequences: Annotated[
        list[str] | None,
        constraint("--stop", metavar="TEXT", help="End the answer before this text. May be repeated."),
    ] = None
    include_stop_sequence: Annotated[
        bool | None, constraint("--include-stop", help="End the answer after the --stop text instead.")
    ] = None
    vocabulary: Annotated[
        Path | None,
        constraint(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Choose only target tokens whose ids are in FILE, one per line.",
        ),
    ] = None
    use_shortlist: Annotated[
        bool | None,
        constraint(
            "--shortlist/--no-shortlist",
            help="Choose only target tokens that the model's lexical shortlist has for the text. Default: as the "
            "model's export found best.",
        ),
    ] = None

    def options(self) -> "GenerateOptions":
        """Returns the options that are set.

        Raises:
            ValueError: Options contradict each other, or an id is not an integer.
        """
        if self.prefix is not None and self.prefix_ids is not None:
            raise ValueError("--prefix and --prefix-ids are mutually exclusive")
        fields = dict(vars(self))
        ids, texts, sequences = (
            fields.pop(name) for name in ("prefix_ids", "suppress_sequence", "suppress_sequence_ids")
        )
        if ids is not None:
            fields["prefix"] = _parse_ids(ids, "--prefix-ids")
        fields["suppressed_sequences"] = [
            *(texts or ()),
            *(_parse_ids(each, "--suppress-sequence-ids") for each in sequences or ()),
        ]
        fields["vocabulary"] = _read_ids(self.vocabulary) if self.vocabulary else None
        # An option that may be repeated is absent if it is empty. Ids that are missing are for the server to refuse.
        given = {name for name, value in fields.items() if value not in (None, [])}
        given |= {name for name in ("prefix", "vocabulary") if fields[name] == []}
        return cast("GenerateOptions", {name: value for name, value in fields.items() if name in given})


def with_decoding_options(command: Command) -> Command:
    """Adds the fields of Decoding as options of a command, which takes them as its argument `decoding`."""
    return with_options("decoding", Decoding)(command)


def _parse_ids(text: str, option: str) -> list[int]:
    """Parses token ids, separated by spaces or commas.

    Raises:
        ValueError: One of them is not an integer.
    """
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f'{option}: expected token ids, as in "5 17", got {text!r}') from None


def _read_ids(file: Path) -> list[int]:
    """Reads the ids at the start of each line of a file; the rest of a line is ignored, as in `dragoman tokenize`.

    Raises:
        ValueError: A line starts with something else, or the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
    ids = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            ids.append(int(line.split()[0]))
        except ValueError:
            raise ValueError(f"{file}, line {number}: expected a token id, got {line.split()[0]!r}") from None
    return ids

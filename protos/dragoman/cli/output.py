"""What the commands print: answers as lines with tab-separated columns or as JSON, tables of models, and warnings.

Output is UTF-8, whatever the locale.
"""

import errno
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Self

from dragoman.errors import DragomanError, UnavailableError
from dragoman.models import (
    Limits,
    ModelInfo,
    ModelState,
    RepositoryStatus,
    VersionStatus,
)
from dragoman.one_line import one_line
from dragoman.requests import GenerateOptions
from dragoman.results import (
    Attention,
    Hypothesis,
    Piece,
    Result,
    ScoreResult,
    TargetScore,
    Token,
)

_ATTENTION_DECIMALS = 6

NOTICE_SECONDS = 1.5  # shortest retry delay that is worth a message: that after the fifth failure
REPEAT_SECONDS = 30.0  # pause after which the same failure is reported again

MAX_LANGUAGES = 12  # shown per model


def write(text: str) -> None:
    """Writes to standard output and flushes, so that the reader of a pipe sees each answer at once.

    Raises:
        OSError: Standard output is closed, or can't be written.
    """
    if sys.stdout is None:  # it was closed before the command started
        raise OSError(errno.EBADF, "standard output is closed")
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def write_line(*columns: str) -> None:
    write("\t".join(map(one_line, columns)) + "\n")


def write_json(value: Any) -> None:
    """Writes a value as one line of JSON, with dataclasses as objects."""
    write(json.dumps(value, ensure_ascii=False, default=_as_dict) + "\n")


def warn(message: str) -> None:
    """Writes one line to standard error, unless that is closed."""
    if sys.stderr is not None:
        sys.stderr.write(f"dragoman: {message}\n".encode(errors="backslashreplace").decode())
        sys.stderr.flush()


class RetryNotice:
    """Reports retries of a server that is away for more than a moment, once per cause and outage."""

    def __init__(self) -> None:
        self._message = ""
        self._last = -math.inf

    def __call__(self, error: DragomanError, delay: float) -> None:
        """Takes a failure that is retried after `delay` seconds."""
        if not isinstance(error, UnavailableError) or delay < NOTICE_SECONDS:
            return
        now = time.monotonic()
        if str(error) != self._message or now - self._last > REPEAT_SECONDS:
            warn(f"{error}; retrying")
        self._message, self._last = str(error), now


@dataclass(frozen=True, slots=True)
class Layout:
    """Which parts of an answer to print: those that were requested.

    Attributes:
        several: Whether more than one hypothesis was requested; each has a line of its own.
        tokens: Whether to print tokens.
        log_probabilities: Whether to print log-probabilities.
        alignment: Whether to print the alignment.
        attention: Whether to print attention, in JSON.
    """

    several: bool
    tokens: bool
    log_probabilities: bool
    alignment: bool
    attention: bool

    @classmethod
    def of(cls, options: GenerateOptions) -> Self:
        return cls(
            several=(options.get("num_hypotheses") or 1) > 1,
            tokens=bool(options.get("tokens")),
            log_probabilities=bool(options.get("log_probabilities") or options.get("top_tokens")),
            alignment=bool(options.get("alignment")),
            attention=bool(options.get("attention")),
        )

    def lines(self, result: Result) -> str:
        """Returns the line of the answer, or the lines of its hypotheses, with line ends."""
        if not self.several:
            return f"{one_line(result.text)}{self.columns(result.best)}\n"
        return "".join(
            f"{index}\t{_number(hypothesis.score)}\t{one_line(hypothesis.text)}{self.columns(hypothesis)}\n"
            for index, hypothesis in enumerate(result.hypotheses, 1)
        )

    def columns(self, hypothesis: Hypothesis) -> str:
        """Returns the columns after the text."""
        columns = [""]
        if self.log_probabilities:
            columns.append(_number(hypothesis.log_probability))
        if self.tokens or self.log_probabilities:
            columns.append(" ".join(_token_text(token, self.log_probabilities) for token in hypothesis.tokens))
        if self.alignment:
            columns.append(_pairs(hypothesis.alignment))
        return "\t".join(map(one_line, columns))

    def object(self, result: Result) -> dict[str, Any]:
        """Returns the answer for JSON."""
        if self.several:
            fields: dict[str, Any] = {"hypotheses": [self._hypothesis(each) for each in result.hypotheses]}
        else:
            fields = self._hypothesis(result.best)
        fields |= {"source_tokens": result.source_tokens, "model": result.model}
        if result.seed is not None:
            fields["seed"] = result.seed
        if result.unseen_source_tokens:
            fields["unseen_source_tokens"] = result.unseen_source_tokens
        if self.alignment or self.attention:
            fields["source"] = self._tokens(result.source)
        return fields

    def piece(self, piece: Piece) -> dict[str, Any]:
        """Returns a piece of a streamed answer for JSON."""
        if piece.progress is not None and not piece.text:
            progress = piece.progress
            return {"progress": {"tokens": progress.tokens, "running": progress.running, "finished": progress.finished}}
        fields: dict[str, Any] = {"piece": piece.text}
        if self.several:
            fields["hypothesis"] = piece.hypothesis
        if piece.tokens and (self.tokens or self.log_probabilities):
            fields["tokens"] = self._tokens(piece.tokens)
        return fields

    def _hypothesis(self, hypothesis: Hypothesis) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "text": hypothesis.text,
            "finish_reason": hypothesis.finish_reason.value,
            "target_tokens": hypothesis.target_tokens,
        }
        if self.log_probabilities:
            fields["log_probability"] = hypothesis.log_probability
        if self.log_probabilities or self.several:
            fields["score"] = hypothesis.score
        if self.tokens or self.log_probabilities or self.alignment or self.attention:
            fields["tokens"] = self._tokens(hypothesis.tokens)
        if self.alignment:
            fields["alignment"] = hypothesis.alignment
        if self.attention and hypothesis.attention is not None:
            fields["attention"] = _nested(hypothesis.attention)
        return fields

    def _tokens(self, tokens: Sequence[Token]) -> list[dict[str, Any]]:
        return token_objects(tokens, log_probabilities=self.log_probabilities)


def score_columns(target: str, score: TargetScore, *, tokens: bool) -> list[str]:
    """Returns the columns of a target: log-probability, text, and tokens and alignment if requested."""
    columns = [_number(score.log_probability), target]
    if tokens:
        columns.append(" ".join(_token_text(token, True) for token in score.tokens))
    if score.alignment:
        columns.append(_pairs(score.alignment))
    return columns


def scores_object(targets: Sequence[str], result: ScoreResult) -> dict[str, Any]:
    """Returns the scores of the targets for JSON."""
    scores = []
    for target, score in zip(targets, result.scores, strict=True):
        fields: dict[str, Any] = {
            "target": target,
            "log_probability": score.log_probability,
            "tokens": token_objects(score.tokens),
        }
        if score.alignment:
            fields["alignment"] = score.alignment
        if score.attention is not None:
            fields["attention"] = _nested(score.attention)
        scores.append(fields)
    fields = {"scores": scores, "source": token_objects(result.source), "model": result.model}
    if result.unseen_source_tokens:
        fields["unseen_source_tokens"] = result.unseen_source_tokens
    return fields


def token_objects(tokens: Sequence[Token], *, log_probabilities: bool = True) -> list[dict[str, Any]]:
    """Returns tokens for JSON."""
    objects = []
    for token in tokens:
        fields: dict[str, Any] = {"id": token.id, "text": token.text}
        if log_probabilities and token.log_probability is not None:
            fields["log_probability"] = token.log_probability
        if token.alternatives:
            fields["alternatives"] = token_objects(token.alternatives)
        objects.append(fields)
    return objects


def show_models(models: Sequence[ModelInfo]) -> None:
    """Prints one block per model."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.begin_capture()  # rich would end the program its own way if the reader of a pipe has gone
    for model in models:
        table = Table.grid(padding=(0, 2))
        rows = {
            "description": model.description,
            "version": ", also ".join([model.version, *model.aliases]),
            "license": model.license,
            "runs on": f"{model.device}, {model.precision}, {model.parameters:,} parameters",
            "source": f"up to {model.max_source_tokens} tokens, vocabulary of {model.source_vocabulary_size:,}",
            "target": f"up to {model.max_target_tokens} tokens, vocabulary of {model.target_vocabulary_size:,}",
            "decoder": f"{model.decoder_layers} layers of {model.heads} heads",
            "imported from": model.origin,
            "source languages": _languages(
                [each.code for each in model.languages if each.source], model.default_source_language
            ),
            "target languages": _languages(
                [each.code for each in model.languages if each.target], model.default_target_language
            ),
            "default options": ", ".join(f"{name} {value}" for name, value in model.default_options.items()),
            "limits": _limits(model.limits),
            **{name: f"{value:g}" for name, value in sorted(model.quality.items())},
            "examples": ", ".join(model.examples),
        }
        if model.state is not ModelState.READY:
            rows = {"version": model.version, "state": _state(model.state, model.problem)}
        # Text, not str: text from a server must not be interpreted as markup.
        for name, value in rows.items():
            if value:
                table.add_row(Text(f"  {name}", style="dim"), Text(value))
        console.print(Text(model.name, style="bold"))
        console.print(table)
    write(console.end_capture())


def show_repository(status: RepositoryStatus) -> None:
    """Prints the path of the repository, its problem, and one line per version."""
    write_line(f"models of {status.path}")
    if status.problem:
        write_line(f"problem: {status.problem}")
    show_versions(status.versions)


def show_versions(versions: Sequence[VersionStatus]) -> None:
    """Prints one line per version: NAME@VERSION, state, roles and resources."""
    width = max((len(f"{version.model}@{version.version}") for version in versions), default=0)
    for version in versions:
        parts = [
            _state(version.state, version.problem),
            *(["default model"] if version.default else ["current"] if version.current else []),
            *version.aliases,
            *(["unloaded by hand"] if version.held else []),
        ]
        if version.device:
            threads = f"{version.engines} x {version.threads_per_engine} threads"
            cache = f"{version.cache_bytes / 2**20:,.1f} MiB of cache"
            parts.append(f"{version.device}, {threads}, {cache}, {version.calls} calls")
        write_line(f"{version.model + '@' + version.version:<{width}}  {'; '.join(parts)}")


def _state(state: ModelState, problem: str) -> str:
    return f"{state.value.lower()}: {problem}" if problem else state.value.lower()


def _languages(codes: Sequence[str], default: str) -> str:
    """Describes the languages of a side, empty where there is no choice."""
    if not codes:
        return ""
    shown = ", ".join(codes[:MAX_LANGUAGES]) + (", ..." if len(codes) > MAX_LANGUAGES else "")
    return f"{len(codes)}: {shown}; default: {default or 'none'}"


def _limits(limits: Limits) -> str:
    maximums = {
        "hypotheses per beam": limits.beam_size,
        "samples or alternatives": limits.hypotheses,
        "top tokens per position": limits.top_tokens,
        f"stop sequences of {limits.stop_sequence_characters} characters": limits.stop_sequences,
        "suppressed tokens": limits.suppressed_tokens,
        "suppressed sequences": limits.suppressed_sequences,
        "texts per batch": limits.batch_items,
        "targets to score": limits.score_targets,
        "attention weights per answer": limits.attention_weights,
        "bytes per answer": limits.answer_bytes,
    }
    return ", ".join(f"{maximum:,} {name}" for name, maximum in maximums.items() if maximum)


def _nested(attention: Attention) -> list[list[list[list[float]]]]:
    """Returns the rounded weights, [layer][head][target token][source token]."""
    return [
        [[[round(weight, _ATTENTION_DECIMALS) for weight in row] for row in matrix] for matrix in layer]
        for layer in attention.tolist()
    ]


def _pairs(alignment: Sequence[int]) -> str:
    return " ".join(f"{source}-{target}" for target, source in enumerate(alignment))


def _token_text(token: Token, log_probabilities: bool) -> str:
    if not log_probabilities or token.log_probability is None:
        return token.text
    others = [alternative for alternative in token.alternatives if alternative.id != token.id]
    return "|".join(f"{each.text}({_number(each.log_probability)})" for each in [token, *others])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _as_dict(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")

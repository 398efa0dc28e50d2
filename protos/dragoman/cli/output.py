"""Writing to standard output and standard error. Always UTF-8, whatever the locale."""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from dragoman.errors import DragomanError, UnavailableError
from dragoman.results import Limits, ModelInfo, ModelState, RepositoryStatus, VersionStatus

# Control characters, and the two others that end a line.
_SPELLED = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}

NOTICE_SECONDS = 1.5  # a wait that is worth a word: that after the fifth failure
SAME_SECONDS = 30.0  # after which a failure counts as one of another time


def write(text: str) -> None:
    """Writes to standard output at once, so that a pipe's reader sees each answer when it is there."""
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def write_line(*columns: str) -> None:
    write("\t".join(map(one_line, columns)) + "\n")


def write_json(value: Any) -> None:
    """Writes a value, dataclasses in it as objects, as one line of JSON."""
    write(json.dumps(value, ensure_ascii=False, default=_plain) + "\n")


def complain(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"dragoman: {message}\n".encode(errors="backslashreplace").decode())
    sys.stderr.flush()


class RetryNotice:
    """Says why an answer is waited for, once a server has been away for longer than a moment; of each time once."""

    def __init__(self) -> None:
        self._said = ""
        self._last = -math.inf

    def __call__(self, error: DragomanError, delay: float) -> None:
        """Takes a failure that is tried again after so many seconds."""
        if not isinstance(error, UnavailableError) or delay < NOTICE_SECONDS:
            return
        now = time.monotonic()
        if str(error) != self._said or now - self._last > SAME_SECONDS:
            complain(f"{error}; trying again")
        self._said, self._last = str(error), now


def one_line(text: str) -> str:
    """The text with its control characters spelled, as in "\\n", "\\t" and "\\x1b".

    So it stays on one line and in one column, and a terminal shows it instead of doing what it says.
    """
    return text.translate(_SPELLED)


def show_models(models: Sequence[ModelInfo]) -> None:
    """One block for each model."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.begin_capture()  # rich has its own way to end a program whose reader went away
    for model in models:
        table = Table.grid(padding=(0, 2))
        rows = {
            "description": model.description,
            "version": ", also ".join([model.version, *model.aliases]),
            "license": model.license,
            "runs on": f"{model.device}, {model.precision}, {model.parameters:,} parameters",
            "reads": f"up to {model.max_source_tokens} tokens of {model.source_vocabulary_size:,}",
            "writes": f"up to {model.max_target_tokens} tokens of {model.target_vocabulary_size:,}",
            "decoder": f"{model.decoder_layers} layers of {model.heads} heads",
            "at most": _limits(model.limits),
            **{name: f"{value:g}" for name, value in sorted(model.quality.items())},
            "for example": ", ".join(model.examples),
        }
        if model.state is not ModelState.READY:
            rows = {"version": model.version, "state": _state(model.state, model.problem)}
        # Text, not str: a server's words are no markup.
        for name, value in rows.items():
            if value:
                table.add_row(Text(f"  {name}", style="dim"), Text(value))
        console.print(Text(model.name, style="bold"))
        console.print(table)
    write(console.end_capture())


def show_repository(status: RepositoryStatus) -> None:
    """Where models come from, what is wrong with them as a whole, and a line for each version."""
    write_line(f"models of {status.path}")
    if status.problem:
        write_line(f"problem: {status.problem}")
    show_versions(status.versions)


def show_versions(versions: Sequence[VersionStatus]) -> None:
    """A line for each version: NAME@VERSION, its state, and what there is to say of it."""
    wide = max((len(f"{each.model}@{each.version}") for each in versions), default=0)
    for each in versions:
        said = [
            *(["default model"] if each.default else ["current"] if each.current else []),
            *each.aliases,
            *(["unloaded by hand"] if each.held else []),
        ]
        if each.device:
            threads = f"{each.engines} x {each.threads_per_engine} threads"
            said.append(f"{each.device}, {threads}, {each.cache_bytes / 2**20:,.1f} MiB of cache, {each.calls} calls")
        state = _state(each.state, each.problem)
        write_line(f"{each.model + '@' + each.version:<{wide}}  {'; '.join([state, *said])}")


def _state(state: ModelState, problem: str) -> str:
    return f"{state.value.lower()}: {problem}" if problem else state.value.lower()


def _limits(limits: Limits) -> str:
    said = {
        "hypotheses in a beam": limits.beam_size,
        "samples or alternatives": limits.hypotheses,
        "top tokens at a place": limits.top_tokens,
        f"stop sequences of {limits.stop_sequence_characters} characters": limits.stop_sequences,
        "suppressed tokens": limits.suppressed_tokens,
        "suppressed sequences": limits.suppressed_sequences,
        "texts in a batch": limits.batch_items,
        "targets to score": limits.score_targets,
        "weights of attention in an answer": limits.attention_weights,
        "bytes of an answer": limits.answer_bytes,
    }
    return ", ".join(f"{most:,} {what}" for what, most in said.items() if most)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")

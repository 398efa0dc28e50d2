"""Greedy and beam search with the PyTorch model, many sources at a time, over caches.

The searches are those of the server, in tensors: the answers of an exported bundle in fp32 are the same.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman_training.data.batches import pad
from dragoman_training.data.tokenizers import OWN_IDS, SpecialIds
from dragoman_training.model import Transformer
from dragoman_training.model.cache import DecoderState
from dragoman_training.model.linear import fast_products
from dragoman_training.model.loss import rows_at_a_time
from dragoman_training.recipe import EvaluationConfig


@dataclass(frozen=True)
class Search:
    """How answers are searched for; the defaults are greedy.

    Attributes:
        beam_size: Hypotheses of a beam search; 1 for greedy search.
        length_penalty: Exponent of the length that the sum of log-probabilities is divided by.
        early_stopping: Whether a beam search ends with the beam_size-th finished hypothesis, not when none can become
            better.
    """

    beam_size: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    @staticmethod
    def of(config: EvaluationConfig) -> "Search":
        """Returns the search of a recipe."""
        return Search(config.beam_size, config.length_penalty, config.early_stopping)

    def __str__(self) -> str:
        """Returns a description for reports."""
        if self.beam_size == 1:
            return "greedy"
        stopping = ", early stopping" if self.early_stopping else ""
        return f"beam of {self.beam_size}, length penalty {self.length_penalty:g}{stopping}"

    def divisor(self, length: int) -> float:
        """Returns what a sum of `length` log-probabilities is divided by."""
        return max(math.pow(length, self.length_penalty), sys.float_info.min)


GREEDY = Search()


@dataclass(frozen=True)
class Task:
    """Sources to decode together.

    Attributes:
        sources: Token ids of each, complete.
        starts: What the target of each starts with, as many ids for all; they are part of the answers.
        special: Special tokens of the model.
    """

    sources: Sequence[Sequence[int]]
    starts: Sequence[Sequence[int]]
    special: SpecialIds = OWN_IDS

    @staticmethod
    def of(sources: Sequence[Sequence[int]]) -> "Task":
        """Returns the task of a model that is not imported."""
        return Task(sources, [[]] * len(sources))


@fast_products()
def decode(
    model: Transformer,
    task: Task,
    max_tokens: int,
    search: Search = GREEDY,
    *,
    before_step: Callable[[], object] = lambda: None,
) -> list[list[int]]:
    """Decodes one batch.

    Args:
        model: Model in eval mode.
        task: The sources.
        max_tokens: Limit at which an answer is cut.
        before_step: Callback that runs before each step; an exception it raises ends the work.

    Returns:
        The target ids of each source, without begin and end token.
    """
    device = model.decoder.projection.weight.device
    memory, mask = model.encode(
        pad(task.sources, model.pad).to(device)
    )  # [sources, source, d_model], [sources, 1, 1, source]
    state = model.decoder.begin(memory, None if mask.all() else mask, search.beam_size)
    first = torch.tensor([[task.special.begin, *start] for start in task.starts], device=device)  # [sources, given]
    first = first.repeat_interleave(search.beam_size, 0)  # [rows, given]
    for given in first[:, :-1].unbind(1):
        before_step()
        model.decoder.step(given, state)
    most = max_tokens - first.size(1) + 1
    if search.beam_size == 1:
        found = _greedy(model, state, first[:, -1], task.special.end, most, before_step)
    else:
        found = _beam(model, state, first[:, -1], task.special.end, most, search, before_step)
    return [[*start, *answer] for start, answer in zip(task.starts, found, strict=True)]


def _greedy(
    model: Transformer, state: DecoderState, token: Tensor, end: int, max_tokens: int, before_step: Callable[[], object]
) -> list[list[int]]:
    """Searches from the first tokens [rows] on."""
    source = torch.arange(len(token), device=token.device)  # [rows], those that have not been dropped
    chosen = token.new_full((len(token), max_tokens), end)  # [sources, max_tokens]
    ended = torch.zeros_like(token, dtype=torch.bool)  # [rows]
    for position in range(max_tokens):
        before_step()
        token = _best(model, model.decoder.step(token, state), 1)[1].squeeze(1)  # [rows]
        token = token.masked_fill(ended, end)
        chosen[source, position] = token
        ended |= token == end
        count = int(ended.sum())
        if count == len(ended):
            break
        if _worth_dropping(count, len(ended)):
            kept = (~ended).nonzero().squeeze(1)  # [rows that go on]
            state.select(kept, kept)
            token, source, ended = token[kept], source[kept], ended[kept]
    return [row[: row.index(end)] if end in row else row for row in chosen.tolist()]


def _beam(
    model: Transformer,
    state: DecoderState,
    token: Tensor,
    end: int,
    max_tokens: int,
    search: Search,
    before_step: Callable[[], object],
) -> list[list[int]]:
    """Searches from the first tokens [rows] on."""
    width, sources = search.beam_size, len(token) // search.beam_size
    beam = _Beam.of(sources, width, token.device)
    answers: list[list[int]] = [[] for _ in range(sources)]
    for position in range(max_tokens):
        before_step()
        found = _best(model, model.decoder.step(token, state), 2 * width)
        values, parents, tokens = beam.continuations(*found)  # [sources, 2 * width] each
        possible = values > -torch.inf
        ends = (tokens == end) | (position == max_tokens - 1)
        first = torch.arange(values.size(1), device=values.device) < width
        finishing = possible & ends & first
        for index, rank in beam.finish(values.masked_fill(~finishing, -torch.inf), search.divisor(position + 1)):
            hypothesis = beam.history[index, parents[index, rank]].tolist()
            last = int(tokens[index, rank])
            answers[int(beam.source[index])] = hypothesis if last == end else [*hypothesis, last]

        running = possible & ~ends
        ranks = running.byte().sort(dim=-1, descending=True, stable=True).indices[:, :width]  # [sources, width]
        totals = values.masked_fill(~running, -torch.inf).gather(1, ranks)
        longest = max_tokens if search.length_penalty > 0 else position + 2
        over = totals[:, 0] / search.divisor(longest) <= beam.score
        if search.early_stopping:
            beam.finished += finishing.sum(1)
            over |= beam.finished >= width
        count = int(over.sum())
        if count == len(over):
            break
        totals = totals.masked_fill(over[:, None], -torch.inf)  # whatever follows is impossible
        parents, tokens = parents.gather(1, ranks), tokens.gather(1, ranks)
        kept = (~over).nonzero().squeeze(1) if _worth_dropping(count, len(over)) else None  # [sources that go on]
        token, rows = beam.advance(totals, parents, tokens, kept)
        state.select(rows, kept)
    return answers


@dataclass
class _Beam:
    """The hypotheses of a batch, beam_size for each source; a source may have fewer, whose totals are -inf.

    Attributes:
        source: Index of each source [sources].
        totals: Sums of log-probabilities [sources, beam_size], float64, best first.
        history: Tokens so far [sources, beam_size, position].
        score: Score of the best finished hypothesis [sources], float64; -inf without one.
        finished: Number of finished hypotheses [sources].
    """

    source: Tensor
    totals: Tensor
    history: Tensor
    score: Tensor
    finished: Tensor

    @staticmethod
    def of(sources: int, width: int, device: torch.device) -> "_Beam":
        """Returns beams of one empty hypothesis each."""
        source = torch.arange(sources, device=device)
        totals = torch.full((sources, width), -torch.inf, dtype=torch.float64, device=device)
        totals[:, 0] = 0
        return _Beam(
            source, totals, source.new_empty(sources, width, 0), totals[:, -1].clone(), torch.zeros_like(source)
        )

    def continuations(self, log_probabilities: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns total, hypothesis and token of the 2 * beam_size best continuations, best first.

        Args:
            log_probabilities: Those of the best next tokens of each row [rows, candidates].
            tokens: These tokens [rows, candidates].
        """
        sources, width = self.totals.shape
        candidates = tokens.size(1)
        values = self.totals[:, :, None] + log_probabilities.view(sources, width, -1)  # [sources, width, candidates]
        # Stable: of equal values, the better hypothesis first, then the better token.
        values, order = values.flatten(1).sort(dim=-1, descending=True, stable=True)
        order = order[:, : 2 * width]
        return values[:, : 2 * width], order // candidates, tokens.view(sources, -1).gather(1, order)

    def finish(self, values: Tensor, divisor: float) -> list[tuple[int, int]]:
        """Takes the finished hypotheses of a step into account.

        Args:
            values: Totals [sources, candidates], best first; -inf where a candidate does not finish.
            divisor: What totals of this length are divided by.

        Returns:
            Source and rank of each that is the best of its source so far.
        """
        best, rank = (values / divisor).max(-1)
        better = best > self.score
        self.score = torch.where(better, best, self.score)
        found = better.nonzero().squeeze(1)
        return list(zip(found.tolist(), rank[found].tolist(), strict=True))

    def advance(self, totals: Tensor, parents: Tensor, tokens: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """Moves to the next position and, if asked, drops sources.

        Args:
            totals: Sums of the hypotheses that run on [sources, beam_size].
            parents: The hypotheses that they continue [sources, beam_size].
            tokens: Their new tokens [sources, beam_size].
            kept: Indices of the sources to keep; None for all.

        Returns:
            The token of each row, and the row that it continues, [rows] each.
        """
        sources, width = totals.shape
        rows = torch.arange(sources, device=totals.device)[:, None] * width + parents  # [sources, width]
        past = self.history.gather(1, parents[:, :, None].expand(-1, -1, self.history.size(2)))
        self.history, self.totals = torch.cat([past, tokens[:, :, None]], 2), totals
        if kept is not None:
            rows, tokens = rows[kept], tokens[kept]
            for name in self.__dataclass_fields__:
                setattr(self, name, getattr(self, name)[kept])
        return tokens.flatten(), rows.flatten()


def _worth_dropping(finished: int, sources: int) -> bool:
    """Returns whether to drop what has finished: not one by one, since products of a new shape are slow at first."""
    return finished * 8 >= sources


def _best(model: Transformer, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and ids of the most probable next tokens, best first.

    Logits are computed for a few rows at a time, see model/loss.py.

    Args:
        hidden: Inputs of the output layer [rows, d_model].
        count: Tokens of each row; fewer if the vocabulary is smaller.

    Returns:
        Float32 and int64 [rows, count].
    """
    found: list[tuple[Tensor, Tensor]] = []
    vocabulary = model.decoder.projection.out_features
    for part in torch.split(hidden, rows_at_a_time(vocabulary, hidden.device)):
        logits = model.decoder.logits(part).float()  # [part, vocabulary]
        values, ids = logits.topk(min(count, vocabulary))
        values = values - values[:, :1]
        total = logits.sub_(logits.gather(1, ids[:, :1])).exp_().sum(-1, keepdim=True)
        found.append((values - total.log(), ids))
    values, ids = (torch.cat(parts) for parts in zip(*found, strict=True))
    return values, ids

"""transformers' own model: its answers, and in double precision what they are worth."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.models.auto import AutoModelForSeq2SeqLM
from transformers.utils import logging

from tests.parity.models import Question
from tests.parity.settings import Frame, Setting

WORSE = -1e4  # log-probability of what a followed search must not choose
TRIES = 64  # searches with other rounding
LIKELY = -20.0  # log-probability relative to the best one, below which a token cannot matter


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        ids: Its tokens after a forced first one, without the end token.
        score: Its score in a beam search, or None.
        steps: Log-probabilities of some tokens at each position after a forced first token; empty for unknown ones.
        text: Its text, or None.
        searched: Steps of the search; 0 if unknown.
    """

    ids: tuple[int, ...]
    score: float | None = None
    steps: Sequence[Mapping[int, float]] = ()
    text: str | None = None
    searched: int = 0


class Library:
    """A directory's model in transformers.

    Args:
        directory: The Hugging Face directory.

    Attributes:
        end: Id of the end token.
        forced: First token of all answers; None for any.
        forces_end: Whether the longest answers get an end token.
        renormalizes: Whether probabilities are divided by their sum after tokens were excluded.
    """

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._model: Any = AutoModelForSeq2SeqLM.from_pretrained(directory, local_files_only=True).eval()
        generation = self._model.generation_config
        self.end: int = self._model.config.eos_token_id
        self.forced: int | None = generation.forced_bos_token_id
        self.forces_end = generation.forced_eos_token_id is not None
        self.renormalizes = bool(generation.renormalize_logits)
        self._start: int = generation.decoder_start_token_id
        words = generation.bad_words_ids or []
        assert self.renormalizes or not words, "probabilities would not add up to 1"
        self._excluded = [word[0] for word in words]

    @cached_property
    def _exact(self) -> Any:
        return copy.deepcopy(self._model).double()

    def frame(self, question: Question, words: Sequence[tuple[int, ...]] = ()) -> Frame:
        return Frame(question.forced is not None, self.forces_end, words)

    @torch.inference_mode()
    def answer(self, question: Question, setting: Setting) -> Answer:
        """Returns the answer of `generate` to one input, in single precision."""
        made = self._generate(self._model, question, setting, return_dict_in_generate=True, output_scores=True)
        score = made.sequences_scores[0].item() if setting.beams > 1 else None
        return Answer(self._unframed(made.sequences[0], question), score, searched=len(made.scores))

    def comparable(self, question: Question, setting: Setting, answer: Answer) -> bool:
        """Returns whether no rule that CTranslate2 lacks had a part in an answer.

        CTranslate2 forces no end token at the maximum length, and after a forced first token lets a hypothesis end only
        where that is its most probable continuation.
        """
        if self.forces_end and answer.searched >= setting.theirs["max_length"] - 2:
            return False
        if question.forced is None:
            return True
        first = self.log_probabilities(question, (), exact=True)[0]
        better = int((first > first[self.end]).sum())
        return better == 0 or better >= setting.beams

    @torch.inference_mode()
    def log_probabilities(self, question: Question, ids: Sequence[int], *, exact: bool) -> Tensor:
        """Returns log-probabilities of every token at the positions of an answer's tokens, and after them.

        Args:
            exact: Whether to compute in double precision, or in single.

        Returns:
            [len(ids) + 1, vocabulary], in double precision.
        """
        forced = [] if question.forced is None else [question.forced]
        logits = (self._exact if exact else self._model)(
            input_ids=torch.tensor([question.ids]),
            decoder_input_ids=torch.tensor([[self._start, *forced, *ids]]),
            use_cache=False,
        ).logits[0, len(forced) :]
        logits[:, self._excluded] = -torch.inf
        found: Tensor = logits.double().log_softmax(-1)
        return found

    def rounding(self, question: Question, answers: Sequence[Answer]) -> float:
        """Returns how much transformers' own log-probabilities along answers change in double precision.

        Tokens that are out of the question do not count.
        """
        largest = 0.0
        for answer in answers:
            single, double = (self.log_probabilities(question, answer.ids, exact=exact) for exact in (False, True))
            changes = torch.where(double > single.amax(-1, keepdim=True) + LIKELY, (single - double).abs(), 0.0)
            largest = max(largest, changes.max().item())
        return largest

    @torch.inference_mode()
    def exact_score(self, question: Question, setting: Setting, answer: Answer) -> float:
        """Returns the score of an answer by the setting's own rules, in double precision.

        It is the sum of log-probabilities in greedy search.
        """
        forced = [] if question.forced is None else [question.forced]
        most = setting.theirs["max_length"] - 1
        ids = [*forced, *answer.ids, *[self.end][: most - len(forced) - len(answer.ids)]]
        follow = _Follow(ids, self.end, normalizes=setting.beams == 1 or self.renormalizes)
        self._generate(self._exact, question, setting, logits_processor=[follow])
        divisor: float = len(ids) ** setting.theirs.get("length_penalty", 0.0)
        return follow.total / divisor

    @torch.inference_mode()
    def reachable(self, question: Question, setting: Setting, noise: float) -> list[tuple[int, ...]]:
        """Returns answers of the search in double precision: its own first, then those that noise leads to.

        Args:
            noise: The most by which log-probabilities are changed, at random.
        """
        torch.manual_seed(0)
        reached: list[tuple[int, ...]] = []
        for most, times in ((0.0, 1), (noise, TRIES)):
            rows = self._generate(self._exact, question, setting, times, logits_processor=[_Noise(most)])
            reached += [self._unframed(row, question) for row in rows]
        return list(dict.fromkeys(reached))

    def _generate(self, model: Any, question: Question, setting: Setting, times: int = 1, **options: Any) -> Any:
        source = torch.tensor([question.ids] * times)
        forced = {} if question.forced is None else {"forced_bos_token_id": question.forced}
        return model.generate(
            input_ids=source, attention_mask=torch.ones_like(source), **forced, **setting.theirs, **options
        )

    def _unframed(self, row: Tensor, question: Question) -> tuple[int, ...]:
        ids = row.tolist()[1 + (question.forced is not None) :]
        return tuple(ids[: ids.index(self.end)] if self.end in ids else ids)


class _Noise(LogitsProcessor):  # type: ignore[misc]
    """Changes each log-probability at random by at most `most`."""

    def __init__(self, most: float) -> None:
        self._most = most

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + self._most * (2 * torch.rand_like(scores) - 1)


class _Follow(LogitsProcessor):  # type: ignore[misc]
    """Makes a search generate given tokens, and adds up their log-probabilities.

    Args:
        ids: The tokens, after the start token.
        end: Id of the end token, which no other hypothesis gets, lest the search end early.
        normalizes: Whether the search divides probabilities by their sum after excluding tokens.

    Attributes:
        total: Sum of log-probabilities.
    """

    def __init__(self, ids: Sequence[int], end: int, *, normalizes: bool) -> None:
        self._ids, self._end, self._normalizes = ids, end, normalizes
        self._positions: Iterator[int] = iter(range(len(ids)))
        self.total = 0.0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        at = next(self._positions, None)
        if at is None:  # a beam search that goes on
            return scores
        token = self._ids[at]
        before = torch.tensor(self._ids[:at], dtype=input_ids.dtype)
        row = int((input_ids[:, 1:] == before).all(-1).nonzero()[0])
        self.total += (scores.double().log_softmax(-1) if self._normalizes else scores.double())[row, token].item()
        only = torch.full_like(scores, WORSE)
        only[:, self._end] *= 2
        only[row, token] = 0.0
        return only

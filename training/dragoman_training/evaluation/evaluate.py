"""A model measured on a data set."""

from collections.abc import Callable, Iterable, Sequence

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from dragoman_training.data.batches import IGNORED, BatchSampler, EncodedPair, collate
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair, references
from dragoman_training.evaluation.greedy import answer
from dragoman_training.evaluation.metrics import METRICS, Score
from dragoman_training.model import Transformer
from dragoman_training.recipe import Metric


@torch.no_grad()
def negative_log_likelihood(
    model: Transformer, pairs: Sequence[EncodedPair], batch_tokens: int, *, between: Callable[[], None]
) -> float:
    """Mean over the target tokens of -log p(token | source, tokens before), in nats, without label smoothing.

    Args:
        model: in eval mode.
        between: called before each batch; an exception raised there ends the work.
    """
    device = next(model.parameters()).device
    sampler = BatchSampler(pairs, batch_tokens, seed=0)
    total, tokens = 0.0, 0
    for indices in sampler.epoch(0):
        between()
        batch = collate([pairs[i] for i in indices]).to(device)
        logits = model(batch.source, batch.target_input).flatten(0, 1)  # [batch * target, vocabulary]
        total += F.cross_entropy(logits, batch.target_output.flatten(), ignore_index=IGNORED, reduction="sum").item()
        tokens += batch.target_tokens
    return total / tokens


def measure(
    model: Transformer,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    pairs: Iterable[Pair],
    metrics: Sequence[Metric],
    *,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Score]:
    """Greedy answers to every distinct source, scored against all its targets, both normalised as targets are.

    Args:
        model: in eval mode.
        between: see `answer`.
    """
    expected = references(pairs, source_tokenizer, target_tokenizer)
    written = answer(model, source_tokenizer, target_tokenizer, expected, between=between)
    answers = {source: canonical(target_tokenizer, text) for source, text in written.items()}
    return {metric: METRICS[metric](answers, expected) for metric in metrics}

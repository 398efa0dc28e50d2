"""Loss and metrics of a model on a data set."""

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
    model: Transformer, pairs: Sequence[EncodedPair], batch_tokens: int, *, before_batch: Callable[[], None]
) -> float:
    """Computes the mean of -log p(token | source, tokens before) in nats, without label smoothing.

    Args:
        model: Model in eval mode.
        before_batch: Callback that runs before each batch; an exception it raises ends the evaluation.

    Returns:
        The mean over all target tokens.
    """
    device = next(model.parameters()).device
    sampler = BatchSampler(pairs, batch_tokens, seed=0)
    total, tokens = 0.0, 0
    for indices in sampler.epoch(0):
        before_batch()
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
    before_batch: Callable[[], None] = lambda: None,
) -> dict[str, Score]:
    """Scores greedy answers to each distinct source against all its targets.

    Answers and targets are compared in the canonical form of the target tokenizer.

    Args:
        model: Model in eval mode.
        before_batch: Callback that runs before each batch, see `answer`.
    """
    expected = references(pairs, source_tokenizer, target_tokenizer)
    decoded = answer(model, source_tokenizer, target_tokenizer, expected, before_batch=before_batch)
    answers = {source: canonical(target_tokenizer, text) for source, text in decoded.items()}
    return {metric: METRICS[metric](answers, expected) for metric in metrics}

"""Loss and metrics of a model on a data set."""

from collections.abc import Callable, Iterable, Sequence

from tokenizers import Tokenizer

from dragoman_training.data.batches import BatchSampler, EncodedPair, collate
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair, references
from dragoman_training.evaluation.answers import answer
from dragoman_training.evaluation.decoding import GREEDY, Search
from dragoman_training.evaluation.metrics import METRICS, Score
from dragoman_training.model import Transformer
from dragoman_training.model.linear import fast_products
from dragoman_training.model.loss import smoothed_cross_entropy
from dragoman_training.recipe import Metric


@fast_products()
def negative_log_likelihood(
    model: Transformer, pairs: Sequence[EncodedPair], batch_tokens: int, *, before_step: Callable[[], object]
) -> float:
    """Computes the mean of -log p(token | source, tokens before) in nats, without label smoothing.

    Args:
        model: Model in eval mode.
        before_step: Callback that runs before each batch; an exception it raises ends the evaluation.

    Returns:
        The mean over all target tokens.
    """
    device, weight = model.decoder.projection.weight.device, model.decoder.projection.weight
    sampler = BatchSampler(pairs, batch_tokens, seed=0)
    total, tokens = 0.0, 0
    for indices in sampler.epoch(0):
        before_step()
        batch = collate([pairs[i] for i in indices]).to(device)
        hidden = model.hidden(batch.source, batch.target_input)  # [batch, target, d_model]
        total += smoothed_cross_entropy(hidden, weight, batch.target_output, smoothing=0.0).item()
        tokens += batch.target_tokens
    return total / tokens


def measure(
    model: Transformer,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    pairs: Iterable[Pair],
    metrics: Sequence[Metric],
    search: Search = GREEDY,
    *,
    before_step: Callable[[], object] = lambda: None,
) -> dict[str, Score]:
    """Scores the answers to each distinct source against all its targets.

    Answers and targets are compared in the canonical form of the target tokenizer.

    Args:
        model: Model in eval mode.
        before_step: Callback that runs before each step, see `answer`.
    """
    expected = references(pairs, source_tokenizer, target_tokenizer)
    decoded = answer(model, source_tokenizer, target_tokenizer, expected, search, before_step=before_step)
    answers = {source: canonical(target_tokenizer, text) for source, text in decoded.items()}
    return {metric: METRICS[metric](answers, expected) for metric in metrics}

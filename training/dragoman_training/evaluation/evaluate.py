"""Loss and metrics of a model on a data set."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dragoman_training.data.batches import BatchSampler, EncodedPair, PairList
from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair, references
from dragoman_training.data.tokenizers import OWN_IDS, SpecialIds
from dragoman_training.evaluation.answers import answer
from dragoman_training.evaluation.decoding import GREEDY, Search
from dragoman_training.evaluation.metrics import METRICS, Score
from dragoman_training.model import Transformer
from dragoman_training.model.linear import fast_products
from dragoman_training.model.loss import Loss, cross_entropy
from dragoman_training.processes import ALONE, Processes
from dragoman_training.recipe import Metric


@fast_products()
def negative_log_likelihood(
    model: Transformer,
    pairs: Sequence[EncodedPair],
    batch_tokens: int,
    *,
    before_step: Callable[[], object],
    processes: Processes = ALONE,
    special: SpecialIds = OWN_IDS,
) -> float:
    """Computes the mean of -log p(token | source, tokens before) in nats, without label smoothing.

    Args:
        model: Model in eval mode.
        before_step: Callback that runs before each batch; an exception it raises ends the evaluation.
        processes: Processes that share the batches.
        special: Special tokens of the model.

    Returns:
        The mean over all target tokens.
    """
    device = model.decoder.projection.weight.device
    batches = BatchSampler(PairList(pairs), batch_tokens, 0, special).block(epoch=0)

    def losses() -> list[float]:
        found = []
        for planned in batches[processes.rank :: processes.count]:
            before_step()
            batch = planned.read().to(device)
            hidden, weight = model.decoder.output_layer(model.hidden(batch.source, batch.target_input))
            found.append(cross_entropy(hidden, weight, batch.target_output, Loss()).item())
        return found

    shares = processes.all_do(losses)
    # In the order of the batches, so that the sum is that of one process.
    total = sum(shares[i % processes.count][i // processes.count] for i in range(len(batches)))
    return total / sum(planned.target_tokens for planned in batches)


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a data set.

    Attributes:
        answers: Answer to each distinct source.
        scores: Metrics of the answers.
    """

    answers: dict[str, str]
    scores: dict[Metric, Score]

    def values(self, loss: float) -> dict[str, float]:
        """Returns this loss and all metrics by name."""
        return {"loss": loss, **{metric: score.value for metric, score in self.scores.items()}}

    def with_intervals(self, before_metric: Callable[[], object] = lambda: None) -> "Evaluation":
        """Returns the same with the intervals of all scores, which takes seconds.

        Args:
            before_metric: Callback that runs before each metric; an exception it raises ends the work.
        """
        scores: dict[Metric, Score] = {}
        for metric, score in self.scores.items():
            before_metric()
            scores[metric] = score.with_interval(len(self.answers))
        return Evaluation(self.answers, scores)


def measure(
    model: Transformer,
    tokenizers: Tokenizers,
    pairs: Iterable[Pair],
    metrics: Sequence[Metric],
    search: Search = GREEDY,
    *,
    before_step: Callable[[], object] = lambda: None,
    answered: Callable[[int, int], object] = lambda count, total: None,
    processes: Processes = ALONE,
) -> Evaluation:
    """Scores the answers to each distinct source against all its targets.

    Answers and targets are compared in the canonical form of the target tokenizer.

    Args:
        model: Model in eval mode.
        before_step: Callback that runs before each step, see `answer`, and before each metric.
        answered: Callback that is told how many sources are answered, see `answer`.
        processes: Processes that share the sources. Process 0 computes the metrics; the others get their values alone.
    """
    expected = references(pairs, tokenizers.source, tokenizers.target)
    decoded = answer(
        model,
        tokenizers,
        expected,
        search,
        before_step=before_step,
        answered=answered,
        processes=processes,
    )
    answers = {source: canonical(tokenizers.target, text) for source, text in decoded.items()}
    scores: dict[Metric, Score] = {}

    def compute() -> dict[Metric, float]:
        for metric in metrics:
            before_step()
            scores[metric] = METRICS[metric](answers, expected)
        return {metric: score.value for metric, score in scores.items()}

    values = processes.first_does(compute)
    return Evaluation(
        {source: decoded[source] for source in expected},
        scores or {metric: Score(value) for metric, value in values.items()},
    )

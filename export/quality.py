"""How good the exported model is on the run's own data, decoded by the exported graphs."""

from collections.abc import Mapping, Sequence

from export.generate import greedy, within_limit
from server.bundle.load import Bundle
from server.cpu import usable_cpus
from server.runtime.device import Device
from server.runtime.model import Runtime, Sessions
from training.data.corpus import Pair, references
from training.evaluation.metrics import METRICS
from training.recipe import Metric

ROWS = 64
NAMES: dict[Metric, str] = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match (%)",
    "word_error_rate": "word error rate (%)",
    "token_error_rate": "token error rate (%)",
}


def measure(
    bundle: Bundle, device: Device, data: Mapping[str, Sequence[Pair]], metrics: Sequence[Metric]
) -> dict[str, float]:
    """Greedy quality, for the manifest.

    Args:
        data: pairs by the name of the set, "dev" or "test"; a source may have several targets. A source beyond the
            model's limit counts as answered with nothing.

    Returns:
        percentages by name, such as "test word error rate (%)".
    """
    runtime = Runtime(Sessions(bundle, device, usable_cpus()), ROWS)
    quality: dict[str, float] = {}
    for name, pairs in data.items():
        expected = references(pairs)
        answers = dict.fromkeys(expected, "")
        kept = list(within_limit(bundle.source_tokenizer, list(expected), bundle.manifest.limits.max_source_tokens))
        rows = greedy(runtime, [ids for _, ids in kept])
        decoded = bundle.target_tokenizer.decode_batch(rows)
        answers |= {text: answer for (text, _), answer in zip(kept, decoded, strict=True)}
        for metric in metrics:
            quality[f"{name} {NAMES[metric]}"] = round(METRICS[metric](answers, expected).value, 3)
    return quality

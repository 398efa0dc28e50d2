"""Hugging Face transformers with our weights: which options mean the same there, and which do not.

Beams of every width and penalty are in test_beam_parity.py. protos/decoding.md describes the differences.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from dragoman import Client
from dragoman_server.core.search_options import SamplingOptions
from dragoman_server.decoding.sampling import Sampler
from dragoman_training.data.batches import pad
from dragoman_training.model import ModelConfig
from tests.integration.test_ctranslate2_parity import CHOICES, SHAPE, name, random_model, random_sources, vocabularies
from tests.support import transformers_model
from tests.support.parity import (
    FEWER_WORDS,
    TOLERANCE,
    Shipped,
    differing,
    from_hugging_face,
    from_server,
)

SAME_LOGITS = 1e-5
BEAM: dict[str, Any] = {"beam_size": 4, "num_hypotheses": 4}
THEIR_BEAM: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"}
PREFIX = [6, 26]  # AH N, which few of the words start with


def compare(shipped: Shipped, client: Client, ours: dict[str, Any], theirs: dict[str, Any]) -> list[int]:
    """Returns the words for which beams of width 4 differ."""
    return differing(
        from_server(client, FEWER_WORDS, **BEAM | ours),
        from_hugging_face(shipped, FEWER_WORDS, **THEIR_BEAM | theirs),
    )


@torch.no_grad()
def largest_difference(ours: Any, theirs: Any, source: Tensor, target: Tensor) -> float:
    other = theirs(input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=target).logits
    mine = ours(source, target)
    assert torch.equal(mine.isinf(), other.isinf()), "forbidden tokens are the same"
    return float((mine - other)[mine.isfinite()].abs().max())


def test_the_shipped_model_has_the_same_logits_there(shipped: Shipped) -> None:
    source = pad(shipped.source(FEWER_WORDS), shipped.tokens.pad)
    target = torch.randint(4, 43, (len(source), 20), generator=torch.Generator().manual_seed(1))
    target[:, 0] = shipped.tokens.begin
    assert largest_difference(shipped.model, shipped.hugging_face, source, target) < SAME_LOGITS


POST_LEARNED = {"norm": "post", "activation": "gelu", "share_embeddings": "none", "positions": "learned"}


@pytest.mark.parametrize("choice", [*CHOICES[:2], POST_LEARNED], ids=name)
def test_other_shapes_have_the_same_logits_there(shipped: Shipped, choice: dict[str, str]) -> None:
    model = random_model(ModelConfig.model_validate(SHAPE | choice))
    source = pad(random_sources(vocabularies(model.config)[0]), 0)
    target = torch.randint(4, 40, (len(source), 12), generator=torch.Generator().manual_seed(1))
    target[:, 0] = shipped.tokens.begin
    assert largest_difference(model, transformers_model.convert(model, shipped.tokens), source, target) < SAME_LOGITS


def test_swiglu_cannot_be_converted(shipped: Shipped) -> None:
    with pytest.raises(ValueError, match="SwiGLU"):
        transformers_model.convert(random_model(ModelConfig.model_validate(SHAPE | CHOICES[2])), shipped.tokens)


def test_max_new_tokens_means_the_same_although_transformers_counts_the_end_token(
    shipped: Shipped, shipped_client: Client
) -> None:
    """An answer that is cut at N tokens has no end token, so N means the same."""
    limit = {"max_new_tokens": 5}
    assert compare(shipped, shipped_client, limit, limit) == []
    lengths = {
        len(answer.ids) for answers in from_server(shipped_client, FEWER_WORDS, **BEAM, **limit) for answer in answers
    }
    assert {4, 5} <= lengths <= set(range(6))


def test_fewer_hypotheses_are_the_first_of_more(shipped: Shipped, shipped_client: Client) -> None:
    """Although transformers waits for `num_beams` finished hypotheses, and our search only for num_hypotheses."""
    assert compare(shipped, shipped_client, {"num_hypotheses": 1}, {"num_return_sequences": 1}) == []


def test_a_negative_length_penalty(shipped: Shipped, shipped_client: Client) -> None:
    assert compare(shipped, shipped_client, {"length_penalty": -1.0}, {"length_penalty": -1.0}) == []


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_forced_prefix(shipped: Shipped, shipped_client: Client, penalty: float) -> None:
    """Neither its scores nor its length count, here and there."""
    ours = {"prefix": PREFIX, "length_penalty": penalty}
    assert compare(shipped, shipped_client, ours, {"prefix": PREFIX, "length_penalty": penalty}) == []


# Suppressed: AH, N T, IH T, R AH L.
EDITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "suppressed": (
        {"suppressed_tokens": [6], "suppressed_sequences": [[26, 34], [20, 34], [31, 6, 24]]},
        {"bad_words_ids": [[6], [26, 34], [20, 34], [31, 6, 24]]},
    ),
    "n-grams": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "minimum": ({"min_new_tokens": 7}, {"min_new_tokens": 7}),
    "minimum behind a prefix": (
        {"min_new_tokens": 5, "prefix": PREFIX},
        {"min_new_tokens": 5, "prefix": PREFIX},
    ),
}


@pytest.mark.parametrize(("ours", "theirs"), EDITS.values(), ids=EDITS)
def test_forbidden_tokens_are_renormalized_there_only_on_request(
    shipped: Shipped, shipped_client: Client, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    assert compare(shipped, shipped_client, ours, theirs | {"renormalize_logits": True}) == []
    assert compare(shipped, shipped_client, ours, theirs) != []


def test_repetition_penalties_are_the_same_in_greedy_search_only(shipped: Shipped, shipped_client: Client) -> None:
    """Transformers also penalizes the begin token, without effect. Its beam search multiplies log-probabilities; its
    greedy search divides or multiplies logits, as all searches do here.
    """
    penalty = {"repetition_penalty": 1.5}
    ours = from_server(shipped_client, FEWER_WORDS, **penalty)
    theirs = from_hugging_face(shipped, FEWER_WORDS, **penalty, length_penalty=0.0)
    assert [[answer.ids for answer in answers] for answers in ours] == [
        [answer.ids for answer in answers] for answers in theirs
    ]
    moved = [abs(one[0].score - other[0].score) for one, other in zip(ours, theirs, strict=True)]
    assert max(moved) < TOLERANCE
    for renormalize in (False, True):
        theirs_options = {**penalty, "renormalize_logits": renormalize}
        assert len(compare(shipped, shipped_client, penalty, theirs_options)) > len(FEWER_WORDS) / 2


def test_its_default_stopping_rule_stops_too_early(shipped: Shipped, shipped_client: Client) -> None:
    """early_stopping=False assumes that hypotheses end at the current length, which is exact without length penalty."""
    for penalty, exact in ((0.0, True), (2.0, False)):
        length_penalty = {"length_penalty": penalty}
        ours = from_server(shipped_client, FEWER_WORDS, **BEAM, **length_penalty)
        theirs = from_hugging_face(shipped, FEWER_WORDS, **THEIR_BEAM | {"early_stopping": False}, **length_penalty)
        assert (differing(ours, theirs) == []) is exact
        for one, other in zip(ours, theirs, strict=True):
            for better, worse in zip(one, other, strict=True):
                assert better.score > worse.score - TOLERANCE


def test_width_1_is_greedy_search_there_and_here_where_it_stops_early(shipped_client: Client) -> None:
    """The exact rule goes on with the second best token where a longer hypothesis may get a higher score."""
    beam = {"beam_size": 1, "length_penalty": 2.0, "max_new_tokens": 24}
    ((greedy,),) = from_server(shipped_client, ["of"], **beam, early_stopping=True)
    ((exact,),) = from_server(shipped_client, ["of"], **beam)
    assert greedy.ids == [6, 17]
    assert len(exact.ids) > len(greedy.ids)
    assert exact.score > greedy.score


def test_targets_have_the_same_log_probabilities_and_attention(shipped: Shipped, shipped_client: Client) -> None:
    end = shipped.tokens.end
    for word in FEWER_WORDS[:20]:
        targets = [answer.ids for answer in from_server(shipped_client, [word], **BEAM)[0]]
        scored = shipped_client.score(word, targets, attention=True).scores
        for ids, ours in zip(targets, scored, strict=True):
            log_probabilities, attention = teacher_forced(shipped, word, ids)
            expected = log_probabilities.gather(1, torch.tensor([*ids, end])[:, None])[:, 0]  # [target]
            actual = [token.log_probability for token in ours.tokens]
            torch.testing.assert_close(torch.tensor(actual), expected, atol=TOLERANCE, rtol=0)
            assert ours.log_probability == pytest.approx(expected.sum().item(), abs=TOLERANCE)
            assert ours.attention is not None
            torch.testing.assert_close(torch.tensor(ours.attention.tolist()), attention, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def teacher_forced(shipped: Shipped, word: str, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities [target, vocabulary], and cross-attention [layers, heads, target, source]."""
    model = shipped.hugging_face
    model.set_attn_implementation("eager")  # the only implementation that returns attention
    try:
        made = model(
            input_ids=torch.tensor(shipped.source([word])),
            decoder_input_ids=torch.tensor([[shipped.tokens.begin, *ids]]),
            output_attentions=True,
        )
    finally:
        model.set_attn_implementation("sdpa")
    return made.logits[0].log_softmax(-1), torch.stack(made.cross_attentions)[:, 0]


RULES = [
    {"top_k": 3},
    {"top_p": 0.7},
    {"top_p": 0.9999},
    {"min_p": 0.1},
    {"typical_p": 0.5},
    {"typical_p": 0.95},
    {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.8},
]


def warpers(temperature: float, rule: dict[str, Any]) -> LogitsProcessorList:
    """Returns the logits processors that `generate` creates for the options, in its order."""
    kinds = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    kinds["typical_p"] = TypicalLogitsWarper
    return LogitsProcessorList(
        [TemperatureLogitsWarper(temperature), *(kind(rule[key]) for key, kind in kinds.items() if key in rule)]
    )


@torch.no_grad()
def first_steps(shipped: Shipped) -> Tensor:
    """Returns the logits of the first tokens of real words, [words, vocabulary]."""
    source = pad(shipped.source(FEWER_WORDS), shipped.tokens.pad)
    logits: Tensor = shipped.model(source, torch.full((len(source), 1), shipped.tokens.begin))
    return logits[:, 0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(rule))
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_truncation_leaves_the_same_distribution(shipped: Shipped, temperature: float, rule: dict[str, Any]) -> None:
    """Draws with a number in the middle of each token's share, from as few candidates as suffice."""
    wide = torch.randn(20, 500, generator=torch.Generator().manual_seed(2)) * 3
    for logits in [*first_steps(shipped).double(), *wide.double()]:
        log_probabilities, order = (logits / temperature).log_softmax(-1).sort(descending=True, stable=True)
        left = warpers(temperature, rule)(torch.zeros(1, 1, dtype=torch.long), logits[None])[0].softmax(-1)[order]
        sampler = Sampler(SamplingOptions(seed=0, temperature=temperature, **rule), len(logits))
        below = 0.0
        for rank, share in enumerate(left.tolist()):
            if share > 1e-9:
                assert rank_of(sampler, log_probabilities.tolist(), below + share / 2) == rank
            below += share


def rank_of(sampler: Sampler, log_probabilities: list[float], number: float) -> int:
    """Returns the rank of the token drawn, with more candidates where the first do not suffice, as in an engine."""
    candidates = sampler.candidates
    while (drawn := sampler.draw(log_probabilities[:candidates], number)) is None:
        assert candidates < len(log_probabilities)
        candidates *= 8
    return drawn.rank

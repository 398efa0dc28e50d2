"""One example for each option, with the shipped model in fp32, which writes the pronunciation of a word."""

from typing import Any

import pytest

from dragoman import Client

# Option: word, options, texts of all hypotheses. No decision is so close that rounding could turn it. Tokens are given
# by name; the API takes ids.
EXAMPLES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "greedy": ("tomato", {}, ["T AH M AA T OW"]),
    "max_new_tokens": ("tomato", {"max_new_tokens": 3}, ["T AH M"]),
    "min_new_tokens": ("read", {"min_new_tokens": 5}, ["R IY D IY D"]),
    "beam_size": ("tomato", {"beam_size": 1}, ["T AH M AA T OW"]),
    "num_hypotheses": (
        "january",
        {"beam_size": 4, "num_hypotheses": 3, "max_new_tokens": 12},
        ["JH AE N Y UW EH R IY", "JH AE N Y UW W EH R IY", "JH AE N UW EH R IY"],
    ),
    "no length_penalty": (
        "january",
        {"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.0, "max_new_tokens": 12},
        ["JH AE N Y UW EH R IY", "JH AE N UW EH R IY", "JH AE N Y UW W EH R IY"],
    ),
    "length_penalty": ("of", {"beam_size": 4, "num_hypotheses": 2, "max_new_tokens": 12}, ["OW EH F", "AH F"]),
    "length_normalization": (
        "of",
        {"beam_size": 4, "num_hypotheses": 2, "length_normalization": "gnmt", "max_new_tokens": 12},
        ["AH F", "OW EH F"],
    ),
    "no normalization": (
        "of",
        {"beam_size": 4, "num_hypotheses": 2, "length_normalization": "none", "max_new_tokens": 12},
        ["AH F", "OW EH F"],
    ),
    "coverage_penalty": ("genre", {"beam_size": 4, "coverage_penalty": 0.3, "max_new_tokens": 12}, ["JH AA N R AH"]),
    "early_stopping": ("of", {"beam_size": 2, "early_stopping": True}, ["OW EH F"]),
    "patience": ("january", {"beam_size": 2, "early_stopping": True, "patience": 0.5}, ["JH AE N UW EH R IY"]),
    "beam_groups": (
        "tomato",
        {"beam_size": 2, "num_hypotheses": 2, "beam_groups": 2, "diversity_penalty": 3.0},
        ["T AH M AA T OW", "T AH M EY T OW"],
    ),
    "sample": ("tomato", {"sample": True, "seed": 1}, ["T AH M AA T OW"]),
    "samples": (
        "of",
        {"sample": True, "seed": 1, "temperature": 1.2, "num_hypotheses": 3},
        ["AH G", "AH UW ZH", "AH V"],
    ),
    "temperature": ("tomato", {"sample": True, "seed": 1, "temperature": 0.1}, ["T AH M AA T OW"]),
    "top_k": ("tomato", {"sample": True, "seed": 1, "temperature": 5.0, "top_k": 2}, ["T OW M AA D OW"]),
    "top_p": ("photograph", {"sample": True, "seed": 1, "top_p": 0.8}, ["F AH T AA G R AH F"]),
    "min_p": ("photograph", {"sample": True, "seed": 1, "temperature": 2.0, "min_p": 0.2}, ["F AH T AA G R AH F"]),
    "typical_p": ("read", {"sample": True, "seed": 1, "temperature": 1.2, "typical_p": 0.6}, ["R EH D"]),
    "prefix": ("colonel", {"prefix": "K OW"}, ["K OW L AH N EH L"]),
    "weak prefix_bias": ("read", {"prefix": "T", "prefix_bias": 0.3}, ["R IY D"]),
    "strong prefix_bias": ("read", {"prefix": "T", "prefix_bias": 0.7}, ["T R EH D"]),
    "suppressed_tokens": ("tomato", {"suppressed_tokens": ["AA", "AH"]}, ["T OW M EY T OW"]),
    "suppressed_sequences": ("tomato", {"suppressed_sequences": ["AA T", "EY T"]}, ["T AH M AA D OW"]),
    "repetition_penalty": ("jalapeno", {"repetition_penalty": 5.0}, ["JH AA L AH P EH N OW"]),
    "no_repeat_ngram_size": ("tomato", {"no_repeat_ngram_size": 1}, ["T AH M AA D OW"]),
    "stop_sequences": ("dragoman", {"stop_sequences": ["OW M"]}, ["D R AE G "]),
    "include_stop_sequence": (
        "dragoman",
        {"stop_sequences": ["OW M"], "include_stop_sequence": True},
        ["D R AE G OW M"],
    ),
    "vocabulary": ("tomato", {"vocabulary": ["T", "M", "OW", "EY", "D"]}, ["T OW M EY T OW"]),
    "alternatives": ("read", {"alternatives": True, "num_hypotheses": 3}, ["R IY D", "AA D", "AY D"]),
    "alternatives after a prefix": (
        "colonel",
        {"alternatives": True, "num_hypotheses": 3, "prefix": "K"},
        ["K ER N AH L", "K AA L AH N AH L", "K AH L AA N AH L"],
    ),
    "alternatives by beam search": (
        "january",
        {"alternatives": True, "num_hypotheses": 2, "beam_size": 3, "max_new_tokens": 12},
        ["JH AE N Y UW EH R IY", "ZH EY N Y UW EH R IY"],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, shipped_client: Client) -> None:
    word, options, expected = EXAMPLES[name]
    for field in ("suppressed_tokens", "vocabulary"):
        if field in options:
            ids = {token.text: token.id for token in shipped_client.tokenize(" ".join(options[field]), side="target")}
            options = options | {field: [ids[text] for text in options[field]]}
    found = shipped_client.generate(word, **options)
    assert [hypothesis.text for hypothesis in found.hypotheses] == expected

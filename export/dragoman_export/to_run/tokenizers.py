"""Turns tokenizers of imported models into those of a run: ids 0 to 3 are special, and a text gets the end token.

A SentencePiece model becomes a unigram tokenizer with its normalization. It splits some texts otherwise than
SentencePiece, which treats combining characters differently.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dragoman_export.errors import ExportError
from dragoman_export.original import Vocabulary
from dragoman_training.data.tokenizers import END, END_ID, SPECIAL_TOKENS, UNKNOWN, UNKNOWN_ID

UNLIKELY = -1e6  # score of pieces that no text is to be split into
UNIGRAM = 1  # the type of a SentencePiece model
NORMAL, BYTE = 1, 6  # types of its pieces


def renumbered(vocabulary: Vocabulary, order: Sequence[int]) -> Tokenizer:
    """Returns the tokenizer of a run.

    Args:
        vocabulary: Vocabulary of the imported model.
        order: The former id of each new one: of the special tokens in the order of `SPECIAL_TOKENS`, then of the rest.

    Raises:
        ExportError: The tokenizer is of a kind that cannot be converted.
    """
    names = _names(vocabulary.tokenizer, order)
    tokenizer = (
        _of_json(vocabulary.tokenizer, order, names)
        if vocabulary.pieces is None
        else _of_pieces(vocabulary.pieces, names)
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, END_ID)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def _names(tokenizer: Tokenizer, order: Sequence[int]) -> list[str]:
    """Returns the token of each new id; others that are called like special tokens get another name."""
    former = {id_: token for token, id_ in tokenizer.get_vocab().items()}
    names = [*SPECIAL_TOKENS, *(former[id_] for id_ in order[len(SPECIAL_TOKENS) :])]
    for i in range(len(SPECIAL_TOKENS), len(names)):
        if names[i] in SPECIAL_TOKENS:
            names[i] = f"{names[i]}#{order[i]}"
    return names


def _of_json(tokenizer: Tokenizer, order: Sequence[int], names: list[str]) -> Tokenizer:
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    model = document["model"]
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        kept = [scores[id_] if id_ < len(scores) else UNLIKELY for id_ in order[len(SPECIAL_TOKENS) :]]
        listed = [UNLIKELY] * len(SPECIAL_TOKENS) + kept
        model |= {"vocab": [*zip(names, listed, strict=True)], "unk_id": UNKNOWN_ID}
    elif model["type"] in ("BPE", "WordLevel"):
        model["vocab"] = {token: id_ for id_, token in enumerate(names)}
        model["unk_token"] = UNKNOWN if model["unk_token"] is not None else None
    else:
        raise ExportError(f"a tokenizer of the kind {model['type']} can't become that of a run")
    document |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(document))


def _of_pieces(path: Path, names: list[str]) -> Tokenizer:
    from sentencepiece import sentencepiece_model_pb2  # imported here: few models need it

    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(path.read_bytes())
    if proto.trainer_spec.model_type != UNIGRAM:
        raise ExportError(f"{path.name}: only unigram models of SentencePiece can become tokenizers of a run")
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    has_bytes = any(piece.type == BYTE for piece in proto.pieces)
    vocabulary = [(name, scores.get(name, UNLIKELY)) for name in names]
    tokenizer = Tokenizer(models.Unigram(vocabulary, UNKNOWN_ID, byte_fallback=has_bytes))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(),
            normalizers.Prepend(" "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer

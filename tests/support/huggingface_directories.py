"""Directories laid out like published checkpoints, with small tokenizers trained on an invented language."""

import io
import itertools
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import ByteLevelBPETokenizer, CharBPETokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M_LANGUAGE_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

SIZE = 1000
T5_IDS: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
MADLAD_IDS: dict[str, Any] = {"unk_id": 0, "pad_id": 1, "eos_id": 2, "bos_id": -1}
SPECIAL = ("<unk>", "<s>", "</s>")

# Directory name, class of its tokenizer, and other entries of its tokenizer_config.json.
LAYOUTS: dict[str, dict[str, Any]] = {
    "marian": {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "mul"},
    "marian-split": {"tokenizer_class": "MarianTokenizer", "separate_vocabs": True},
    "m2m_100": {
        "tokenizer_class": "M2M100Tokenizer",
        "src_lang": "en",
        "additional_special_tokens": [f"__{code}__" for code in M2M_LANGUAGE_CODES["m2m100"]],
    },
    "nllb": {
        "tokenizer_class": "NllbTokenizer",
        "src_lang": "eng_Latn",
        "additional_special_tokens": FAIRSEQ_LANGUAGE_CODES,
    },
    "nllb-legacy": {
        "tokenizer_class": "NllbTokenizer",
        "legacy_behaviour": True,
        "additional_special_tokens": FAIRSEQ_LANGUAGE_CODES,
    },
    "mbart": {"tokenizer_class": "MBartTokenizer", "src_lang": "en_XX", "tgt_lang": "de_DE"},
    "mbart50": {"tokenizer_class": "MBart50Tokenizer", "src_lang": "en_XX"},
    "plbart": {
        "tokenizer_class": "PLBartTokenizer",
        "language_codes": "base",
        "src_lang": "python",
        "tgt_lang": "en_XX",
    },
    "t5": {"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    "t5-bytes": {"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    "mt5": {"tokenizer_class": "T5Tokenizer", "extra_ids": 0},
    "madlad": {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "pad_token": "<pad>"},
    "pegasus": {"tokenizer_class": "PegasusTokenizer"},
    "bart": {"tokenizer_class": "BartTokenizer"},
    "blenderbot": {"tokenizer_class": "BlenderbotTokenizer"},
    "blenderbot-small": {"tokenizer_class": "BlenderbotSmallTokenizer"},
    "byt5": {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125},
    "fsmt": {"tokenizer_class": "FSMTTokenizer"},
}
MODEL_TYPES = {
    "marian-split": "marian",
    "nllb": "m2m_100",
    "nllb-legacy": "m2m_100",
    "mbart50": "mbart",
    "t5-bytes": "t5",
    "madlad": "t5",
    "byt5": "t5",
}


@cache
def lines() -> tuple[str, ...]:
    """Returns sentences of an invented language in three scripts, always the same."""
    draw = random.Random(5)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiouäöü")] + ["sch", "ß", "th", "qu"]
    letters = syllables * 8 + list("日本語漢字文書大小山川") * 20 + [a + b for a in "бдклмнрст" for b in "аеиоу"] * 4
    words = ["".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(2000)]
    words += [str(draw.randrange(10_000)) for _ in range(100)] + ["don't", "e-mail", "http://example.org"]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return tuple(
        " ".join(draw.choices(words, weights, k=draw.randint(4, 14))).capitalize() + draw.choice(".!?")
        for _ in range(3000)
    )


@cache
def train(kind: str, size: int = SIZE, **options: Any) -> bytes:
    """Trains a SentencePiece model, and returns it serialized."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()),
        model_writer=written,
        vocab_size=size,
        model_type=kind,
        character_coverage=0.999,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return written.getvalue()


def pieces(model: bytes) -> list[str]:
    """Returns the pieces of a SentencePiece model by id, without special tokens."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [
        piece
        for piece in (processor.id_to_piece(index) for index in range(processor.get_piece_size()))
        if piece not in SPECIAL
    ]


def write_directory(folder: Path, layout: str) -> Path:
    """Writes one of `LAYOUTS` to folder / layout."""
    directory = folder / layout
    directory.mkdir()
    files: dict[str, Any] = dict(_files(layout))
    files["tokenizer_config.json"] = LAYOUTS[layout]
    files["config.json"] = {"model_type": MODEL_TYPES.get(layout, layout)}
    for name, content in files.items():
        if isinstance(content, bytes):
            (directory / name).write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            (directory / name).write_text(text, encoding="utf-8")
    return directory


def _files(layout: str) -> Iterator[tuple[str, Any]]:
    source, target = train("unigram"), train("unigram", SIZE - 200)
    match layout:
        case "marian":
            # As in OPUS-MT's vocabularies, some pieces of the source are missing, and target languages are named.
            both = dict.fromkeys(pieces(source) + pieces(target))
            missing = random.Random(0).sample(pieces(source)[200:], 20)
            kept = [piece for piece in both if piece not in missing]
            yield "vocab.json", _numbered(["</s>", "<unk>", *kept, ">>deu<<", ">>fra<<", "<pad>"])
            yield from (("source.spm", source), ("target.spm", target))
        case "marian-split":
            yield "vocab.json", _numbered(["</s>", "<unk>", *pieces(source), "<pad>"])
            yield "target_vocab.json", _numbered(["</s>", "<unk>", *pieces(target), "<pad>"])
            yield from (("source.spm", source), ("target.spm", target))
        case "m2m_100":
            yield "vocab.json", _numbered(["<s>", "<pad>", "</s>", "<unk>", *pieces(source)])
            yield "sentencepiece.bpe.model", source
        case "nllb" | "nllb-legacy":
            yield "sentencepiece.bpe.model", train("bpe")
        case "mbart" | "mbart50" | "plbart":
            yield "sentencepiece.bpe.model", source
        case "t5" | "mt5" | "pegasus":
            yield "spiece.model", train("unigram", **T5_IDS)
        case "t5-bytes":
            yield "spiece.model", train("unigram", byte_fallback=True, **T5_IDS)
        case "madlad":
            yield "spiece.model", train("unigram", user_defined_symbols="<2de>,<2en>,<2fr>", **MADLAD_IDS)
        case "bart" | "blenderbot":
            trained = ByteLevelBPETokenizer()
            trained.train_from_iterator(
                lines(), SIZE, show_progress=False, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
            )
            model = json.loads(trained.to_str())["model"]
            yield "vocab.json", model["vocab"]
            yield "merges.txt", "\n".join(["#version: 0.2", *map(" ".join, model["merges"])])
        case "blenderbot-small":
            trained = CharBPETokenizer(unk_token="__unk__", lowercase=True, split_on_whitespace_only=True)
            trained.train_from_iterator(
                lines(), SIZE, show_progress=False, special_tokens=["__null__", "__start__", "__end__", "__unk__"]
            )
            model = json.loads(trained.to_str())["model"]
            last = {token: token.removesuffix("</w>") for token in model["vocab"] if token.endswith("</w>")}
            special = [token for token in model["vocab"] if token.startswith("__")]
            yield (
                "vocab.json",
                {
                    token if token in special else last.get(token, f"{token}@@"): index
                    for token, index in model["vocab"].items()
                },
            )
            yield "merges.txt", "\n".join(["#version: 0.2", *map(" ".join, model["merges"]), ""])
        case "fsmt":
            yield "vocab-src.json", _numbered(["<s>", "<pad>", "</s>", "<unk>", "a</w>"])
            yield "vocab-tgt.json", _numbered(["<s>", "<pad>", "</s>", "<unk>", "a</w>"])
            yield "merges.txt", "#version: 0.2\n"


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


ALPHABETS = (
    "abc XYZ éäöüß ñ",
    "ａＢｃ１２３ﬁﬂ½²³",
    "\u0301\u0302\u0303\u0308ẛ\u0323á\u0302",
    "日本語漢字かな ｶﾅ",
    "😀👍🏽👨\u200d👩\u200d👧",
    "\t\n\r\xa0\u2003\u3000  ",
    "▁ ▁▁ << >> <2de>",
    ".,!?()'\"“”„–—…",
    "Привет мир مرحبا ०१२",
)


def fuzzed_texts(count: int, seed: int) -> list[str]:
    """Returns texts: a third plain lines, a third random characters, a third lines with some of these in them."""
    draw = random.Random(seed)
    texts = []
    for index in range(count):
        text = list(draw.choice(lines())) if index % 3 != 1 else []
        for _ in range((0, draw.randint(1, 30), draw.randint(1, 4))[index % 3]):
            text.insert(draw.randint(0, len(text)), draw.choice(draw.choice(ALPHABETS)))
        texts.append("".join(text))
    return texts

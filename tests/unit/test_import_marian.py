"""Models in Marian's own format, held against what transformers and CTranslate2 make of the same files."""

import json
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from sentencepiece import SentencePieceProcessor
from transformers import MarianTokenizer

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_export.imports import read_import
from dragoman_export.marian.model import sinusoids
from dragoman_export.marian.vocabulary import read_vocabulary
from dragoman_export.original import Original
from dragoman_server.bundle.segmenter import Segmenter, load_pieces
from dragoman_training.data.batches import pad
from tests.reference.greedy import greedy
from tests.support.huggingface_directories import fuzzed_texts, lines, train
from tests.support.marian_models import (
    OPTIONS,
    PRE_NORM,
    SPLIT,
    by_transformers_rules,
    random_arrays,
    write_npz,
    write_vocabularies,
)

MOST = 20  # tokens of an answer
KINDS: dict[str, dict[str, Any]] = {
    "joint": {},
    "split": SPLIT | {"transformer-decoder-dim-ffn": 40},
    "own head": SPLIT | {"tied-embeddings": False, "transformer-ffn-activation": "relu"},
    "pre-norm": PRE_NORM,
}
POST_NORM = [kind for kind in KINDS if kind != "pre-norm"]  # the others are not supported by transformers


def write(folder: Path, kind: str = "joint", **options: Any) -> Path:
    chosen = OPTIONS | KINDS[kind] | options
    sizes = write_vocabularies(folder, split=not chosen["tied-embeddings-all"])
    return write_npz(folder / "model.npz", chosen, random_arrays(chosen, sizes))


def read(path: Path, *tokenizer: Path, **options: Any) -> Original:
    places = tokenizer or (path.parent,)
    return read_import(ImportOptions("marian", str(path), places, **options), lambda _: None)


def sources_of(original: Original, count: int) -> list[list[int]]:
    pieces = load_pieces(original.source.pieces) if original.source.pieces else None
    segmenter = Segmenter(original.source.tokenizer, pieces, original.tokens.unknown)
    return [[*ids, original.tokens.end] for ids in segmenter.ids(list(lines()[:count]))]


@pytest.mark.parametrize("kind", POST_NORM)
@torch.no_grad()
def test_logits_and_answers_are_those_by_transformers_rules(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, kind)
    original, options = read(path), OPTIONS | KINDS[kind]
    arrays = {name: value for name, value in np.load(path).items() if name != "special:model.yml"}
    theirs: Any = by_transformers_rules(options, arrays)
    sources, start = sources_of(original, 24), original.tokens.begin
    ids = pad(sources, original.tokens.pad)
    mask = (ids != original.tokens.pad).long()
    target = torch.randint(
        2, theirs.config.decoder_start_token_id, (len(sources), 12), generator=torch.Generator().manual_seed(3)
    )
    target[:, 0] = zero = theirs.config.decoder_start_token_id
    expected = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
    target[:, 0] = start
    logits = original.model(ids, target)
    # The added token has the logit 0 there, and is excluded by bad_words_ids. Here it can't be written, nor can rows
    # that fill up the smaller of two vocabularies.
    tokens = expected.size(-1) - 1
    assert (logits[..., tokens:] == -torch.inf).all()
    torch.testing.assert_close(logits[..., :tokens], expected[..., :tokens], atol=1e-4, rtol=0)
    made = theirs.generate(input_ids=ids, attention_mask=mask, num_beams=1, max_length=MOST + 1, bad_words_ids=[[zero]])
    answers = [row[: row.index(0)] if 0 in row else row for row in made[:, 1:].tolist()]
    assert greedy(original.model, sources, MOST, [start], original.tokens.end) == answers
    assert len({tuple(row) for row in answers}) > 6


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_ctranslate2(kind: str, tmp_path: Path) -> None:
    """Its converter, too, computes other sinusoids unless the file has them, and takes another epsilon."""
    path = write(tmp_path, kind)
    original = read(path)
    arrays = dict(np.load(path).items())
    del arrays["special:model.yml"]
    width = OPTIONS["dim-emb"]
    write_npz(tmp_path / "with-positions.npz", OPTIONS | KINDS[kind], arrays | {"Wpos": sinusoids(512, width).numpy()})
    vocabularies = sorted(map(str, tmp_path.glob("*vocab.yml")))
    converter = ctranslate2.converters.MarianConverter(str(tmp_path / "with-positions.npz"), vocabularies)
    converter.convert(str(tmp_path / "converted"))
    settings = tmp_path / "converted" / "config.json"
    settings.write_text(settings.read_text().replace('"layer_norm_epsilon": null', '"layer_norm_epsilon": 1e-6'))
    assert "1e-6" in settings.read_text()
    translator = ctranslate2.Translator(str(tmp_path / "converted"), compute_type="float32", intra_threads=1)
    sources = sources_of(original, 24)
    tokens = [[original.source.tokenizer.id_to_token(index) for index in ids[:-1]] for ids in sources]
    results = translator.translate_batch(tokens, beam_size=1, max_decoding_length=MOST, min_decoding_length=0)
    names = original.target.tokenizer.id_to_token
    ours = greedy(original.model, sources, MOST, [original.tokens.begin], original.tokens.end)
    assert [[names(index) for index in ids] for ids in ours] == [result.hypotheses[0] for result in results]
    assert len({tuple(ids) for ids in ours}) > 6


def test_positions_are_those_of_marian() -> None:
    table = sinusoids(40, 16)
    # Marian: sin(p * exp(-i * log(10000) / 7)), then the cosines.
    assert table[20, 0] == pytest.approx(np.sin(20))
    assert table[20, 1] == pytest.approx(np.sin(20 / 10_000 ** (1 / 7)), abs=1e-6)
    assert table[39, 15] == pytest.approx(np.cos(39 / 10_000), abs=1e-6)


def test_texts_become_the_ids_of_transformers(tmp_path: Path) -> None:
    original = read(write(tmp_path))
    converted = tmp_path / "huggingface"
    converted.mkdir()
    vocabulary = read_vocabulary(tmp_path / "opus.vocab.yml")
    (converted / "vocab.json").write_text(json.dumps(vocabulary | {"<pad>": len(vocabulary)}))
    theirs: Any = MarianTokenizer(
        str(tmp_path / "source.spm"), str(tmp_path / "target.spm"), str(converted / "vocab.json")
    )
    segmenter = Segmenter(original.source.tokenizer, load_pieces(tmp_path / "source.spm"), 1)
    texts = fuzzed_texts(300, seed=1)
    assert [[*ids, 0] for ids in segmenter.ids(texts)] == [theirs(text).input_ids for text in texts]


def test_pieces_alone_are_a_vocabulary(tmp_path: Path) -> None:
    """Marian trains SentencePiece with the end token first and the unknown one second."""
    pieces = train("unigram", eos_id=0, unk_id=1, bos_id=-1, pad_id=-1)
    (tmp_path / "vocab.spm").write_bytes(pieces)
    processor = SentencePieceProcessor(model_proto=pieces)
    size = processor.get_piece_size()
    path = write_npz(tmp_path / "model.npz", OPTIONS, random_arrays(OPTIONS, (size, size)))
    original = read(path, tmp_path / "vocab.spm")
    assert original.tokens.model_dump() == {"pad": size, "unknown": 1, "begin": size, "end": 0}
    [ids] = sources_of(original, 1)
    assert [*processor.encode(lines()[0]), 0] == ids


def test_settings_are_those_of_marian_decoder(tmp_path: Path) -> None:
    path = write(tmp_path)
    generation = read(path).generation
    assert generation is not None
    assert not generation.renormalized
    limits = {"max_new_tokens": 511, "suppressed_tokens": [1]}
    assert generation.options == limits | {"beam_size": 12, "length_penalty": 0.0, "stopping": "STOPPING_EARLY"}
    settings = tmp_path / "model.npz.decoder.yml"
    settings.write_text("beam-size: 6\nnormalize: 0.6\nword-penalty: 0\nallow-unk: true\n")
    generation = read(path).generation
    assert generation is not None
    assert generation.options == {
        "max_new_tokens": 511,
        "beam_size": 6,
        "length_penalty": 0.6,
        "stopping": "STOPPING_EARLY",
    }
    settings.write_text("word-penalty: 0.2")
    with pytest.raises(ExportError, match=r"decoder\.yml: word-penalty is 0\.2, which is not supported; --ignore word"):
        read(path)
    read(path, ignore=["word-penalty"])


def test_vocabularies_in_all_of_the_ways_that_marian_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "vocab.yml"
    tokens = ['"</s>"', "<unk>", "<<", "'it''s'", r'"\"\\"', r'"\x85"', r'"▁ \u2028"', "no", "a:b", "? -", "\u3000"]
    lines = [f"{token}: {index}" for index, token in enumerate(tokens) if token != "? -"]
    path.write_text("\n".join([*reversed(lines), "? -", ": 9", ""]), encoding="utf-8")
    expected = ["</s>", "<unk>", "<<", "it's", '"\\', "\x85", "▁ \u2028", "no", "a:b", "-", "\u3000"]
    assert read_vocabulary(path) == {token: index for index, token in enumerate(expected)}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"type": "amun"}, "type is 'amun'; recurrent networks"),
        ({"type": "s2s"}, "type is 's2s'; recurrent networks"),
        ({"transformer-decoder-autoreg": "rnn"}, r"autoreg is 'rnn'; recurrent \(SSRU\)"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth is 3; feed-forward networks of another depth"),
        ({"transformer-decoder-ffn-depth": 1}, "transformer-decoder-ffn-depth is 1"),
        ({"transformer-no-projection": True}, "transformer-no-projection is True"),
        ({"transformer-tied-layers": [1, 1, 2]}, "decoder layers that share weights"),
        ({"transformer-train-positions": True}, "trained positions can't be imported"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation is 'gelu'; expected one of relu, swish"),
        ({"transformer-postprocess": "dhn"}, "transformer-postprocess 'dhn'.* can't be imported; expected post-norm"),
        ({"lemma-dim-emb": 16}, "factored vocabularies"),
        ({"right-left": True}, "targets from right to left"),
        ({"dim-emb": "wide"}, "dim-emb is 'wide'; expected a number"),
        ({"transformer-heads": 5}, r"d_model \(32\) must be divisible by heads \(5\)"),
        ({"enc-depth": 3}, "encoder_l3_self_Wq is missing"),
        ({"dec-depth": 2}, "holds tensors that such a model does not have: decoder_l3_context_Wk"),
        ({"transformer-dim-ffn": 40}, r"encoder_l1_ffn_W1 has the shape \[32, 48\]; expected \[32, 40\]"),
    ],
)
def test_other_architectures_are_refused_by_name(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    sizes = write_vocabularies(tmp_path)
    path = write_npz(tmp_path / "model.npz", OPTIONS | options, random_arrays(OPTIONS, sizes))
    with pytest.raises(ExportError, match=problem):
        read(path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    good, arrays = path.read_bytes(), dict(np.load(path).items())
    vocabulary = tmp_path / "opus.vocab.yml"
    whole = vocabulary.read_text()

    def refused(problem: str, *tokenizer: Path, model: Path = path) -> None:
        with pytest.raises(ExportError, match=problem):
            read(model, *tokenizer)

    refused("gone.npz: No such file", model=tmp_path / "gone.npz")
    refused(r"model\.bin: Marian's \.bin files", model=tmp_path / "model.bin")
    path.write_bytes(good[:3000])
    refused(r"model\.npz: damaged, or not a model\.npz of Marian")
    np.savez(path, Wemb=arrays["Wemb"])
    refused("special:model.yml is missing")
    np.savez(path, **arrays | {"Wemb": arrays["Wemb"].astype(np.int8)})
    refused("Wemb is of type int8; only float32 and float16")
    np.savez(path, **arrays | {"Wemb": arrays["Wemb"] * np.float32("nan")})
    refused("Wemb holds numbers that are not finite")
    np.savez(path, **arrays | {"Wpos": arrays["Wemb"]})
    refused("such a model does not have: Wpos")
    path.write_bytes(good)
    vocabulary.write_text("\n".join(whole.splitlines()[:-1]))
    refused("opus.vocab.yml: expected every id from 0 to")
    vocabulary.write_text("</s>: 0\n<unk>: 1\na: 2\n")
    refused(r"opus\.vocab\.yml: holds 3 source tokens, but the model has \d+; it is that of another model")
    for content, problem in (
        ("a: x", "line 1 is 'a: x'"),
        ("a: 0\na: 1", "line 2 names 'a' again"),
        ("a: 0", "</s> is missing"),
    ):
        vocabulary.write_text(content)
        refused(problem)
    vocabulary.write_text(whole)
    refused(r"--tokenizer .*opus\.vocab\.yml: expected SentencePiece models", vocabulary)
    refused(r"--tokenizer .*: expected a vocabulary \(\.yml\) or a SentencePiece model", path)
    refused("no such file or directory", tmp_path / "gone")
    (tmp_path / "third.spm").write_bytes(b"x")
    refused(r"several files for one side \(source\.spm, target\.spm, third\.spm\)")
    refused(r"third\.spm: is not a SentencePiece model", vocabulary, tmp_path / "third.spm")

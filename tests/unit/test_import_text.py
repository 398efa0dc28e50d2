"""Tokenizers of every family of Hugging Face models, held against the library's own ids and texts."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.text import ImportedText, Part, read_text
from dragoman_export.original import Vocabulary
from dragoman_server.bundle.segmenter import Segmenter, load_pieces
from tests.support.huggingface_directories import LAYOUTS, fuzzed_texts, write_directory

TEXTS = 1500
SUPPORTED = [layout for layout in LAYOUTS if layout != "fsmt"]
# A special token of the source's class; in a vocabulary of its own the target may have it as plain text.
KNOWN = {"marian-split": {"<pad>"}}


@pytest.fixture(scope="module", params=SUPPORTED)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, ImportedText]:
    directory = write_directory(tmp_path_factory.mktemp("import"), request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which Marian's class never calls
        return request.param, AutoTokenizer.from_pretrained(directory, local_files_only=True), read_text(directory)


def encode(vocabulary: Vocabulary, texts: list[str], unknown: int) -> list[list[int]]:
    """Returns the ids of each text, as a server does, without what frames a source."""
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.to_str())
    pieces = None if vocabulary.pieces is None else load_pieces(vocabulary.pieces)
    return Segmenter(tokenizer, pieces, unknown).ids(texts)


def target_ids(theirs: Any, layout: str, sentence: str) -> list[int]:
    if layout.startswith("marian"):  # whose target has a SentencePiece model of its own
        ids: list[int] = theirs(text_target=sentence, add_special_tokens=False).input_ids
    else:
        ids = theirs(sentence, add_special_tokens=False).input_ids
    return ids


def framed(text: ImportedText, ids: list[int], source_language: str) -> list[int]:
    def known(parts: tuple[Part, ...]) -> list[int]:
        found: list[int | None] = [
            part if isinstance(part, int) else text.languages[source_language].source
            for part in parts
            if part != "target_language"
        ]
        return [part for part in found if part is not None]

    return [*known(text.before), *ids, *known(text.after)]


def test_texts_become_the_same_ids(imported: tuple[str, Any, ImportedText]) -> None:
    layout, theirs, text = imported
    language = (getattr(theirs, "src_lang", None) or "").strip("_")
    texts = fuzzed_texts(TEXTS, seed=1)
    different = [
        sentence
        for sentence, ids in zip(texts, encode(text.source, texts, theirs.unk_token_id), strict=True)
        if framed(text, ids, language) != theirs(sentence).input_ids
    ]
    assert not different, layout


def test_targets_become_the_same_ids(imported: tuple[str, Any, ImportedText]) -> None:
    layout, theirs, text = imported
    texts = fuzzed_texts(TEXTS // 4, seed=2)
    for sentence, ids in zip(texts, encode(text.target, texts, theirs.unk_token_id), strict=True):
        assert target_ids(theirs, layout, sentence) == ids


def test_ids_become_the_same_text(imported: tuple[str, Any, ImportedText]) -> None:
    layout, theirs, text = imported
    decode, draw = text.target.tokenizer.decode, random.Random(3)
    size = text.target.tokenizer.get_vocab_size()
    special = {index for index in range(size) if text.target.tokenizer.id_to_token(index) in KNOWN.get(layout, ())}
    drawn = [[draw.randrange(size) for _ in range(draw.randint(1, 12))] for _ in range(TEXTS)]
    sentences = fuzzed_texts(TEXTS // 4, seed=4)
    for ids in drawn + [target_ids(theirs, layout, sentence) for sentence in sentences]:
        if special.isdisjoint(ids):
            written = decode(ids)
            # Their classes in Python strip the end, too.
            wanted = theirs.decode(ids, skip_special_tokens=True)
            if layout == "blenderbot-small":  # of a word that never ended
                wanted = wanted.removesuffix("@@")
            assert (written if theirs.is_fast or layout == "byt5" else written.rstrip()) == wanted


@pytest.mark.parametrize(
    ("layout", "languages", "before", "after", "forced"),
    [
        ("marian", {"deu", "fra"}, ("target_language",), (0,), False),
        ("marian-split", set(), (), (0,), False),
        ("m2m_100", {"en", "de", "zu"}, ("source_language",), (2,), True),
        ("nllb", {"eng_Latn", "deu_Latn"}, ("source_language",), (2,), True),
        ("nllb-legacy", {"eng_Latn", "deu_Latn"}, (), (2, "source_language"), True),
        ("mbart", {"en_XX", "de_DE"}, (), (2, "source_language"), True),
        ("mbart50", {"en_XX", "de_DE"}, ("source_language",), (2,), True),
        ("plbart", {"java", "python", "en_XX"}, (), (2, "source_language"), True),
        ("madlad", {"de", "en", "fr"}, (), (2,), False),
        ("t5", set(), (), (1,), False),
        ("bart", set(), (0,), (2,), False),
    ],
)
def test_languages_and_frames(
    layout: str, languages: set[str], before: tuple[Part, ...], after: tuple[Part, ...], forced: bool, tmp_path: Path
) -> None:
    text = read_text(write_directory(tmp_path, layout))
    assert languages <= set(text.languages)
    assert bool(languages) == bool(text.languages)
    assert (text.before, text.after, text.forces_language) == (before, after, forced)
    assert text.text_prefix == ("<2{target_language}> " if layout == "madlad" else "")


def test_a_language_named_in_the_text_is_one_token_there(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, "madlad")
    text = read_text(directory)
    theirs = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    [ids] = encode(text.source, [text.text_prefix.format(target_language="de") + "a server"], 0)
    assert text.languages["de"].source in ids
    assert [*ids, *text.after] == theirs("<2de> a server").input_ids


def test_languages_have_no_text_even_if_no_file_says_so(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, "m2m_100")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer"}))
    text = read_text(directory)
    [ids] = encode(text.target, ["Lu belo nä"], 3)
    language = text.languages["de"].target
    assert language is not None
    assert text.target.tokenizer.decode([language, *ids]) == "Lu belo nä"


def test_moses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="FSMTTokenizer tokenizes with Moses' rules"):
        read_text(write_directory(tmp_path, "fsmt"))

"""Converts the tokenizers of a Hugging Face directory for a bundle: the vocabulary and the ids around a source.

The reference is transformers' own tokenizer class, with which the model was used. Classes based on the `tokenizers`
library provide their JSON. Classes in Python take the pieces of a SentencePiece model and look them up in their own
vocabulary; a bundle does the same, because the normalizer of `tokenizers` differs from SentencePiece's on combining
characters (huggingface/tokenizers#2116).
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.library import reason, silence
from dragoman_export.huggingface.text_files import check_text_files, read_tokenizer_config
from dragoman_export.original import Vocabulary
from dragoman_server.decoding.text_stream import REPLACEMENT

Part = int | Literal["source_language", "target_language"]

MARIAN_CODE = re.compile(r">>(.+)<<")
FAIRSEQ_CODE = re.compile(r"__(.+)__")
MADLAD_CODE = re.compile(r"<2(\w+)>")
STRIPPED = 2**16  # blanks at either end that a decoder strips
BYTES = 256


@dataclass(frozen=True)
class Language:
    """Token ids of a language; None if the model has none for that side."""

    source: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class ImportedText:
    """The conversion of texts to token ids.

    Attributes:
        source, target: Converters of each side; the same object if the vocabulary is joint.
        before, after: Ids around those of a source.
        target_before, target_after: Ids around those of a target that the model is trained on, without the decoder's
            first input.
        text_prefix: Text put before a source text, with the placeholder {target_language}.
        languages: Languages by code; empty for a model without any.
        forces_language: Whether the first target token is that of the target language.
        source_language, target_language: Default languages; empty for none.
        unknown: Id of the token for what the vocabulary lacks; None for none.
        end: Id of the token that the tokenizer takes for the end; None for none.
        pad: Id of the padding token; None for none.
    """

    source: Vocabulary
    target: Vocabulary
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    text_prefix: str = ""
    target_before: tuple[Part, ...] = ()
    target_after: tuple[Part, ...] = ()
    languages: Mapping[str, Language] = field(default_factory=dict)
    forces_language: bool = False
    source_language: str = ""
    target_language: str = ""
    unknown: int | None = None
    end: int | None = None
    pad: int | None = None


def read_text(folder: Path) -> ImportedText:
    """Reads the tokenizers of a directory, as `transformers.AutoTokenizer` does.

    Raises:
        ExportError: The files are missing or damaged, or of a class that is not supported.
    """
    silence()
    config = read_tokenizer_config(folder)
    name = config.get("tokenizer_class") or ""
    if problem := REFUSED.get(name):
        raise ExportError(f"{folder}: {name} {problem}")
    check_text_files(folder, config)
    tokenizer = _load(folder)
    name = type(tokenizer).__name__
    reader = _READERS.get(name)
    if reader is None and not tokenizer.is_fast:
        raise ExportError(f"{folder}: {name} is a Python tokenizer that is not supported")
    text = (reader or _fast)(tokenizer)
    source, target = (
        _code(text.languages, getattr(tokenizer, attribute, None)) for attribute in ("src_lang", "tgt_lang")
    )
    target_before, target_after = _target_frame(tokenizer, text.languages)
    return replace(
        text,
        target_before=target_before,
        target_after=target_after,
        source_language=source,
        target_language=target,
        unknown=tokenizer.unk_token_id,
        end=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
    )


def _code(languages: Mapping[str, Language], token: str | None) -> str:
    """Returns the code of a language that a tokenizer names; empty if the model does not know it."""
    match = FAIRSEQ_CODE.fullmatch(token or "")
    code = match[1] if match else token or ""
    return code if code in languages else ""


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sacremoses, which Marian's class never calls
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises various types
        raise ExportError(f"{folder}: cannot read the tokenizer ({reason(error)})") from None


def _fast(tokenizer: Any) -> ImportedText:
    """Converts a class based on the `tokenizers` library: its JSON, without ids around a text."""
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    before, after = _frame(copy, tokenizer)
    copy.post_processor = None
    copy.no_padding()
    copy.no_truncation()
    if tokenizer.clean_up_tokenization_spaces and not isinstance(copy.model, models.BPE):  # it would garble BPE's text
        steps = [copy.decoder] if copy.decoder else []
        copy.decoder = decoders.Sequence([*steps, decoders.Fuse(), *_clean_up()])
    vocabulary = Vocabulary(copy)
    ids = copy.get_vocab()
    if type(tokenizer).__name__ in LANGUAGE_CLASSES:
        source = ids.get(tokenizer.src_lang, -1)
        languages = {code: Language(ids[code], ids[code]) for code in _fairseq_codes(tokenizer) if code in ids}
        if not languages:
            raise ExportError(f"{tokenizer.name_or_path}: the vocabulary has none of the language codes of its class")
        first, last = (_with_language(around, source) for around in (before, after))
        return ImportedText(vocabulary, vocabulary, first, last, languages=languages, forces_language=True)
    codes = {match[1]: id_ for token, id_ in ids.items() if (match := MADLAD_CODE.fullmatch(token))}
    if codes:
        languages = {code: Language(source=codes[code]) for code in sorted(codes)}
        return ImportedText(vocabulary, vocabulary, before, after, "<2{target_language}> ", languages=languages)
    return ImportedText(vocabulary, vocabulary, before, after)


def _with_language(
    ids: Sequence[int], language: int, part: Literal["source_language", "target_language"] = "source_language"
) -> tuple[Part, ...]:
    parts: list[Part] = [part if id_ == language else id_ for id_ in ids]
    return tuple(parts)


def _frame(copy: Tokenizer, tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that the class puts before and after those of a text."""
    return _around(tokenizer, copy.encode("a", add_special_tokens=False).ids, tokenizer("a").input_ids)


def _target_frame(tokenizer: Any, languages: Mapping[str, Language]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Returns the ids that the class puts before and after those of a target."""
    language = None
    if any(one.target is not None for one in languages.values()):
        if not tokenizer.tgt_lang:
            tokenizer.tgt_lang = next(code for code, one in languages.items() if one.target is not None)
        language = languages[_code(languages, tokenizer.tgt_lang)].target
    bare = tokenizer(text_target="a", add_special_tokens=False).input_ids
    before, after = _around(tokenizer, bare, tokenizer(text_target="a").input_ids)
    if language is None:
        return before, after
    return _with_language(before, language, "target_language"), _with_language(after, language, "target_language")


def _around(tokenizer: Any, bare: list[int], framed: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids before and after those of a text without any around it."""
    for start in range(len(framed) - len(bare) + 1):
        if framed[start : start + len(bare)] == bare:
            return tuple(framed[:start]), tuple(framed[start + len(bare) :])
    raise ExportError(f"{tokenizer.name_or_path}: the tokenizer changes a text when it adds special tokens")


def _fairseq_codes(tokenizer: Any) -> list[str]:
    """Returns the language codes of the module that defines the class."""
    import sys

    codes: list[str] = sys.modules[type(tokenizer).__module__].FAIRSEQ_LANGUAGE_CODES
    return codes


def _marian(tokenizer: Any) -> ImportedText:
    source = _pieces(tokenizer, tokenizer.encoder, tokenizer.spm_files[0], tokenizer.spm_source)
    target = source
    if tokenizer.separate_vocabs:
        target = _pieces(tokenizer, tokenizer.target_encoder, tokenizer.spm_files[1], tokenizer.spm_target)
    else:
        target = Vocabulary(source.tokenizer, Path(tokenizer.spm_files[1]))
    codes = {match[1]: id_ for token, id_ in tokenizer.encoder.items() if (match := MARIAN_CODE.fullmatch(token))}
    languages = {code: Language(source=id_) for code, id_ in sorted(codes.items())}
    before: tuple[Part, ...] = ("target_language",) if languages else ()
    return ImportedText(source, target, before, (tokenizer.eos_token_id,), languages=languages)


def _m2m_100(tokenizer: Any) -> ImportedText:
    ids = tokenizer.encoder | tokenizer.lang_token_to_id
    # The class forgets to make languages special unless tokenizer_config.json does; answers would start with one.
    vocabulary = _pieces(tokenizer, ids, tokenizer.spm_file, tokenizer.sp_model, tokenizer.lang_token_to_id)
    languages = {code: Language(id_, id_) for code, id_ in tokenizer.lang_code_to_id.items()}
    after = (tokenizer.eos_token_id,)
    before: tuple[Part, ...] = ("source_language",)
    return ImportedText(vocabulary, vocabulary, before, after, languages=languages, forces_language=True)


def _plbart(tokenizer: Any) -> ImportedText:
    model = tokenizer.sp_model
    pieces = (model.id_to_piece(index) for index in range(1, model.get_piece_size()))
    ids = {piece: index for index, piece in enumerate(pieces, tokenizer.fairseq_offset + 1)}
    vocabulary = _pieces(tokenizer, ids | tokenizer.fairseq_tokens_to_ids, tokenizer.vocab_file, model)
    languages = {}
    for token, id_ in tokenizer.lang_code_to_id.items():
        match = FAIRSEQ_CODE.fullmatch(token)
        languages[match[1] if match else token] = Language(id_, id_)
    after: tuple[Part, ...] = (tokenizer.eos_token_id, "source_language")
    return ImportedText(vocabulary, vocabulary, (), after, languages=languages, forces_language=True)


def _pieces(
    tokenizer: Any, ids: Mapping[str, int], model: str, processor: Any, special: Iterable[str] = ()
) -> Vocabulary:
    """Converts the vocabulary of a class that looks up the pieces of SentencePiece.

    Args:
        special: Tokens without text, beside those of the class.
    """
    size = max(ids.values()) + 1
    if len(set(ids.values())) != len(ids):
        raise ExportError(f"{tokenizer.name_or_path}: two tokens of the vocabulary have the same id")
    if str(tokenizer.eos_token) not in ids:
        raise ExportError(f"{tokenizer.name_or_path}: the vocabulary lacks the end token, {tokenizer.eos_token}")
    copy = Tokenizer(models.WordLevel(dict(ids), unk_token=str(tokenizer.unk_token)))
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", STRIPPED, 0)]
    if any(processor.is_byte(index) for index in range(processor.get_piece_size())):
        steps.insert(1, decoders.ByteFallback())
    if tokenizer.clean_up_tokenization_spaces:
        steps += [decoders.Replace(Regex(" +$"), ""), *_clean_up()]
    copy.decoder = decoders.Sequence(steps)
    silent = [token for token in map(str, tokenizer.all_special_tokens) if token in ids]
    silent += [*special, *(piece for piece in _controls(processor) if piece in ids)]
    copy.add_special_tokens([AddedToken(token, normalized=False) for token in dict.fromkeys(silent)])
    assert copy.get_vocab_size() <= size, "special tokens of the class are not in the vocabulary"
    return Vocabulary(copy, Path(model))


def _clean_up() -> list[decoders.Replace]:
    """Returns decoders that do what `clean_up_tokenization_spaces` does to English text split at punctuation."""
    pairs = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'"), (" n't", "n't")]
    return [decoders.Replace(*pair) for pair in pairs + [(f" '{end}", f"'{end}") for end in ("m", "s", "ve", "re")]]


def _controls(processor: Any) -> list[str]:
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size()) if processor.is_control(index)]


def _byt5(tokenizer: Any) -> ImportedText:
    """Converts a byte tokenizer: ids are bytes plus three, between special tokens."""
    special = {str(token): index for index, token in tokenizer.added_tokens_decoder.items()}
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of)
    ids = {letter: index + tokenizer.offset for index, letter in enumerate(letters)}
    copy = Tokenizer(models.BPE(vocab=special | ids, merges=[]))
    copy.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # What is not UTF-8 has no text, as in the library.
    copy.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(REPLACEMENT, "")])
    copy.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    vocabulary = Vocabulary(copy)
    return ImportedText(vocabulary, vocabulary, (), (tokenizer.eos_token_id,))


def _blenderbot_small(tokenizer: Any) -> ImportedText:
    """Converts byte-pair encoding as subword-nmt writes it (Sennrich et al. 2016): "@@" marks pieces within a word.

    The JSON has "</w>" at the end of a word's last piece instead, as merges.txt does.
    """
    special = [str(token) for token in tokenizer.all_special_tokens]
    ids = {
        token if token in special else token.removesuffix("@@") if token.endswith("@@") else f"{token}</w>": index
        for token, index in tokenizer.encoder.items()
    }
    merges = [tuple(pair) for pair in tokenizer.bpe_ranks]
    lost = [first + second for first, second in merges if not {first, second, first + second} <= ids.keys()]
    if lost:
        raise ExportError(f"{tokenizer.name_or_path}: merges.txt makes {lost[0]!r}, which vocab.json does not have")
    copy = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token=str(tokenizer.unk_token), end_of_word_suffix="</w>")
    )
    new_line = normalizers.Replace(Regex(r"(?<=[^\s'])\n"), " __newln__")
    copy.normalizer = normalizers.Sequence([new_line, normalizers.Lowercase()])
    copy.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex("[.,!?()]"), "merged_with_next"),
            pre_tokenizers.Split("'", "isolated"),
        ]
    )
    copy.decoder = decoders.BPEDecoder("</w>")
    copy.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    vocabulary = Vocabulary(copy)
    return ImportedText(vocabulary, vocabulary)


def _byte_of(letter: str) -> int:
    """Returns the byte that a letter of the byte-level alphabet represents (Radford et al. 2019)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    code = ord(letter)
    return code if code < BYTES else others[code - BYTES]


LANGUAGE_CLASSES: Sequence[str] = ("MBartTokenizer", "MBart50Tokenizer", "NllbTokenizer")
REFUSED: Mapping[str, str] = {
    "FSMTTokenizer": "tokenizes with Moses' rules, which are not supported",
}
_READERS: Mapping[str, Callable[[Any], ImportedText]] = {
    "BlenderbotSmallTokenizer": _blenderbot_small,
    "ByT5Tokenizer": _byt5,
    "M2M100Tokenizer": _m2m_100,
    "MarianTokenizer": _marian,
    "PLBartTokenizer": _plbart,
}

"""Tokenizers with every kind of decoder. They only decode; their encodings mean nothing."""

from tokenizers import Regex, Tokenizer, decoders, models

from dragoman_server.decoding.text_stream import REPLACEMENT

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer(tokens: list[str], decoder: decoders.Decoder | None) -> Tokenizer:
    """Returns a tokenizer that only decodes."""
    made = Tokenizer(models.WordLevel({token: index for index, token in enumerate([*SPECIAL, *tokens])}, "<unk>"))
    made.decoder = decoder
    made.add_special_tokens(SPECIAL)
    return made


# The alphabet of byte-level BPE: visible bytes stand for themselves.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
ALPHABET = {byte: chr(byte) for byte in VISIBLE} | {byte: chr(256 + n) for n, byte in enumerate(HIDDEN)}


def byte_level(decoder: decoders.Decoder) -> Tokenizer:
    """Returns a tokenizer with every byte as a token, and a few tokens of several bytes."""
    words = [" the", "é", "€", " 😀", "\u05d0", "a\u0301"]
    spelled = ["".join(ALPHABET[byte] for byte in word.encode()) for word in words]
    return tokenizer([*ALPHABET.values(), *spelled], decoder)


PIECES = ["▁", "▁▁", "▁a", "b", "▁é", "€", " ", REPLACEMENT, "'s", "."]
TOKENIZERS = {
    "characters": tokenizer(list("ABC 'é\u0301\u05d0"), decoders.Fuse()),
    "symbols": tokenizer(["AH0", "K", "S", "TH"], None),
    "byte-level BPE": byte_level(decoders.ByteLevel()),
    "bytes, only UTF-8": byte_level(decoders.Sequence([decoders.ByteLevel(), decoders.Replace(REPLACEMENT, "")])),
    "BPE with byte fallback": tokenizer(
        [*PIECES, *BYTE_TOKENS],
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    ),
    "unigram with byte fallback": tokenizer(
        [*PIECES, *BYTE_TOKENS], decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "unigram": tokenizer(PIECES, decoders.Metaspace()),
    "BPE with word ends": tokenizer(["a", "b</w>", "</w>", "é</w>"], decoders.BPEDecoder()),
    "word pieces": tokenizer(["don", "##'t", "'", "##ing", ".", "n't"], decoders.WordPiece()),
    "replaced across tokens": tokenizer(
        ["a", "b", "c"], decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("ab+"), "x")])
    ),
}

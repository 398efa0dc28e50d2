"""Detokenisation: token ids to text, at once or in pieces that later tokens never change."""

import json
import re

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # stands for bytes that are not UTF-8, or not yet
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TargetDecoder:
    """Converts token ids to text.

    Args:
        tokenizer: Tokenizer of the target.

    Attributes:
        silent: Special tokens, which have no text.
        byte_tokens: Byte fallback tokens. The text of a run of them is known only at its end: either all of them are
            UTF-8, or each is replaced.
        incremental: Whether text can be decoded in pieces. Not so where the decoder replaces text after it has joined
            the tokens, since a replacement may reach back over any of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        steps = _decoder_steps(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self.silent: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        self.byte_tokens: frozenset[int] = (
            frozenset(index for token, index in tokenizer.get_vocab().items() if BYTE_TOKEN.fullmatch(token))
            if "ByteFallback" in steps
            else frozenset()
        )
        self.incremental = "Replace" not in steps[steps.index("Fuse") :] if "Fuse" in steps else True

    def decode(self, ids: list[int]) -> str:
        """Returns the text of all ids."""
        text: str = self._tokenizer.decode(ids)
        return text


def _decoder_steps(tokenizer: Tokenizer) -> list[str]:
    """Returns the types of the tokenizer's decoders, in order."""
    if tokenizer.decoder is None:
        return []
    decoder = json.loads(tokenizer.decoder.__getstate__())
    return [step["type"] for step in decoder.get("decoders", [decoder])]


class TextStream:
    """The text of one hypothesis in pieces. All pieces joined are `decoder.decode` of all ids.

    Decoders treat the first token, and spaces, differently from what follows, so a token cannot be decoded alone. But
    after the tokens of the piece before it can: that window, [anchor, end), is decoded with every token, and what it
    has beyond the text already returned is the next piece. So the cost of a token is the cost of the window, however
    long the text is.
    """

    def __init__(self, decoder: TargetDecoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._anchor = 0  # index of the window's first token
        self._decided = 0  # tokens whose text has been returned
        self._returned = ""  # text of [anchor, decided), and what else of the window has been returned

    def copy(self) -> "TextStream":
        """Returns a stream for another hypothesis that starts with the same tokens."""
        other = TextStream(self._decoder)
        other._ids = self._ids.copy()
        other._anchor, other._decided, other._returned = self._anchor, self._decided, self._returned
        return other

    def push(self, ids: list[int]) -> str:
        """Appends tokens, and returns the text that has become certain; it may be empty."""
        ids = [index for index in ids if index not in self._decoder.silent]
        self._ids += ids
        if not self._decoder.incremental or not ids or ids[-1] in self._decoder.byte_tokens:
            return ""
        window = self._decoder.decode(self._ids[self._anchor :])
        if window.endswith(REPLACEMENT):
            # The bytes of the last character may be incomplete; those before it are not.
            return self._new_text(window[:-1])
        piece = self._new_text(window)
        context = self._decoder.decode(self._ids[self._decided :])
        if context:  # without text it would not keep what follows from being treated as the first token
            self._anchor, self._returned = self._decided, context
        self._decided = len(self._ids)
        return piece

    def finish(self) -> str:
        """Returns the rest of the text."""
        return self._new_text(self._decoder.decode(self._ids[self._anchor :]))

    def _new_text(self, window: str) -> str:
        piece = window[len(self._returned) :]
        if piece:
            self._returned = window
        return piece

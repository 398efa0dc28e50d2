"""Text as it is decoded, in pieces that are never taken back."""

import json
import re

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # stands for bytes that are not UTF-8, or not yet
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TargetDecoder:
    """Token ids to text, at once or in pieces.

    Args:
        tokenizer: of the target.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        steps = _decoder_steps(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self.silent: frozenset[int] = frozenset(index for index, token in added.items() if token.special)
        # Byte tokens that stand together become text together: all of them are UTF-8, or each is replaced. So what a
        # run of them means is only known at its end.
        self.byte_tokens: frozenset[int] = (
            frozenset(index for token, index in tokenizer.get_vocab().items() if BYTE_TOKEN.fullmatch(token))
            if "ByteFallback" in steps
            else frozenset()
        )
        # What replaces text after the tokens have been joined may reach back over any of them.
        self.incremental = "Replace" not in steps[steps.index("Fuse") :] if "Fuse" in steps else True

    def decode(self, ids: list[int]) -> str:
        """The whole text; special tokens have none."""
        text: str = self._tokenizer.decode(ids)
        return text


def _decoder_steps(tokenizer: Tokenizer) -> list[str]:
    """Types of the tokenizer's decoders, in order."""
    if tokenizer.decoder is None:
        return []
    decoder = json.loads(tokenizer.decoder.__getstate__())
    return [step["type"] for step in decoder.get("decoders", [decoder])]


class TextStream:
    """One hypothesis. All pieces joined are what `decoder.decode` makes of all ids.

    Decoders treat the first token, and spaces, differently from what follows, so a token can't be decoded alone. But
    behind those of the piece before it can: that window, [anchor, end), is decoded with every token, and what it has
    beyond the text already sent is the next piece. So a token costs what the window costs, however long the whole is.
    """

    def __init__(self, decoder: TargetDecoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._anchor = 0  # the window's first token
        self._decided = 0  # tokens whose text has been sent
        self._sent = ""  # the text of [anchor, decided), and what more of the window has been sent

    def copy(self) -> "TextStream":
        """For another hypothesis that has begun in the same way."""
        other = TextStream(self._decoder)
        other._ids = self._ids.copy()
        other._anchor, other._decided, other._sent = self._anchor, self._decided, self._sent
        return other

    def push(self, ids: list[int]) -> str:
        """The text that is certain with these tokens and was not before; may be empty."""
        ids = [index for index in ids if index not in self._decoder.silent]
        self._ids += ids
        if not self._decoder.incremental or not ids or ids[-1] in self._decoder.byte_tokens:
            return ""
        window = self._decoder.decode(self._ids[self._anchor :])
        if window.endswith(REPLACEMENT):
            # The last character's bytes may not all be there yet; those before it are complete.
            return self._send(window[:-1])
        piece = self._send(window)
        context = self._decoder.decode(self._ids[self._decided :])
        if context:  # else it would not shield what follows from being treated as the first token
            self._anchor, self._sent = self._decided, context
        self._decided = len(self._ids)
        return piece

    def finish(self) -> str:
        """The rest."""
        return self._send(self._decoder.decode(self._ids[self._anchor :]))

    def _send(self, text: str) -> str:
        piece = text[len(self._sent) :]
        if piece:
            self._sent = text
        return piece

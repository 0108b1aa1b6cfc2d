"""A text as numbers: a byte each, or byte pairs that were merged because they are frequent.

Both have one token more, `end`, which no text contains: it stands behind each document. Bytes need nothing learned and
never fail; with byte pairs a text is a third or a quarter as long, so a context holds more of it.
Sources: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units"; of bytes, Radford et al.
2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Bytes:
    """UTF-8. size: tokens that there are, 257; `end` is the last of them."""

    size, end = 257, 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; bytes that are none become "�", and what follows `end` is another document's."""
        return bytes(t for t in _document(tokens, self.end) if t < 256).decode(errors="replace")

    def state(self) -> str:
        """For `tokenizer`."""
        return "bytes"


class BPE:
    """Byte pairs, learned from texts with Hugging Face's `tokenizers`: `BPE.learn(texts, 2048)`.

    size: tokens that there are; `end` is the first. Raises ImportError, which says what to install.
    """

    end = 0

    def __init__(self, state: str):
        self._pairs = _library().Tokenizer.from_str(state)
        # a text with the letters of `end` has no `end` in it
        self._pairs.encode_special_tokens = True
        self.size = self._pairs.get_vocab_size()

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> BPE:
        """The most frequent pairs of these texts; always the same. Raises ValueError for fewer tokens than bytes."""
        if size < Bytes.size:
            raise ValueError(
                f"{size} tokens are fewer than the {Bytes.size - 1} bytes and one for the end"
            )
        library = _library()
        pairs = library.Tokenizer(library.models.BPE())
        pairs.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        pairs.decoder = library.decoders.ByteLevel()
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<end>"],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        pairs.train_from_iterator(texts, trainer)
        return cls(pairs.to_str())

    def encode(self, text: str) -> list[int]:
        return self._pairs.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; what follows `end` is another document's."""
        return self._pairs.decode(_document(tokens, self.end))

    def state(self) -> str:
        """For `tokenizer`: JSON."""
        return self._pairs.to_str()


def tokenizer(state: str) -> Bytes | BPE:
    """The one whose `state()` this is."""
    return Bytes() if state == Bytes().state() else BPE(state)


def _document(tokens: Sequence[int], end: int) -> list[int]:
    tokens = list(tokens)
    return tokens[: tokens.index(end)] if end in tokens else tokens


def _library():
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            'byte pairs are learned by `tokenizers`: pip install "minidist[train]"'
        ) from error
    return tokenizers

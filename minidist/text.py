"""Text to train a language model on: documents, their tokens, and batches of them in an order that can be resumed.

documents       the Python language reference, or text files
Bytes, BPE      a text as numbers, and back
packed, split   all documents in one row of tokens; the last part kept apart
Samples         equal pieces of it, shuffled in each epoch; where a run is in them is one number
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .models import generator

# ------------------------------------------------------------
# Documents: the Python language reference, which CPython brings along, or text files.


def documents(paths: Iterable[str | os.PathLike] = ()) -> list[str]:
    """One text for each file, and for each file below a folder, in the order of their names.

    Without `paths`: the topics of the Python language reference as help() shows them, always the same with one version
    of CPython. Raises ValueError for a file that is not UTF-8, a folder without files, and texts without a character.

    >>> from minidist.text import documents
    >>> texts = documents()
    >>> len(texts) > 50, any("lambda" in text for text in texts)
    (True, True)
    """
    paths = list(paths)
    if paths:
        texts = [text for path in paths for text in _texts(Path(path))]
    else:
        from pydoc_data.topics import topics

        texts = [topics[name] for name in sorted(topics)]
    if not any(texts):
        raise ValueError(
            f"{len(texts)} documents with 0 characters: there is nothing to learn from"
        )
    return texts


def _texts(path: Path) -> Iterator[str]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"0 files below {path}")
    for file in files:
        try:
            yield file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise ValueError(
                f"{file} is not a text in UTF-8: byte {error.start} is {byte:#x}"
            ) from None


# ------------------------------------------------------------
# Equal pieces of a text, shuffled anew in each epoch, in an order that is a function of one number.
#
#     packed     a b c end d e end f g …         documents one behind the other: no padding, none is lost but a few
#     epoch 0    │a b c end│d e end f│g …        pieces of T tokens, in random order
#     epoch 1    a│b c end d│e end f g│…         shifted, so that a piece does not always begin at the same token
#
# Sample k of a run is always the same piece, on however many data ranks it is trained: rank r takes its rows of each
# batch. So what a checkpoint must remember is how many samples were seen, also in the middle of an epoch, and a run may
# go on with another batch or on another number of ranks.


def packed(texts: Iterable[str], tokenizer) -> Tensor:
    """The tokens of all texts, each followed by `tokenizer.end`: (tokens,) int32.
    tokenizer: has `encode(text)` and `end`, as `Bytes` and `BPE` have.

    >>> from minidist.text import Bytes, packed
    >>> packed(["abc", "de"], Bytes()).tolist()
    [97, 98, 99, 256, 100, 101, 256]
    """
    return torch.tensor(
        [t for text in texts for t in (*tokenizer.encode(text), tokenizer.end)], dtype=torch.int32
    )


def split(tokens: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """What to train on, and the last `share` of it, to test on. ValueError unless 0 ≤ share < 1.

    >>> import torch
    >>> from minidist.text import split
    >>> train, test = split(torch.arange(10), 0.2)
    >>> test.tolist()
    [8, 9]
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share of the text to test on is from 0 to below 1, not {share}")
    end = len(tokens) - round(share * len(tokens))
    return tokens[:end], tokens[end:]


class Samples:
    """Pieces of `length` tokens with the next token of each.

        samples = Samples(tokens, 1024, seed=0)
        x, y = samples(seen, 8)                # the 8 samples after the first `seen`: (8, 1024) int64 each

    tokens: (n,), whole numbers.  length: of a piece.  seed: of the order.  epoch: pieces in one.  Raises ValueError
    where the text is too short for one.

    >>> import torch
    >>> from minidist.text import Samples
    >>> samples = Samples(torch.arange(100), length=10, seed=0)
    >>> x, y = samples(seen=0, count=4)
    >>> x.shape, torch.equal(y, x + 1)
    (torch.Size([4, 10]), True)
    >>> later, _ = samples(seen=2, count=2)  # resumed after 2 samples
    >>> torch.equal(later, x[2:])
    True
    """

    def __init__(self, tokens: Tensor, length: int, seed: int = 0):
        self.tokens = tokens
        self.length = length
        self.seed = seed
        self.epoch = (len(tokens) - 1) // max(1, length)
        if length < 1 or self.epoch < 1:
            raise ValueError(f"{len(tokens)} tokens have no piece of {length} with a next token")
        self._places: tuple[int, Tensor] | None = None

    def __call__(self, seen: int, count: int) -> tuple[Tensor, Tensor]:
        """x and y, (count, length): y is x one token later."""
        starts = torch.tensor(
            [int(self._start(k)) for k in range(seen, seen + count)], dtype=torch.long
        )
        pieces = self.tokens[starts[:, None] + torch.arange(self.length + 1)].long()
        return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()

    def _start(self, sample: int) -> Tensor:
        """Where a sample begins in the text."""
        epoch, k = divmod(sample, self.epoch)
        if self._places is None or self._places[0] != epoch:
            self._places = epoch, self._shuffled(epoch)
        return self._places[1][k]

    def _shuffled(self, epoch: int) -> Tensor:
        random = generator(self.seed, f"epoch {epoch}")
        spare = len(self.tokens) - 1 - self.epoch * self.length  # tokens that are left over
        shift = torch.randint(spare + 1, (), generator=random)
        return torch.randperm(self.epoch, generator=random) * self.length + shift


# ------------------------------------------------------------
# A text as numbers: a byte each, or byte pairs that were merged because they are frequent.
#
# Both have one token more, `end`, which no text contains: it stands behind each document. Bytes need nothing learned and
# never fail; with byte pairs a text is a third or a quarter as long, so a context holds more of it.
# Sources: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units"; of bytes, Radford et al.
# 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.


class Bytes:
    """UTF-8. size: tokens that there are, 257; `end` is the last of them.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.

    >>> from minidist.text import Bytes
    >>> Bytes().encode("né")
    [110, 195, 169]
    >>> Bytes().decode([110, 195, 169, Bytes.end, 120])
    'né'
    """

    size, end = 257, 256

    def encode(self, text: str) -> list[int]:
        """The text's bytes, 0 to 255."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; bytes that are none become "�", and what follows `end` is another document's."""
        return bytes(t for t in _document(tokens, self.end) if t < 256).decode(errors="replace")

    def state(self) -> str:
        """For `tokenizer`."""
        return "bytes"


class BPE:
    """Byte pairs, learned from texts with Hugging Face's `tokenizers`: `BPE.learn(texts, 2048)`.

    state: as from `state()`.  size: tokens that there are; `end` is the first. Raises ImportError, which says what to
    install, and ValueError for a state that is none.
    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units".

    >>> from minidist.text import BPE, Bytes
    >>> pairs = BPE.learn(["low lower lowest"] * 10, 260)
    >>> pairs.size
    260
    >>> len(pairs.encode("lower")) < len(Bytes().encode("lower"))
    True
    >>> pairs.decode(pairs.encode("slowest"))
    'slowest'
    """

    end = 0

    def __init__(self, state: str):
        library = _library()
        try:
            self._pairs = library.Tokenizer.from_str(state)
        except Exception as error:  # tokenizers raises no other
            raise ValueError(f"this is no state() of a tokenizer: {state!r:.60}: {error}") from None
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
        """Numbers of tokens, from 1 to `size` − 1."""
        return self._pairs.encode(text).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; what follows `end` is another document's."""
        return self._pairs.decode(_document(tokens, self.end))

    def state(self) -> str:
        """For `tokenizer`: JSON."""
        return self._pairs.to_str()


def tokenizer(state: str) -> Bytes | BPE:
    """The one whose `state()` this is. ValueError for what is none.

    >>> from minidist.text import Bytes, tokenizer
    >>> tokenizer(Bytes().state()).encode("ab")
    [97, 98]
    """
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

"""Tokens: every text comes back, the end stands in none, and what was learned is kept as text."""

import sys

import pytest

from minidist.text import BPE, Bytes, documents, tokenizer

HARD = ["", " a  b\n\tc ", "naïve ü 漢字 🎉", "<end> and </s>\0", "def f(x): return x + 1\n" * 3]


@pytest.fixture(scope="module")
def pairs():
    return BPE.learn(documents()[:40], 600)


def test_every_text_comes_back(pairs):
    for tokens in (Bytes(), pairs):
        for text in HARD:
            ids = tokens.encode(text)
            assert (
                tokens.decode(ids) == text
                and tokens.end not in ids
                and all(0 <= i < tokens.size for i in ids)
            )
            assert tokens.decode([*ids, tokens.end, *tokens.encode("another")]) == text


def test_pairs_are_shorter_and_always_the_same(pairs):
    text = documents()[41]
    assert len(pairs.encode(text)) < 0.6 * len(Bytes().encode(text))
    assert pairs.size == 600 and BPE.learn(documents()[:40], 600).state() == pairs.state()


def test_saved_as_text(pairs):
    for tokens in (Bytes(), pairs):
        again = tokenizer(tokens.state())
        assert type(again) is type(tokens) and again.size == tokens.size
        assert again.encode(HARD[2]) == tokens.encode(HARD[2])


def test_half_a_character():
    assert Bytes().decode(Bytes().encode("aü")[:-1]) == "a�"


def test_what_is_refused(monkeypatch):
    with pytest.raises(
        ValueError, match="100 tokens are fewer than the 256 bytes and one for the end"
    ):
        BPE.learn(["a"], 100)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"minidist\[train\]"):
        BPE.learn(["a"], 300)

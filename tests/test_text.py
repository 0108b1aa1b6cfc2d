"""Texts, their pieces and their tokens: where they come from, what comes back, and what is refused."""

import sys

import pytest
import torch

from minidist.text import BPE, Bytes, Samples, documents, packed, split, tokenizer


def test_the_reference():
    found = documents()
    assert len(found) > 50 and found == documents() and any("for_stmt" in text for text in found)


def test_files_and_folders_by_name(tmp_path):
    for name, text in (("b.txt", "two"), ("a/z.py", "one, ü"), ("c.md", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert documents([tmp_path]) == ["one, ü", "two", ""]
    assert documents([tmp_path / "b.txt", tmp_path / "a"]) == ["two", "one, ü"]


def test_documents_what_is_refused(tmp_path):
    (tmp_path / "image").write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match="image is not a text in UTF-8: byte 2 is 0xff"):
        documents([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="0 files below"):
        documents([tmp_path / "empty"])
    (tmp_path / "image").write_text("")
    with pytest.raises(ValueError, match="1 documents with 0 characters"):
        documents([tmp_path / "image"])
    with pytest.raises(FileNotFoundError):
        documents([tmp_path / "nowhere"])


# ------------------------------------------------------------
# Pieces of a text: each once an epoch, the same whatever the batch, found again from one number.


TEXT = torch.arange(103, dtype=torch.int32)  # a token says where it stands


def test_packed():
    tokens = packed(["ab", "", "c"], Bytes())
    assert tokens.tolist() == [97, 98, 256, 256, 99, 256] and tokens.dtype == torch.int32


def test_an_epoch_has_each_piece_once():
    samples = Samples(TEXT, 10)
    assert samples.epoch == 10
    starts = []
    for epoch in range(20):
        x, y = samples(10 * epoch, 10)
        assert x.dtype == torch.int64 and x.shape == (10, 10) and torch.equal(y, x + 1)
        assert len(set(x.flatten().tolist())) == 100 and y.max() < 103
        starts.append(x[:, 0].tolist())
    assert len({tuple(s) for s in starts}) == 20 and {min(s) for s in starts} == {0, 1, 2}


def test_a_sample_is_the_same_in_every_batch_and_across_epochs():
    whole = Samples(TEXT, 7, seed=3)(0, 40)[0]
    again = Samples(TEXT, 7, seed=3)
    assert torch.equal(torch.cat([again(seen, 8)[0] for seen in range(0, 40, 8)]), whole)
    assert torch.equal(again(33, 5)[0], whole[33:38]) and torch.equal(again(2, 1)[0], whole[2:3])
    assert not torch.equal(Samples(TEXT, 7, seed=4)(0, 40)[0], whole)
    assert [part.shape for part in again(3, 0)] == [(0, 7), (0, 7)]


def test_split():
    train, test = split(TEXT, 0.1)
    assert (
        len(train) == 93
        and torch.equal(torch.cat([train, test]), TEXT)
        and len(split(TEXT, 0)[1]) == 0
    )
    with pytest.raises(ValueError, match="from 0 to below 1, not 1"):
        split(TEXT, 1)


@pytest.mark.parametrize(("tokens", "length"), [(10, 10), (0, 1), (5, 0)])
def test_a_text_that_is_too_short(tokens, length):
    with pytest.raises(ValueError, match=f"{tokens} tokens have no piece of {length}"):
        Samples(TEXT[:tokens], length)


# ------------------------------------------------------------
# Tokens: every text comes back, the end stands in none, and what was learned is kept as text.


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


def test_tokens_what_is_refused(monkeypatch):
    with pytest.raises(
        ValueError, match="100 tokens are fewer than the 256 bytes and one for the end"
    ):
        BPE.learn(["a"], 100)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"minidist\[train\]"):
        BPE.learn(["a"], 300)

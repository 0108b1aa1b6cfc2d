"""The exercise of lesson 12, Vocabulary parallel, about numbers: what a split saves, and what it sends."""

from __future__ import annotations

from ..exam import ask
from ..prediction import ALL, HALF, NUMBERS, Prediction


class PredictVocabulary(Prediction):
    name = "predict_vocabulary"


def vocabulary_slips(n: int, vocab: int, hidden: int) -> tuple[dict, dict]:
    """Memory and traffic of a vocabulary in float32 on n ranks, and the usual slips."""
    mib, ring = vocab * hidden * 4 / 2**20, 2 * (n - 1) / n
    gathered = (n - 1) / n * vocab * 4
    reduced = ring * 3 * 4
    looked = ring * hidden * 4
    values = {
        "saved": mib * (n - 1) / n,
        "gathered": gathered,
        "reduced": reduced,
        "doubled": reduced,
        "messages": 4 * (n - 1),
        "looked_up": looked,
    }
    slips = {
        "saved": {
            mib: "That is the whole matrix: a rank keeps its part of it.",
            mib / n: "That is what a rank keeps: what does it save?",
            mib * (n - 1) / n * 2**20 / 1e6: "Those are MB = 10⁶: a MiB is 2²⁰ bytes.",
            2 * mib * (n - 1) / n: "With the gradients, yes: the weights alone are asked for.",
            mib * (n - 1) / n / 4: NUMBERS,
        },
        "gathered": {
            vocab * 4: "A rank has 1/n of the logits already.",
            gathered / 4: NUMBERS,
            vocab * 4 / n: "That is one message of n−1: the ring passes on what it receives.",
            2 * gathered: "That is an all-reduce: an all-gather is one half of it.",
            gathered * n: ALL,
        },
        "reduced": {
            reduced / 2: HALF,
            reduced / 4: NUMBERS,
            12: "Nearly: the factor is 2(n−1)/n.",
            24: "Nearly: the factor is 2(n−1)/n.",
            reduced / 3: "That is one number a token: there are three.",
            reduced * n: ALL,
            12 * (n - 1): "That is an all-gather of the three: all-reduces are asked for.",
        },
        "doubled": {
            2 * reduced: "Of twice as many words the rank sends still three numbers: m, s and x_t.",
            reduced / 4: NUMBERS,
        },
        "messages": {
            2 * (n - 1): "That is one all-reduce: there are two, since s needs m first.",
            6 * (n - 1): "s and x_t travel in one: that leaves two all-reduces.",
            2: "An all-reduce is 2(n−1) messages a rank.",
            4 * n: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            4 * (n - 1) * n: ALL,
        },
        "looked_up": {
            looked / 4: NUMBERS,
            looked / 2: HALF,
            hidden * 4: "Nearly: the factor is 2(n−1)/n.",
            2 * hidden * 4: "Nearly: the factor is 2(n−1)/n.",
            looked * n: ALL,
            reduced: "Those are the loss's: a look-up adds up rows of H numbers.",
        },
    }
    return values, slips


def predict_vocabulary(saved, gathered, reduced, doubled, messages, looked_up) -> None:
    """64,000 words, H = 5,120, float32, 8 ranks, rings. Bytes are those that one rank sends for one token.

    saved: MiB of weights that a rank does not keep.  gathered: bytes to gather the logits.
    reduced: bytes of three all-reduces.  doubled: the same with 128,000 words.
    messages: of a rank, where s and x_t share an all-reduce.  looked_up: bytes of a look-up's all-reduce.
    """
    values, slips = vocabulary_slips(n=8, vocab=64_000, hidden=5_120)
    exam = PredictVocabulary(list(values), values, slips, "Memory, bytes and messages, within 1 %.")
    ask(exam, saved, gathered, reduced, doubled, messages, looked_up)

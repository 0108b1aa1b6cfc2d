"""The exercise of lesson 01, The walls, about the memory wall: how large a model fits on a card.

Parameters and activations of a transformer layer: 12h² + 13h, and sbh(34 + 5as/h) bytes (Korthikanti et al. 2022,
section 4.1).
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, ask
from . import oracle
from .figures import Sheet, whole


class LargestModel(Sheet):
    name = "largest_model"
    right = "14 cards and shapes: to the byte, one byte less, the vocabulary alone too large, not one layer."
    kinds = {
        "between": "some bytes to spare",
        "exact": "a card that is filled to the last byte",
        "less": "one byte less than the next layer needs",
        "none": "a vocabulary that does not fit",
        "empty": "not one layer fits",
        "many": "more layers than a float can count to the byte",
        "long": "a long sequence",
    }
    cases = tuple(Case(1, words, kind) for kind, words in (*kinds.items(), *kinds.items()))

    def draw(self, case, rng):
        def one(low, high):
            return int(torch.randint(low, high, (), generator=rng))

        heads = one(2, 17)
        batch = one(1, 9)
        seq = one(64, 2049)
        hidden = heads * one(4, 33) * 2
        vocab = one(1000, 60_000)
        seq = seq * 8 if case.given == "long" else seq
        fixed, each = oracle.once(vocab, seq, hidden), sum(oracle.layer(seq, batch, hidden, heads))
        layers = one(*{"many": (10**9, 10**10), "between": (2000, 5000)}.get(case.given, (3, 90)))
        spare = {
            "exact": 0,
            "less": -1,
            "many": -1,
            "none": -fixed - layers * each + one(1, fixed),
            "empty": -layers * each + one(0, each),
        }.get(case.given, one(1, each))
        return [(fixed + layers * each + spare, batch, seq, hidden, heads, vocab)]

    def run(self, comm: Comm, yours, *given):
        return yours(*given)

    def judge(self, case, args, outcome):
        memory, batch, seq, hidden, heads, vocab = args[0]
        want = oracle.layers(*args[0])
        name = (
            f"for {memory:,} bytes, batch {batch}, seq {seq}, hidden {hidden}, heads {heads}, vocab {vocab}, "
            "the result"
        )
        whole(outcome.results[0], want, name, _looks(want, *args[0]))


def _looks(want: int, memory: int, b: int, s: int, h: int, a: int, v: int) -> dict[str, float]:
    fixed, (states, kept) = oracle.once(v, s, h), oracle.layer(s, b, h, a)
    room = memory - fixed
    each = states + kept
    one = kept // b
    parameters = states // 16
    return {
        "Below zero: the vocabulary alone does not fit. Say 0.": room // each,
        "Whole layers only, and as an integer: //.": room / each,
        "The vocabulary is not in it: (V + s)·h more parameters.": memory // each,
        "The vocabulary's parameters have 16 bytes each, too.": (memory - fixed // 16) // each,
        "There are s position vectors beside the V words.": (memory - 16 * v * h) // each,
        "The activations are not in it: every layer keeps them until its backward.": room // states,
        "The activations are not in it, nor the vocabulary.": memory // states,
        "The model states are not in it.": room // kept,
        "Activations are taken for one layer only: each layer keeps its own.": (room - kept)
        // states,
        "Activations grow with the batch: b samples.": room // (states + one),
        "5as/h is not in it: it, too, is times s·b·h.": room // (states + 34 * s * b * h),
        "5as/h is outside the bracket: it, too, is times s·b·h.": room
        // (states + 34 * s * b * h + 5 * a * s // h),
        "Is 5as/h rounded? Multiply first: 34sbh + 5as²b.": room
        // (states + s * b * h * (34 + 5 * a * s // h)),
        "sbh(…) is in bytes already: each number's 2 are in it.": room // (states + 2 * kept),
        "A layer has 12h² + 13h parameters: biases and norms, too.": (memory - fixed)
        // (16 * 12 * h * h + kept),
        "Weights only? With gradients and Adam it is 16 bytes a parameter.": (memory - fixed // 8)
        // (2 * parameters + kept),
        "Weights only? With gradients and Adam it is 16 bytes a parameter: the layers', too.": room
        // (2 * parameters + kept),
        "Those are parameters, not bytes: 16 bytes each.": room // (parameters + kept),
        "12 are the optimizer's: with weights and gradients it is 16 bytes a parameter.": (
            memory - fixed // 16 * 12
        )
        // (12 * parameters + kept),
        "GB and GiB mixed? `memory` is in bytes already.": int(room / each * 2**30 / 10**9),
        "That is rounded up, or divided as floats: the last layer does not fit.": want + 1,
        "One more layer fits, to the byte.": want - 1,
        "0 is for a card on which not one layer fits.": 0,
        "It is the parameters that fit: whole layers are asked for.": want * parameters,
    }


def largest_model(yours) -> None:
    """`largest_model(memory, batch, seq, hidden, heads, vocab)`: transformer layers that fit."""
    ask(LargestModel(), yours)

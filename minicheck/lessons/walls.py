"""Graders of lesson 01: memory and FLOPs of a training step, and which usual slip gives a wrong number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import accumulate, pairwise, product
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from minidist.comm.meter import Charge, Ledger, Watch
from minidist.models import mlp

from ..exam import (
    ROUNDED,
    Case,
    Costly,
    Prediction,
    Report,
    Solo,
    Wrong,
    alone,
    attempt,
    bare,
    close,
    entries,
    first_near,
    holds,
    integer,
    near,
    normal,
    real,
    refusal,
    shuffled,
    table,
    typed,
    uniform,
    unpacked,
)
from ..oracles import walls as oracle

# ------------------------------------------------------------
# Is a number what it should be? If not: which usual slip gives exactly this number?
#
# Bytes are integers and compared exactly; times and fractions are floats, compared within 1e-9.


PREFIXES = {1e3: "kB", 1e6: "MB", 1e9: "GB", 2.0**10: "KiB", 2.0**20: "MiB", 2.0**30: "GiB"}


class Sheet(Solo):
    """An exercise on one machine; the library's calculators and its meter are refused."""

    forbidden = ("minidist.study", "minicheck.oracles.walls")


Looks = (
    Mapping[str, float] | str
)  # what a wrong number may come from: the number that this slip gives


def whole(got, want: int, name: str, looks: Looks) -> None:
    """Raise Wrong unless `got` is the integer `want`."""

    def mistakes(got):
        unit = next(
            (word for size, word in PREFIXES.items() if want and near(real(got) * size, want)), ""
        )
        return f"Is it in {unit}? Bytes are asked for." if unit else looks

    got = bare(got)
    close(got, want, name, mistakes, slack=0)
    if isinstance(got, float):
        raise Wrong(
            f"{name} is the float {got!r}: it should be an integer. Floats are exact only up to 2^53: "
            "calculate with integers, and divide with //."
        )


# ------------------------------------------------------------
# Allocations and frees: the peak, when it is, and what stays.


Event = tuple[str, int]
KINDS = {
    "step": "a training step of some layers",
    "random": "allocations and frees at random",
    "tie": "a peak that is reached twice",
    "empty": "everything is freed in the end",
    "again": "names that come back with another size",
    "one": "one allocation",
    "long": "many events",
    "huge": "more bytes than a float can count",
}


class Peak(Sheet):
    """`peak(events)`: the most bytes that live at once, the event that first reaches it, what is left at the end."""

    name = "peak"
    right = "10 lists of events: training steps, ties, names that come back, nothing left, and lengths drawn at random."
    cases = tuple(
        Case(1, words, kind) for kind, words in (*KINDS.items(), *tuple(KINDS.items())[:2])
    )

    def draw(self, case, rng):
        return [(DRAWN[case.given](rng),)]

    returns, given = ("the peak", "when", "what is left"), ("the list of events",)

    def wants(self, case, args):
        events = args[0][0]
        live = oracle.live(events)
        return [
            {
                "the peak": max(live),
                "when": live.index(max(live)),
                "what is left": oracle.left(events),
            }
        ]

    def value(self, case, args, rank, name, got, want):
        events = args[0][0]
        if name == "what is left":
            return _left(got, want, events)
        live = oracle.live(events)
        whole(got, want, name, _peaks(events, live) if name == "the peak" else _whens(live))


def _peaks(events, live):
    sizes = [nbytes for _, nbytes in events]
    return {
        "That is everything that was ever allocated, but what is freed makes room.": sum(
            s for s in sizes if s > 0
        ),
        "That is the largest single tensor: the peak is the most that is live at one time.": max(
            sizes
        ),
        "That is what is left at the end, not the most there ever was.": live[-1],
        "Are frees added instead of subtracted?": max(accumulate(map(abs, sizes))),
        "That is a number of live tensors: their bytes are asked for.": max(
            accumulate(1 if s > 0 else -1 for s in sizes)
        ),
    }


def _whens(live):
    most = max(live)
    last = len(live) - 1 - live[::-1].index(most)
    return {
        "The peak is reached again there: the first time is asked for.": last,
        "Events are counted from 0.": live.index(most) + 1,
        "That is the peak itself: the index of the event is asked for.": most,
    }


def _left(got, want, events):
    if not isinstance(got, dict) and got in (
        sum(want.values()),
        list(want),
        list(want.values()),
    ):
        raise Wrong("what is left should be a dict that leads from each name to its bytes.")
    typed(got, dict, "what is left", "a dict from names to bytes")
    for name in got:
        if not isinstance(name, str):
            raise Wrong(
                f"what is left has the key {name!r}: the names should be the keys, and the bytes the values."
            )
        if name not in want:
            zero = "Its entry is 0: leave it out." if got[name] == 0 else "It was freed."
            raise Wrong(f"what is left has {name!r}, which is not live at the end. {zero}")
    for name, nbytes in want.items():
        sizes = [s for n, s in events if n == name and s > 0]
        if name not in got:
            again = "It was freed, and came back." if len(sizes) > 1 else "It was never freed."
            raise Wrong(f"what is left lacks {name!r}. {again}")
        looks = {
            "That is the size that it had the first time.": sizes[0],
            "That is the largest size that it ever had.": max(sizes),
            "That is the sum of all its sizes, but it was freed in between.": sum(sizes),
        }
        whole(got[name], nbytes, f"what is left of {name!r}", looks)


# ------------------------------------------------------------------------------------------------ what is drawn
def _bytes(rng):
    return 4 * integer(rng, 1, 10**6)


def _step(rng):
    """Weights, then outputs in forward; in backward each output is freed as its gradient comes; then momentum."""
    layers = integer(rng, 3, 7)
    w, y = ([_bytes(rng) for _ in range(layers)] for _ in range(2))
    events = [(f"w{i}", w[i]) for i in range(layers)] + [(f"y{i}", y[i]) for i in range(layers)]
    for i in reversed(range(layers)):
        events += [(f"g{i}", w[i]), (f"y{i}", -y[i])]
    return [
        *events,
        ("buffer", max(w)),
        *[(f"m{i}", w[i]) for i in range(layers)],
        ("buffer", -max(w)),
    ]


def _random(rng, count=0):
    live: dict[str, int] = {}
    events = []
    for i in range(count or integer(rng, 12, 30)):
        names = sorted(live)
        if len(names) > 3 and integer(rng, 0, 2):
            name = names[integer(rng, 0, len(names))]
            events.append((name, -live.pop(name)))
        else:
            live[f"t{i}"] = _bytes(rng)
            events.append((f"t{i}", live[f"t{i}"]))
    return events


def spelled(events: str, sizes: dict[str, int]) -> list[Event]:
    """Events from their names: "a b -a"."""
    names = events.split()
    return [(n.strip("-"), -sizes[n[1:]] if n[0] == "-" else sizes[n]) for n in names]


def _tie(rng):
    a, b, c = (_bytes(rng) for _ in range(3))
    return spelled("a b c -b d -d e -c", {"a": a, "b": b + 4, "c": c, "d": b, "e": b + 4})


def _empty(rng):
    return spelled("a b -a c -c -b", {name: _bytes(rng) for name in "abc"})


def _again(rng):
    """A loop that names its tensors alike in each turn; the last turn's stay, neither their largest nor their smallest."""
    names = ("x", "h", "keep")
    sizes = []
    for _ in names:
        small, middle, large = sorted(_bytes(rng) + 10**7 * i for i in range(3))
        sizes.append([small, large, middle])
    turns = [spelled("x h keep -h -x -keep", dict(zip(names, turn))) for turn in zip(*sizes)]
    return [("w", _bytes(rng)), *turns[0], *turns[1], *turns[2][:4]]


def _huge(rng):
    """What is never freed is odd: so are all sums, and no float is."""
    events = [(name, (nbytes << 34) + nbytes) for name, nbytes in _step(rng)]
    name, nbytes = events[0]
    return [(name, nbytes + 1), *events[1:]]


DRAWN = {
    "step": _step,
    "random": _random,
    "tie": _tie,
    "empty": _empty,
    "again": _again,
    "one": lambda rng: [("w", _bytes(rng))],
    "long": lambda rng: _random(rng, 400),
    "huge": _huge,
}


# ------------------------------------------------------------
# Model states: parameters, gradients, optimizer states, byte by byte.
#
# The counts are those of Rajbhandari et al. 2020 (ZeRO), section 3.1: Adam in mixed precision has 2 + 2 + 12 bytes a
# parameter, of which 12 are the fp32 copy, the momentum and the variance.


STATES = ("parameters", "gradients", "optimizer states")
# words that are in no table, and look as if they were
UNKNOWN_WORDS = (
    *(("fp32", word) for word in ("lion", "adamw", "Adam", "sg")),
    *((word, "adam") for word in ("int8", "bf16", "fp8", "FP16")),
)


class ModelStates(Report):
    """`model_states(trained, frozen, optimizer, precision)`: bytes of parameters, gradients and optimizer states."""

    name = "model_states"
    right = (
        "3 optimizers in 2 precisions, with none, some or all parameters frozen, and more of them than a float can count; "
        "unknown words are refused."
    )
    cases = tuple(
        Case(1, f"{optimizer}, {precision}", (optimizer, precision, some))
        for some in ("trained", "both", "frozen", "large")
        for optimizer, precision in product(oracle.KEPT, oracle.WEIGHT)
    ) + tuple(
        Case(1, f"{optimizer}, {precision}", (optimizer, precision, "trained"))
        for precision, optimizer in UNKNOWN_WORDS
    )

    def draw(self, case, rng):
        optimizer, precision, some = case.given
        most = 10**17 if some == "large" else 10**6
        trained, frozen = (1 + 2 * integer(rng, 10, most) for _ in range(2))
        trained, frozen = (0 if some == "frozen" else trained), (0 if some == "trained" else frozen)
        return [(trained, frozen, optimizer, precision)]

    def run(self, comm, yours, trained, frozen, optimizer, precision):
        due = (precision, optimizer) in UNKNOWN_WORDS
        return attempt(due, yours, trained, frozen, optimizer, precision)

    forbidden = Sheet.forbidden

    def check(self, case, got, trained, frozen, optimizer, precision):
        for word, known in ((optimizer, oracle.KEPT), (precision, oracle.WEIGHT)):
            if word not in known:
                why = f"there is no {word!r} in the table, so any number would be made up"
                return refusal(got, [word], "", why)
        entries(got["value"], STATES, "the result")
        want = oracle.states(trained, frozen, optimizer, precision)
        for part in STATES:
            name = f"{part!r}, of {trained:,} trained and {frozen:,} frozen parameters,"
            whole(
                got["value"][part],
                want[part],
                name,
                _looks_of_states(part, trained, frozen, optimizer, precision),
            )


def _looks_of_states(part, trained, frozen, optimizer, precision):
    every, weight = trained + frozen, oracle.WEIGHT[precision]
    kept, mixed = oracle.KEPT[optimizer], 4 * (precision == "fp16")
    numbers = "That is how many numbers there are: how many bytes does each of them have?"
    if part == "parameters":
        return {
            "What is frozen is in memory, too.": weight * trained,
            numbers: every,
            "Weights in fp16 have 2 bytes. Their fp32 copy belongs to the optimizer.": 4 * every,
            "Do not count the fp32 copy here: it belongs to the optimizer.": 6 * every,
            "Weights in fp32 have 4 bytes.": 2 * every,
        }
    if part == "gradients":
        return {
            "What is frozen has no gradient.": weight * every,
            numbers: trained,
            "Gradients are in fp16 like the weights, with 2 bytes each.": 4 * trained,
        }
    return {
        "In fp32 the weights need no second copy.": (kept + 4) * trained if not mixed else -1,
        "The fp32 copy of the weights is missing, with 4 bytes for each parameter that is trained.": kept
        * trained,
        "What is frozen is never updated, so it has no optimizer states.": (kept + mixed) * every,
        "Optimizer states are in fp32 even if the weights are in fp16: sums of small steps need the digits.": (
            kept // 2 + mixed
        )
        * trained,
        numbers: (kept + mixed) // 4 * trained,
    }


# ------------------------------------------------------------
# Activations: what an MLP's forward keeps for its backward.
#
# The right number is not calculated here: autograd is asked, on tensors without data, what it saves.


# hidden layers, bytes a number, frozen layers
SHAPES = (
    *((3, 4, 0), (1, 4, 0), (2, 2, 0), (0, 2, 0), (5, 8, 0)),
    *((3, 4, 1), (2, 2, 2), (4, 8, 2), (1, 4, 1), (1, 2, 2), (3, 8, 4)),
)


class ActivationBytes(Sheet):
    """`activation_bytes(batch, sizes, itemsize, activation, frozen)`: bytes that an MLP's forward keeps for its backward."""

    name = "activation_bytes"
    right = (
        "24 MLPs with 0 to 5 hidden layers, with none, some or all layers frozen, with relu and gelu, and 2, 4 and 8 bytes "
        "per number: what autograd saves, to the byte."
    )
    cases = tuple(
        Case(
            1,
            f"{hidden} hidden layer{'s' * (hidden != 1)}, {word}, {itemsize} bytes per number, {frozen} frozen",
            (hidden, word, itemsize, frozen),
        )
        for (hidden, itemsize, frozen), word in product(SHAPES, oracle.ACTIVATIONS)
    ) + (
        Case(1, "3 hidden layers of one size", (3, "gelu", 2, 0)),
        Case(1, "more bytes than a float can count", (3, "relu", 4, 1)),
    )

    def draw(self, case, rng):
        hidden, word, itemsize, frozen = case.given
        batch, *sizes = (2 + size for size in shuffled(rng, 3000)[: hidden + 3])
        if case == self.cases[-2]:
            sizes[1:-1] = [sizes[1]] * hidden
        if case == self.cases[-1]:
            batch = (1 << 45) + 2 * batch + 1
            sizes[-1] = sizes[-1] | 1
        return [(batch, sizes, itemsize, word, frozen)]

    given = ("", "`sizes`")

    def wants(self, case, args):
        return [{"the result": oracle.kept(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        batch, sizes, *_, frozen = args[0]
        what = f"for a batch of {batch}, sizes {sizes} and {frozen} frozen, the result"
        whole(got, want, what, _looks_of_activations(want, *args[0]))


def _looks_of_activations(want, batch, sizes, itemsize, word, frozen):
    if frozen == len(sizes) - 1:
        return "All layers are frozen, so there is no backward pass, and nothing is kept."
    row = batch * itemsize
    hidden = row * sum(sizes[1 + frozen : -1])
    below = row * sizes[frozen] if frozen else 0  # what comes into the first layer that learns
    out = row * sizes[-1]
    first = row * sizes[0]
    weights = itemsize * sum(a * b + b for a, b in pairwise(sizes))
    once, twice = below + hidden + out, below + 2 * hidden + out
    all_learn = row * ((1 + (word == "gelu")) * sum(sizes[1:-1]) + sizes[-1])
    slips = {
        "The backward pass goes no further than to the first layer that learns: in front of it nothing is kept but this layer's input.": all_learn,
        "The first layer that learns keeps its input, even if a frozen layer has computed it.": want
        - below,
        "In front of the first layer that learns nobody needs gelu's derivative, so gelu's input is not kept.": want
        + below * (word == "gelu"),
        "A number has `itemsize` bytes, which are 4 only in fp32.": want // itemsize * 4,
        "Two layers of the same size have two outputs, and each of them counts.": row
        * ((1 + (word == "gelu")) * sum(set(sizes[1:-1])) + sizes[-1]),
        "gelu keeps its input, and the next layer keeps gelu's output: two tensors for each hidden layer.": once,
        "relu keeps its output, which is the next layer's input: one tensor, not two.": twice,
        "The last layer's output is missing: mse_loss keeps it.": want - out,
        "The last layer has no activation function behind it, so its output is kept only once.": want
        + out * (word == "gelu"),
        "The input x is the batch itself and is not counted.": want + first,
        "x and y are the batch itself and are not counted.": want + first + out,
        "The input x is not counted, and mse_loss keeps the last layer's output.": want
        + first
        - out,
        "Weights are model states, not activations.": want + weights,
        "That is how many numbers are kept: multiply by the bytes of each.": want // itemsize,
        "That is for one sample: the batch has more.": want // batch,
        "Are those the weights? They are model states, not activations.": weights,
        "Is that only the largest layer? All layers keep something.": row * max(sizes[1:]),
        "The last hidden layer is missing.": want - row * (sizes[-2] if len(sizes) > 2 else 0),
        "Are the gradients of outputs counted, too? They come one at a time in the backward pass, and are not kept.": 2
        * want,
    }
    return {text: value for text, value in slips.items() if value != want}


# ------------------------------------------------------------
# Numbers: sums from the literature with errors, and a step foretold.
#
# The claims stand in the assignment; `oracle.claims` calculates each again from what it says of itself. G is published
# in Rajbhandari et al. 2020 (ZeRO), section 6.1, and C in a write-up that `minidist/study/figures/claims_checked.csv`
# lists; the slips of the others are like theirs.


CLAIMS = {
    "A": 3.4,
    "B": 11.13,
    "C": 1250.0,
    "D": 140.5,
    "E": 4.28,
    "F": 32.0,
    "G": 33.0,
    "H": 6.67,
}


CLAIMED = 0.003  # the smallest of the errors is 1.5 %


class FindErrors(Sheet):
    """`errors`: a dict with each wrong claim's letter and the figure that it should have, in the claim's unit."""

    name, functions = "find_errors", False
    cases = (Case(1, "your list"),)
    right = "Those claims are wrong, and the others are right."

    def draw(self, case, rng):
        return [()]

    def run(self, comm, errors):
        return errors

    def judge(self, case, args, outcome):
        got, figures = outcome.results[0], oracle.claims()
        if got is None:
            raise Wrong("errors is not set yet.")
        typed(got, dict, "errors", "a dict from letters to the right numbers")
        strange = [letter for letter in got if letter not in CLAIMS]
        if strange:
            raise Wrong(f"there is no claim {strange[0]!r}: the letters are A to H, as strings.")
        wrong = [letter for letter in CLAIMS if not near(CLAIMS[letter], figures[letter], CLAIMED)]
        for letter, figure in got.items():
            if letter not in wrong:
                raise Wrong(f"claim {letter} holds: {CLAIMS[letter]:g} is right.")
            figure = bare(figure)
            typed(figure, int | float, f"the number for {letter}", "a number in the claim's unit")
            if not near(figure, figures[letter], CLAIMED):
                slip = first_near(figure, oracle.claim_slips()[letter], CLAIMED)
                size = "large" if figure > figures[letter] else "small"
                raise Wrong(
                    f"claim {letter} is wrong, but {figure:g} is too {size}. {slip}".rstrip()
                )
        if len(got) < len(wrong):
            raise Wrong(
                f"what you name is right, but {len(wrong)} claims are wrong, and you name {len(got)}. Calculate "
                "each in bytes, and then divide by the unit that it names."
            )


def predict_memory(batch=2000):
    """A step of an MLP 1500 → 2500 → 2000 → 1000, GELU, fp32, Adam, the first layer frozen, 2,000 samples: within 1 %.

    stays: bytes that are live after the step.  kept: bytes of activations at the end of forward.
    backward: FLOPs of the backward.  equal: the batch whose activations take as much as what stays.
    """
    return oracle.step([1500, 2500, 2000, 1000], batch)


PREDICTED = Prediction(
    predict_memory,
    "Bytes, FLOPs and the batch, within 1 %.",
    {"batch": ("batches of {:,} samples", (1000, 3000, 4000, 5000, 6000, 8000))},
)


# ------------------------------------------------------------
# The memory wall: how large a model fits on a card.
#
# Parameters and activations of a transformer layer: 12h² + 13h, and sbh(34 + 5as/h) bytes (Korthikanti et al. 2022,
# section 4.1).


class LargestModel(Sheet):
    """`largest_model(memory, batch, seq, hidden, heads, vocab)`: transformer layers that fit."""

    name = "largest_model"
    right = (
        "24 cards and shapes, with the peak at the end of the forward pass or after the backward pass: cards that are filled to "
        "the byte, cards with one byte too few, and cards on which not even the vocabulary or one layer fits."
    )
    kinds = (
        ("some bytes to spare", "between"),
        ("a card that is filled to the last byte", "exact"),
        ("one byte less than the next layer needs", "less"),
        ("a vocabulary that does not fit", "none"),
        ("not one layer fits", "empty"),
        ("a long sequence", "long"),
    )
    # the peak is that of the gradients' buffer
    short = (
        ("short sequences", "between short"),
        ("short sequences, a card that is filled to the last byte", "exact short"),
        ("short sequences, one byte less than the next layer needs", "less short"),
    )
    # a floor of floats is right for a third of the wide ones
    wide = ("layers with more bytes than a float can count", "wide")
    cases = alone([*kinds, *kinds, *short, *short, *[wide] * 6])

    def draw(self, case, rng):
        one = partial(integer, rng)
        kind, _, short = case.given.partition(" ")
        heads = one(2, 17)
        batch = one(1, 4) if short else one(1, 9)
        seq = one(16, 65) if short else one(64, 2049)
        width = (
            (10**7, 4 * 10**7)
            if kind == "wide"
            else (1000, 4000)
            if short
            else (16 * heads, 66 * heads)
        )
        hidden = one(*width) // (2 * heads) * 2 * heads
        vocab = one(10**9, 10**10) if kind == "none" else one(1000, 60_000)
        seq = seq * 8 if kind == "long" else seq
        shape = (batch, seq, hidden, heads, vocab)
        layers = one(*{"between": (2000, 5000), "wide": (3, 15)}.get(kind, (3, 90)))
        least, more = oracle.needs(0, *shape), oracle.needs(1, *shape)
        filled, next_one = oracle.needs(layers, *shape), oracle.needs(layers + 1, *shape)
        memory = {
            "exact": filled,
            "less": filled - 1,
            "wide": filled - 1,
            "none": one(1, least),
            "empty": one(least, more),
        }.get(kind, one(filled + 1, next_one))
        return [(memory, *shape)]

    def wants(self, case, args):
        return [{"the result": oracle.layers(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        memory, batch, seq, hidden, heads, vocab = args[0]
        given = f"batch {batch}, seq {seq}, hidden {hidden}, heads {heads}, vocab {vocab}"
        looks = _looks_of_size(want, *args[0])
        whole(got, want, f"for {memory:,} bytes, {given}, the result", looks)


def _looks_of_size(want, memory, b, s, h, a, v):
    fixed, (states, kept) = oracle.once(v, s, h), oracle.layer(s, b, h, a)
    once, layer = fixed // 16, states // 16
    room = memory - fixed
    attention = 5 * a * s * s * b

    def fits(kept=kept, once=once, layer=layer, forward=16, after=20):
        """Layers that fit, if a layer keeps that much, and a parameter has so many bytes at the two moments."""
        return min(
            (memory - forward * once) // (forward * layer + kept),
            (memory - after * once) // (after * layer),
        )

    in_forward = room // (states + kept)
    together = (memory - 20 * once) // (20 * layer + kept)
    with_buffer = (memory - 20 * once) // (20 * layer)
    return {
        "It is below zero, because not even the vocabulary fits: return 0.": min(
            in_forward, with_buffer
        ),
        "A vocabulary that does not fit leaves no room for layers: return 0.": abs(
            min(in_forward, with_buffer)
        ),
        "Only whole layers count, and the result is an integer: divide with //.": min(
            room / (states + kept), (memory - 20 * once) / (20 * layer)
        ),
        "That is one layer too many. Is it rounded up, or divided as floats? Or is a part left out or rounded: (V + s)·h, 13h, 5as/h?": want
        + 1,
        "Is 5as/h rounded? Multiply first: 34sbh + 5as²b.": max(
            0, fits(kept=s * b * h * (34 + 5 * a * s // h))
        ),
        "5as/h is missing: it is multiplied by s·b·h, as the 34 is.": max(
            0, fits(kept=kept - attention)
        ),
        "5as/h stands outside the bracket: it is multiplied by s·b·h, as the 34 is.": max(
            0, fits(kept=kept - attention + 5 * a * s // h)
        ),
        "A layer has 12h² + 13h parameters: biases and norms count, too.": max(
            0, fits(layer=12 * h * h)
        ),
        "Positions have vectors, too: (V + s)·h.": max(0, fits(once=v * h)),
        "The vocabulary is missing: it has (V + s)·h parameters more.": fits(once=0),
        "The buffer is missing: all gradients are copied into it in fp32, which takes 4 bytes per parameter.": max(
            0, in_forward
        ),
        "One more layer fits: count to the byte.": want - 1,
        "The buffer comes when the activations are gone: the two are never there together.": max(
            0, together
        ),
        "That is how many fit when the buffer is there. Fewer fit at the end of the forward pass, where each layer keeps s·b·h·(34 + 5as/h) bytes.": max(
            0, with_buffer
        ),
        "The model must fit at both moments, and with so many layers it fits at only one of them.": max(
            in_forward, with_buffer
        ),
        "The buffer is in fp32, with 4 bytes per parameter.": max(0, fits(after=18)),
        "The vocabulary's gradients are in the buffer, too.": max(
            0, min(in_forward, room // (20 * layer))
        ),
        "The model states are missing.": room // kept,
        "Those are the activations of only one layer: each layer keeps its own.": max(
            0, min((room - kept) // states, with_buffer)
        ),
        "Those are the activations of one sample: the batch has b of them.": max(
            0, fits(kept=kept // b)
        ),
        "Are those only the weights? With its gradient and Adam's numbers a parameter takes 16 bytes.": max(
            0, fits(forward=2, after=6)
        ),
        "0 is right only for a card on which not even one layer fits.": 0,
        "That is how many parameters fit: the number of layers is asked for.": want * layer,
    }


# ------------------------------------------------------------
# The compute wall: what a run costs.
#
# FLOPs of a run: 6ΨT, or 8ΨT with full recomputation (Narayanan et al. 2021, section 5.1, without attention); MFU and
# HFU as Chowdhery et al. 2022, appendix B.


COST_FIGURES = ("gpu_hours", "days", "mfu", "hfu")


class RunCost(Sheet):
    """`run_cost(parameters, tokens, gpus, peak, achieved, recompute)`: GPU-hours, days, MFU and HFU of a run."""

    name = "run_cost"
    right = "12 runs, with and without recomputation: hours, days, MFU and HFU."
    cases = table(
        lambda again: f"{'with' if again else 'without'} recomputation", (False, True) * 6
    )

    def draw(self, case, rng):
        one = partial(integer, rng)
        peak = one(60, 2000) * 10**12
        return [
            (
                one(10, 5000) * 10**8,
                one(10, 15000) * 10**9,
                one(8, 5000),
                peak,
                peak * (0.15 + 0.6 * uniform(rng)),
                case.given,
            )
        ]

    def wants(self, case, args):
        return [{"the result": oracle.cost(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        entries(got, COST_FIGURES, name)
        looks = _cost_looks(*args[0])
        for part, right in want.items():
            close(got[part], right, repr(part), looks[part])


def _cost_looks(parameters, tokens, gpus, peak, achieved, again):
    hours, days, mfu, hfu = oracle.cost(parameters, tokens, gpus, peak, achieved, again).values()
    factor = 8 if again else 6
    unused = {
        "With recomputation the forward pass runs twice: 8 FLOPs per parameter and token, not 6.": 6
        / factor,
        "Nothing is recomputed here: 6 FLOPs per parameter and token, not 8.": 8 / factor,
        "That is the forward pass alone: the backward pass takes twice as many FLOPs.": 2 / factor,
        "The forward and the backward pass take 2 and 4 FLOPs, and 2 more if the forward pass runs again.": 4
        / factor,
        "Recomputation runs only the forward pass once more: 8 FLOPs, not 12.": 12 / factor,
        "Is that at the peak rate? `achieved` is what a GPU really does.": achieved / peak,
    }
    return {
        "gpu_hours": {text: hours * times for text, times in unused.items()}
        | {
            "Those are seconds.": hours * 3600,
            "That is how long the run takes. A GPU-hour is an hour of one GPU, so there are more of them.": hours
            / gpus,
            "`achieved` is the rate of one GPU: do not multiply by the number of GPUs.": hours
            * gpus,
        },
        "days": {text: days * times for text, times in unused.items()}
        | {
            "All GPUs work at the same time.": days * gpus,
            "Those are hours.": days * 24,
            "Those are seconds.": days * 86400,
            "Is it divided by the number of GPUs twice?": days / gpus,
        },
        "mfu": {
            "That is the HFU: the MFU does not count what is recomputed.": hfu,
            "The fraction is upside down.": 1 / mfu,
            "A fraction is asked for, not a percentage.": 100 * mfu,
            "Is it divided by the number of GPUs twice?": mfu / gpus,
            ROUNDED: round(mfu, 4),
        },
        "hfu": {
            "That is the MFU: the hardware also executes what is recomputed.": mfu,
            "The fraction is upside down.": 1 / hfu,
            "A fraction is asked for, not a percentage.": 100 * hfu,
            "Is what is recomputed counted twice? The rate `achieved` already counts it.": hfu
            * 8
            / 6,
            "Is it divided by the number of GPUs twice?": hfu / gpus,
            ROUNDED: round(hfu, 4),
        },
    }


# ------------------------------------------------------------
# A loop that eats memory: the same numbers, at the peak of one batch.
#
# Peak and FLOPs are measured, in the answer's process, by the ledger and the dispatch mode of comm (meter.py); the
# oracle's own loop, which holds nothing that it does not need, says what is enough.


OPTIMIZERS = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
CLOSE = 1e-9  # of losses and weights in float64: another order of sums, not another step
EVAL = (
    "the forward pass of a batch runs in another mode than the model came in, or the model is left in another one. With "
    "dropout or batch norm that changes what it computes: after model.eval() for the test set call model.train()."
)


def loss_of(y: Tensor, want: Tensor) -> Tensor:
    """A loss that nobody expects."""
    return cross_entropy(y, want, label_smoothing=0.1)


class Given(NamedTuple):
    """Sizes of an MLP, how many of its layers are frozen, the word of an optimizer, batches and test set as (x, y)."""

    sizes: list[int]
    frozen: int
    optimizer: str
    batches: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]


def metered(train, given: Given) -> dict:
    """Run a training loop under the meter; plain values. held: bytes of gradients at each forward that has a graph."""
    model = mlp(given.sizes, dtype=torch.float64)
    for p in list(model.parameters())[: 2 * given.frozen]:
        p.requires_grad_(False)
    optimizer = OPTIMIZERS[given.optimizer](model.parameters())
    held = []
    modes = []
    after = []
    flops = []
    clock = SimpleNamespace(time=0.0)
    ledger = Ledger(lambda: clock.time)
    ledger.existing([model, optimizer, given.batches, given.test])

    def forward(module, inputs):
        if torch.is_grad_enabled():
            held.append(sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))
            modes.append(model.training)

    def stepped(*_):
        after.append(clock.time)
        clock.time += 1.0  # what is freed from here on is freed later

    model.register_forward_pre_hook(forward)
    optimizer.register_step_post_hook(stepped)
    tick = lambda cost: 1.0  # the clock counts operators
    with (
        Watch(),
        Charge(clock, ledger, tick, lambda name, cost, start, end: flops.append(cost.flops)),
    ):
        found = train(model, optimizer, loss_of, given.batches, given.test)
    line = ledger.timeline("cpu")
    return {
        "found": found,
        "weights": nn.utils.parameters_to_vector(model.parameters()).detach(),
        "held": held,
        "mode": all([*modes, model.training]),
        "flags": [p.requires_grad for p in model.parameters()],
        "peak": line.peak,
        "flops": sum(flops),
        "live": [sum(line.at(time).values()) for time in after],
        "gradients": sum(p.nbytes for p in model.parameters() if p.requires_grad),
    }


class TrainLean(Report):
    """`train(model, optimizer, loss_fn, batches, test)`: losses and test losses, at the peak of one batch."""

    name = "train_lean"
    right = (
        "6 networks, 2 optimizers, 2 to 5 batches, large numbers, frozen layers and nan: the same losses and weights, at "
        "the peak of one forward and backward pass."
    )
    cases = table(
        lambda word, steps, what: f"{word}, {steps} batches{what}",
        zip(
            [*OPTIMIZERS] * 3,
            (3, 2, 5, 4, 2, 3),
            ("", "", ", the first layers frozen", ", large numbers", ", nan in the last", ""),
            strict=True,
        ),
    )
    step, forbidden = 10.0, Sheet.forbidden

    def draw(self, case, rng):
        word, steps, what = case.given
        draw = partial(integer, rng)
        sizes = [draw(20, 40), *(draw(60, 80) for _ in range(7)), 10]
        batch = draw(150, 250)
        data = [
            (
                normal(rng, n, sizes[0]),
                torch.randint(10, (n,), generator=rng),
            )
            for n in [batch] * steps + [batch * 3 // 2]
        ]
        if "large" in what:
            data = [(1000 * x, y) for x, y in data]
        if "nan" in what:
            data[-2][0][0, 0] = torch.nan
        return [(sizes, 2 * ("frozen" in what), word, data[:-1], data[-1])]

    def run(self, comm, yours, *given):
        return metered(yours, Given(*given))

    def check(self, case, got, *given):
        lean = metered(oracle.train, Given(*given))
        for name, mine in unpacked(got["found"], ("losses", "tests")).items():
            _numbers(name, mine, lean["found"][name == "tests"])
        if not near(got["weights"], lean["weights"], CLOSE):
            raise Wrong(
                "the losses are right, but the weights are not the same as after the loop above: is a step missing, or "
                "is there one too many?"
            )
        if got["flags"] != lean["flags"]:
            raise Wrong(
                "requires_grad has changed: what was frozen stays frozen, and nothing else is."
            )
        holds(got, {"mode": EVAL})
        flops, enough = got["flops"], lean["flops"]
        if flops < 0.99 * enough:
            raise Wrong(
                f"the numbers are right, but the meter saw {flops:,} FLOPs, and {enough:,} are needed: what is "
                "computed elsewhere takes memory elsewhere."
            )
        _memory(got, lean)
        # last, because it leaves half of the points
        if flops > 1.01 * enough:
            raise Costly(
                f"the numbers are right, but {flops:,} FLOPs are executed, and {enough:,} are enough: is a forward pass "
                "run more than once for the same number?"
            )


def _numbers(name, got, want):
    typed(got, list | tuple, name, "a list")
    if len(got) != len(want):
        raise Wrong(
            f"{name} has length {len(got)}, and should have {len(want)}: one number for each batch."
        )
    for i, (mine, right) in enumerate(zip(got, want, strict=True)):
        if isinstance(mine, Tensor):
            raise Wrong(
                f"{name}[{i}] is a tensor. As long as it lives, it may hold the graph that it came from, with "
                "all activations: keep the number instead, x.item()."
            )
        typed(mine, float, f"{name}[{i}]", "a float")
        hint = {
            "losses": "Are the gradients cleared before each backward pass, and is there a step for each batch?",
            "tests": "It should be the loss of the whole test set, after the step.",
        }[name]
        close(mine, right, f"{name}[{i}]", None, hint, CLOSE)


def _memory(got, lean):
    """The peak may be that of the lean loop; a fifth of the gradients is slack."""
    gradients = lean["gradients"]
    if any(
        mine < right - gradients // 5
        for mine, right in zip(got["live"], lean["live"], strict=False)
    ):
        raise Wrong(
            "the numbers are right, but after a step the meter sees fewer bytes than the weights, gradients and "
            "optimizer states have: what is hidden from it?"
        )
    if got["peak"] <= lean["peak"] + gradients // 5:
        return
    said = f"the numbers are right, but the peak is {got['peak']:,} bytes, and {lean['peak']:,} are enough."
    growth = [b - a for a, b in zip(got["live"], got["live"][1:], strict=False)]
    if growth and min(growth) > gradients // 3:
        raise Wrong(
            f"{said} After each step up to {max(growth):,} bytes more are live than after the step before: what does "
            "the loop hold on to? A graph keeps its activations until its backward pass, or, if there is none, as long as "
            "its loss lives. Under torch.no_grad() there is no graph."
        )
    if len(got["held"]) > len(lean["held"]):
        raise Wrong(
            f"{said} The forward pass of the test set makes a graph, and keeps activations for a backward pass that never "
            "comes: use torch.no_grad()."
        )
    if max(got["held"], default=0):
        raise Wrong(
            f"{said} When a forward pass begins, {max(got['held']):,} bytes of gradients of the step before are "
            "still there. Free them earlier: zero_grad() before the forward pass sets them to None."
        )
    raise Wrong(
        f"{said} What is still live that nobody needs: outputs, a graph that is retained, copies?"
    )

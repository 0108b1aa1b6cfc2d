"""Graders of lesson 10: scales of blocks, a scale that ranks agree on, a linear layer in eight bits, and what it keeps."""

from __future__ import annotations

import math
from functools import partial

import torch

from ..exam import (
    ALL,
    NUMBERS,
    Case,
    Exam,
    Prediction,
    Report,
    Solo,
    Wrong,
    few,
    integer,
    normal,
    number,
    ranked,
    ranks,
    shuffled,
    table,
    uniform,
)
from ..oracles.eight_bits import (
    E4M3,
    E5M2,
    FORBIDDEN,
    History,
    gradients,
    magnitude,
    power,
    rounded,
    scales,
)

f32 = torch.float32


def spread_out(rng, *shape):
    """fp32 numbers over many powers of two."""
    return normal(rng, *shape, dtype=f32) * 2.0 ** (6 * normal(rng, *shape, dtype=f32)).round()


# ------------------------------------------------------------
# A scale for each block of a matrix.


class BlockScales(Solo):
    """`block_scales(x, rows, columns, most)`: the smallest powers of two that fit, one a block."""

    name = "block_scales"
    right = "one block, rows, columns and tiles, sizes that do not divide, negative numbers, zeros, and numbers at the limit."
    given = ("x",)
    exact = True
    forbidden = FORBIDDEN
    cases = table(
        lambda what, shape, block, most: (
            f"{what}, {block[0]} × {block[1]} of {shape[0]} × {shape[1]}"
        ),
        [
            ("one block", (4, 6), (4, 6), 448.0),
            ("rows", (5, 8), (1, 8), 448.0),
            ("columns", (5, 8), (5, 1), 57344.0),
            ("tiles", (4, 12), (1, 4), 448.0),
            ("squares", (6, 9), (3, 3), 448.0),
            ("sizes that do not divide", (7, 10), (3, 4), 57344.0),
            ("the largest is negative", (4, 8), (2, 4), 448.0),
            ("blocks of zeros", (4, 8), (2, 4), 448.0),
            ("the largest is the limit, times a power of two", (3, 4), (1, 2), 448.0),
            ("the largest is just above it", (3, 4), (1, 2), 448.0),
        ],
    )

    def draw(self, case, rng):
        what, shape, (rows, columns), most = case.given
        x = spread_out(rng, *shape)
        if "negative" in what:
            x = -x.abs()
        if "zeros" in what:
            x[:rows, columns:] = 0
        if "limit" in what or "above" in what:
            x = x.sign() * most * 2.0 ** (5 * normal(rng, *shape, dtype=f32)).round()
        if "above" in what:
            x = torch.nextafter(x, x.sign() * math.inf)
        return [(x, rows, columns, most)]

    def wants(self, case, args):
        return [{"the result": scales(*args[0])}]

    def mistakes(self, case, args, rank, name, got):
        slip = partial(scales, *args[0])
        x, rows, columns, most = args[0]
        return {
            "These are too small: round the exponent up, or the largest number does not fit.": slip(
                towards=math.floor
            ),
            "Some are too small: round the exponent up, not to the nearest.": slip(towards=round),
            "The largest number of a block is not its largest magnitude: some are negative.": slip(
                amax=lambda block: block.max().clamp(min=0).item()
            ),
            "These are the inverse: x is divided by its scale.": 1 / scales(*args[0]),
            "Rows and columns are mistaken for each other.": scales(x, columns, rows, most),
            "One scale for all is that of the largest block.": torch.full_like(
                scales(*args[0]), power(magnitude(x), most)
            ),
        }


# ------------------------------------------------------------
# A scale of what many ranks hold together.


COLUMNS = 40


class AgreedScale(Exam):
    """`agreed_scale(comm, x, most)`: the scale of the whole tensor, of which each rank has some rows."""

    name = "agreed_scale"
    right = "n = 1…4, the largest on any rank, ranks without rows, negative numbers, zeros; then real processes."
    given = ("x",)
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, largest, empty: (
            f"n = {n}, the largest number on {'all ranks' if largest is None else f'rank {largest}'}"
            f"{f', no rows on {ranks(list(empty))}' if empty else ''}"
        ),
        [
            (1, 0, ()),
            (2, 1, ()),
            (2, 0, ()),
            (3, 1, (2,)),
            (3, 2, (0,)),
            (4, 3, (0, 1)),
            (4, 0, ()),
            (2, 0, (0, 1)),
            (3, None, ()),
            (4, None, (1,)),
        ],
    )
    processes = (Case(3, "3 real processes", (2, (0,))),)

    def draw(self, case, rng):
        largest, empty = case.given
        order = shuffled(rng, case.n)
        most = (448.0, 57344.0)[integer(rng, 0, 1)]
        out = []
        alike = most * 2.0 ** integer(rng, 4, 12)
        for r in range(case.n):
            rows = 0 if r in empty else 2 + order[r]
            x = (
                (1 + uniform(rng))
                * 2.0 ** integer(rng, -12, 0)
                * spread_out(rng, rows, COLUMNS).clamp(-1, 1)
            )
            if r == largest and rows:
                x[-1, 1] = -(1 + uniform(rng)) * 2.0 ** integer(rng, 4, 12)
            if largest is None and rows:
                x[0, 0] = (0.7 + 0.2 * uniform(rng)) * alike
            out.append((x, most))
        return out

    def wants(self, case, args):
        whole = torch.cat([x for x, _ in args])
        amax = magnitude(whole) if whole.numel() else 0.0
        return [{"the result": power(amax, args[0][1])} for _ in args]

    def mistakes(self, case, args, rank, name, got):
        most = args[rank][1]
        own = [magnitude(x) if x.numel() else 0.0 for x, _ in args]
        signed = [x.max().clamp(min=0).item() if x.numel() else 0.0 for x, _ in args]
        return {
            "It is that of this rank's own rows.": power(own[rank], most),
            "It is that of the sum of all ranks' largest: take the maximum.": power(sum(own), most),
            "It is that of the smallest of all ranks' largest.": power(min(own), most),
            "It is that of their mean.": power(sum(own) / len(own), most),
            "Magnitudes: the largest number is negative.": power(max(signed), most),
            "It is too small: round the exponent up.": power(max(own), most, math.floor),
        }

    def cost(self, case, args, outcome):
        most = 2 * (case.n - 1)
        few(outcome, most * 8, "One number a rank is enough: its own amax.", most)


# ------------------------------------------------------------
# A linear layer in eight bits, forward and backward.


class EightBitLinear(Solo):
    """`eight_bit_linear(x, w, dy)`: y, dx and dW, of operands in E4M3 and E5M2 with a scale each."""

    name = "eight_bit_linear"
    right = "numbers of many magnitudes, gradients near 2⁻⁴⁰ and large ones, one row, and operands that are all zero."
    returns = ("y", "dx", "dw")
    given = ("x", "w", "dy")
    forbidden = FORBIDDEN
    cases = table(
        lambda what, *rest: what,
        [
            ("a layer of 5 × 7", 1.0, 1.0, 3),
            ("tiny gradients", 1.0, 2.0**-40, 4),
            ("large gradients", 1.0, 2.0**30, 4),
            ("large activations", 2.0**20, 1.0, 6),
            ("tiny weights and activations", 2.0**-30, 1.0, 6),
            ("one row", 1.0, 1.0, 1),
            ("gradients that are all zero", 1.0, 0.0, 3),
            ("many magnitudes", 8.0, 2.0**-12, 12),
        ],
    )

    def draw(self, case, rng):
        what, size, gradient, tokens = case.given
        # never as many: what is transposed has another shape
        inputs, outputs = integer(rng, 7, 10), integer(rng, 3, 6)
        drawn = partial(normal, rng, dtype=f32)
        x = drawn(tokens, inputs)
        w = drawn(outputs, inputs)
        dy = drawn(tokens, outputs)
        if what == "many magnitudes":
            x, dy = spread_out(rng, tokens, inputs), spread_out(rng, tokens, outputs)
        return [(x * size, w / inputs**0.5 * min(size, 1.0), dy * gradient)]

    def wants(self, case, args):
        return [dict(zip(self.returns, gradients(*args[0]), strict=True))]

    def mistakes(self, case, args, rank, name, got):
        x, w, dy = args[0]
        of = self.returns.index(name)
        low_x = rounded(x, E4M3)
        low_w = rounded(w, E4M3)
        low_dy = rounded(dy, E5M2)
        slips = {
            "Nothing was rounded to eight bits.": (x @ w.t(), dy @ w, dy.t() @ x),
            "Only the first of the two that it multiplies was rounded.": (
                low_x @ w.t(),
                low_dy @ w,
                low_dy.t() @ x,
            ),
            "Only the second of the two that it multiplies was rounded.": (
                x @ low_w.t(),
                dy @ low_w,
                dy.t() @ low_x,
            ),
            "The scales are too small, and the largest numbers are cut off: round the exponent up.": gradients(
                x, w, dy, towards=math.floor
            ),
            "Without scales: divide by the scale before rounding.": gradients(
                x, w, dy, scaled=False
            ),
            "Multiply by the scales again.": gradients(x, w, dy, back=False),
            "Gradients are in E5M2, which has more range.": gradients(x, w, dy, backward=E4M3),
            "x and W are in E4M3, which has more precision.": gradients(x, w, dy, forward=E5M2),
            "The formats are exchanged: E4M3 forward, E5M2 for the gradient.": gradients(
                x, w, dy, forward=E5M2, backward=E4M3
            ),
        }
        return {words: values[of] for words, values in slips.items()}


# ------------------------------------------------------------
# Delayed scaling: the scale of a step follows from the steps before it.


class DelayedScale(Report):
    """`DelayedScale(length, most)`: `.scale`, `.see(x)`, `.step()`."""

    name = "delayed_scale"
    right = "no step yet, several tensors in a step, steps without one, a jump, what is forgotten, inf and nan."
    forbidden = FORBIDDEN
    functions = False
    # length, sizes of the tensors that each step sees
    cases = table(
        lambda what, *rest: what,
        [
            ("no step yet", 3, [[]]),
            ("one tensor a step", 2, [[1.0], [8.0], [0.5], [0.25], [0.125]]),
            ("several tensors in a step", 2, [[1.0, 64.0, 2.0], [4.0, 0.5], [0.5], [0.25]]),
            ("the last step alone", 1, [[2.0], [512.0], [1.0], [1.0]]),
            ("steps that see nothing", 2, [[16.0], [], [], [1.0], [], [2.0], [2.0]]),
            ("tensors of zeros", 2, [[0.0], [1.0], [0.0], [0.0], [0.0]]),
            ("an inf in step 1", 2, [[4.0], [math.inf], [1.0], [1.0], [1.0]]),
            ("a nan beside another tensor", 3, [[4.0], [1e4, math.nan], [1.0], [0.5]]),
            ("16 steps", 16, [[2.0**-k] for k in range(20)]),
        ],
    )
    slips = {
        "What this step sees counts from the next step on.": dict(fresh=True),
        "The largest of the last steps makes the scale, not the last one's.": dict(last=True),
        "A step is forgotten when it is older than `length` steps.": dict(forever=True),
        "A step that saw an inf or a nan does not count.": dict(bad=True),
    }

    def draw(self, case, rng):
        _, length, steps = case.given
        most = (448.0, 57344.0)[integer(rng, 0, 1)]
        seen = []
        for sizes in steps:
            tensors = []
            for size in sizes:
                x = normal(rng, 2, 3, dtype=f32).clamp(-1, 1)
                x[1, 2] = -1 - uniform(rng)
                tensors.append(x * size if size else torch.zeros(2, 3))
            seen.append(tensors)
        return [(length, most, seen)]

    def run(self, comm, yours, length, most, seen):
        return list(self._followed(yours(length, most), seen))

    def _followed(self, history, seen):
        for tensors in seen:
            yield history.scale
            for x in tensors:
                history.see(x.clone())
                yield history.scale
            history.step()
        yield history.scale

    def check(self, case, got, length, most, seen):
        follow = lambda **slip: list(self._followed(History(length, most, **slip), seen))
        want = follow()
        for i, (found, right) in enumerate(zip(got, want, strict=True)):
            number(found, f"scale {i}")
            if found != right:
                looks = [words for words, slip in self.slips.items() if follow(**slip) == got]
                rule = "It is the smallest power of two for the largest amax of the last steps; 1 before there is one."
                raise Wrong(
                    f"the scale is {found:g} at look {i} (before each step, after each tensor, and at the end), and "
                    f"should be {right:g}. {(looks or [rule])[0]}"
                )


# ------------------------------------------------------------
# Bytes, scales and range, predicted.


def predict_eight_bits(n=8, tokens=8_192, inputs=5_120):
    """Bytes of x and of agreeing, scales of W, and the range of E4M3, for one linear layer."""
    outputs = 13_824
    numbers = tokens * inputs
    blocks = numbers + 4 * numbers / 128
    weight_scales = (inputs // 128) * (outputs // 128)
    one = 2 * (n - 1) * 4  # of one tensor
    agreed = 2 * one
    span = 448 * 2**6
    values = {
        "sixteen": 2 * numbers,
        "blocks": blocks,
        "weight_scales": weight_scales,
        "agreed": agreed,
        "span": span,
    }
    slips = {
        "sixteen": {
            numbers: NUMBERS,
            4 * numbers: "That is fp32: 16 bits are two bytes.",
            2 * tokens * outputs: "That is y: backward needs x.",
            2 * numbers * n: ALL,
        },
        "blocks": {
            numbers: "The scales are missing, or have one byte: there is one for 128 numbers, in fp32, of 4 bytes.",
            numbers + 2 * numbers / 128: "A scale is in fp32: 4 bytes, not 2.",
            2 * numbers + 4 * numbers / 128: "In eight bits a number has one byte: those are two.",
            4 * numbers / 128: "Those are the scales alone.",
            blocks * n: ALL,
        },
        "weight_scales": {
            inputs * outputs / 128: "Those are blocks of 1 × 128: they are squares.",
            outputs: "That is one a row.",
            inputs: "That is one a column.",
            4 * weight_scales: "Those are bytes: how many scales is asked for.",
            tokens * inputs / 128: "Those are the scales of x.",
        },
        "agreed": {
            one: "That is one tensor, or one time around: x and dy have a scale each, and a number is sent n − 1 times for the "
            "maximum, n − 1 times more until all have it.",
            one
            / 2: "Those are numbers, of 4 bytes in fp32; or the n − 1 times for the maximum of one tensor alone.",
            3 * one: "W is the same on all ranks: its scale is, too.",
            4 * one: "8 bytes a number? fp32 has 4.",
            agreed / n: "That is the mean of a rank: all ranks together are asked for.",
            agreed * n: "One number is in one of the ring's n pieces: the others are empty.",
        },
        "span": {
            448 * 2**9: "That is down to the smallest number at all: below 2⁻⁶ digits are lost.",
            57_344 * 2**14: "That is E5M2.",
            span / 2: "The right scale brings the largest number up to 448 at most, not to 224.",
            2.0**15: "E4M3 ends at 448, not at 512.",
            448: "That is the largest number of E4M3: divide it by the smallest normal one.",
            1 / span: "Upside down.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_eight_bits,
    "Bytes kept and sent, scales, and the range of E4M3, within 1 %.",
    {
        "n": ("{} ranks", (6, 16, 32)),
        "tokens": ("{:,} tokens a rank", (2_048, 4_096, 16_384)),
        "inputs": ("{:,} numbers in", (2_048, 3_072, 8_192)),
    },
)

"""Graders of lesson 10: scales of blocks, scales that ranks agree on, a linear layer in eight bits, a history that a
checkpoint keeps, and numbers to predict."""

from __future__ import annotations

import json
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
    alike,
    close,
    few,
    integer,
    near,
    normal,
    number,
    ranked,
    ranks,
    same,
    shuffled,
    table,
    typed,
    uniform,
    written,
)
from ..oracles.eight_bits import (
    E4M3,
    E5M2,
    FORBIDDEN,
    History,
    by_rows,
    gradients,
    magnitude,
    plain,
    power,
    rounded,
    scales,
    terms,
)

f32 = torch.float32


def in_fp32(most):
    """An amax with the scale that a block gets whose quotient and logarithm are in fp32."""

    def amax(block):
        quotient = block.abs().max() / most
        return most * float(torch.exp2(quotient.log2().ceil())) if quotient > 0 else 0.0

    return amax


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
            "One scale is too small by a power of two, where amax is the next number above most times a power of two: is "
            "amax / most, or its logarithm, rounded to fp32 on the way?": scales(
                x, rows, columns, most, amax=in_fp32(most)
            ),
            "Rows and columns are mistaken for each other.": scales(x, columns, rows, most),
            "One scale for all is that of the largest block.": torch.full_like(
                scales(*args[0]), power(magnitude(x), most)
            ),
        }


# ------------------------------------------------------------
# A scale of what many ranks hold together.


COLUMNS = 40


class AgreedScales(Exam):
    """`agreed_scales(comm, x, most)`: the scale of the whole, and of each column, of which each rank has some rows."""

    name = "agreed_scales"
    right = "n = 1…4, the largest on any rank, ranks without rows, negative numbers, zeros; then real processes."
    returns = ("whole", "columns")
    given = ("x",)
    replicated = ("columns",)
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
            x[:, 2] = 0
            out.append((x, most))
        return out

    def wants(self, case, args):
        rows = torch.cat([x for x, _ in args])
        found = scales_of(largest_of(rows), args[0][1])
        return [{"whole": whole_of(rows, args[0][1]), "columns": found} for _ in args]

    def value(self, case, args, rank, name, got, want):
        mistakes = self.slips(args, rank)[name]
        if name == "whole":
            close(got, want, f"{self.where(rank)}{name}", mistakes)
        else:
            same(got, want, f"{self.where(rank)}{name}", mistakes)

    def slips(self, args, rank):
        most = args[rank][1]
        own = [largest_of(x) for x, _ in args]
        signed = [largest_of(x.clamp(min=0)) for x, _ in args]
        rows = torch.cat([x for x, _ in args])
        summed = sum(own)
        amaxes = {
            "It is that of this rank's own rows.": own[rank],
            "It is that of the sum of all ranks' largest: take the maximum.": summed,
            "It is that of the smallest of all ranks' largest.": torch.stack(own).amin(0),
            "It is that of their mean.": summed / len(own),
            "Magnitudes: some of the largest numbers are negative.": torch.stack(signed).amax(0),
        }
        whole = {words: power(float(amax.max()), most) for words, amax in amaxes.items()}
        columns = {words: scales_of(amax, most) for words, amax in amaxes.items()}
        small = "It is too small: round the exponent up."
        whole[small] = power(magnitude(rows) if rows.numel() else 0.0, most, math.floor)
        columns[small] = scales_of(largest_of(rows), most, math.floor)
        for c, scale in enumerate(scales_of(largest_of(rows), most).tolist()):
            whole[f"It is the scale of column {c} alone."] = scale
        columns["Each column has the scale of the whole."] = torch.full(
            (rows.shape[1],), whole_of(rows, most)
        )
        return {"whole": whole, "columns": columns}

    def cost(self, case, args, outcome):
        messages = 2 * (case.n - 1)
        nbytes = 8 * (COLUMNS + case.n)
        hint = "One all-reduce is enough, of a number for each column: they tell amax of the whole."
        few(outcome, nbytes, hint, messages)


def largest_of(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of each column; 0 where there are no rows."""
    return torch.cat([x.abs(), x.new_zeros(1, x.shape[1])]).amax(0)


def scales_of(amaxes: torch.Tensor, most: float, towards=math.ceil) -> torch.Tensor:
    return torch.tensor([power(amax, most, towards) for amax in amaxes.tolist()])


def whole_of(x: torch.Tensor, most: float) -> float:
    return power(magnitude(x) if x.numel() else 0.0, most)


# ------------------------------------------------------------
# A linear layer in eight bits, forward and backward, by rows.


class EightBitLinear(Solo):
    """`eight_bit_linear(x, w, dy)`: y, dx and dW, of operands in E4M3 and E5M2 with a scale for each row.

    Tokens, inputs and outputs differ by many powers of two, so that scales of rows, of columns and of the tensor lose
    other numbers. What one of the three matrices has more of, the next has less of: all terms of a sum count.
    """

    name = "eight_bit_linear"
    right = "tokens, inputs and outputs of many magnitudes, tiny and large gradients, one token, and zeros."
    returns = ("y", "dx", "dw")
    given = ("x", "w", "dy")
    forbidden = FORBIDDEN
    # factors of x and of dy, tokens, powers of two that tokens, inputs and outputs differ by
    cases = table(
        lambda what, *rest: what,
        [
            ("numbers that are alike", 1.0, 1.0, 5, 0),
            ("many magnitudes", 1.0, 1.0, 6, 18),
            ("tiny gradients", 1.0, 2.0**-40, 5, 16),
            ("large gradients", 1.0, 2.0**30, 4, 16),
            ("large activations", 2.0**20, 1.0, 6, 17),
            ("tiny activations", 2.0**-30, 1.0, 6, 17),
            ("one token", 1.0, 1.0, 1, 16),
            ("gradients that are all zero", 1.0, 0.0, 3, 8),
            ("many magnitudes again", 2.0**3, 2.0**-12, 9, 18),
        ],
    )

    def draw(self, case, rng):
        _, size, gradient, tokens, apart = case.given
        # never as many: what is transposed has another shape
        inputs, outputs = integer(rng, 10, 12), integer(rng, 13, 15)
        drawn = partial(normal, rng, dtype=f32)
        of_tokens, of_inputs, of_outputs = (
            differing(rng, count, apart) for count in (tokens, inputs, outputs)
        )
        x = drawn(tokens, inputs) * of_tokens[:, None] * of_inputs
        w = drawn(outputs, inputs) * of_outputs[:, None] / of_inputs
        dy = drawn(tokens, outputs) / of_tokens[:, None] / of_outputs
        return [(x * size, w, dy * gradient)]

    def wants(self, case, args):
        return [dict(zip(self.returns, gradients(*args[0]), strict=True))]

    def value(self, case, args, rank, name, got, want):
        alike(got, want, name)
        size = terms(*args[0])[self.returns.index(name)]
        size = torch.where(size > 0, size, 1.0)
        of = partial(near, slack=1e-5)
        if of(got / size, want / size):
            return
        off = ((got - want) / size).abs().nan_to_num(math.inf)
        i, j = divmod(int(off.argmax()), off.shape[1])
        slips = self.mistakes(case, args, rank, name, got)
        words = [words for words, value in slips.items() if of(got / size, value / size)]
        hint = (
            "Each of the two is rounded with a scale for each row of what the product sums along."
        )
        raise Wrong(
            f"{name}[{i}, {j}] is {written(got[i, j].item())}, and should be {written(want[i, j].item())}. "
            f"{(words or [hint])[0]}"
        )

    def mistakes(self, case, args, rank, name, got):
        x, w, dy = args[0]
        of = self.returns.index(name)
        x_rows, w_rows = by_rows(x, E4M3), by_rows(w, E4M3)
        dy_rows = by_rows(dy, E5M2)
        x_columns, dy_columns = by_rows(x.t(), E4M3).t(), by_rows(dy.t(), E5M2).t()
        tensors = gradients(x, w, dy, first=rounded, second=rounded)
        y = x_rows @ w_rows.t()
        dx_of_rows = dy_rows @ w_rows
        slips = {
            "Nothing was rounded to eight bits.": (x @ w.t(), dy @ w, dy.t() @ x),
            "Only the first of the two that it multiplies was rounded.": gradients(
                x, w, dy, second=plain
            ),
            "Only the second of the two that it multiplies was rounded.": gradients(
                x, w, dy, first=plain
            ),
            "That is one scale for the tensor, as in the lesson: here each row has its own.": tensors,
            "It is summed over the outputs: W needs a scale for each of its columns.": (
                y,
                dx_of_rows,
                dy_rows.t() @ x_rows,
            ),
            "It is summed over the tokens: x needs a scale for each of its columns, so it is rounded once more.": (
                y,
                dx_of_rows,
                dy_columns.t() @ x_rows,
            ),
            "It is summed over the tokens: dy needs a scale for each of its columns, so it is rounded once more.": (
                y,
                dx_of_rows,
                dy_rows.t() @ x_columns,
            ),
            "It is summed over the tokens: x and dy need a scale for each of their columns, so both are rounded once "
            "more.": (y, dx_of_rows, dy_rows.t() @ x_rows),
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


def differing(rng, count: int, apart: int) -> torch.Tensor:
    """So many powers of two, of which the smallest and the largest are 2^−apart and 2^apart."""
    if count == 1 or apart == 0:
        return torch.ones(count)
    powers = [-apart, apart, *(integer(rng, -apart, apart) for _ in range(count - 2))]
    return torch.tensor([2.0 ** powers[i] for i in shuffled(rng, count)])


# ------------------------------------------------------------
# Delayed scaling: the scale of a step follows from the steps before it.


class DelayedScale(Report):
    """`DelayedScale(length, most)`: `.scale`, `.see(x)`, `.step()`, `.state()`, `.load(state)`."""

    name = "delayed_scale"
    right = (
        "no step yet, several tensors in a step, steps without one, a jump, what is forgotten, inf and nan; and each of "
        "these again, from a checkpoint in the middle."
    )
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
            ("amax falls, and the largest is forgotten", 3, [[64.0], [8.0], [1.0], [0.1], [0.1]]),
            ("16 steps", 16, [[2.0**-k] for k in range(20)]),
        ],
    )
    slips = {
        "What this step sees counts from the next step on.": dict(fresh=True),
        "The largest of the last steps makes the scale, not the last one's.": dict(last=True),
        "A step is forgotten when it is older than `length` steps.": dict(forever=True),
        "A step that saw an inf or a nan does not count.": dict(bad=True),
        "Each tensor counts as a step of its own: a step ends with `step()`, and counts once.": dict(
            single=True
        ),
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
        history = yours(length, most)
        found = list(self._followed(history, seen))
        half = len(seen) // 2
        saved = yours(length, most)
        for _ in self._followed(saved, seen[:half]):
            pass
        state = saved.state()
        text = json.dumps(state)
        saved.see(torch.full((2, 2), 1e6))  # a state that was given out does not change
        saved.step()
        later = json.dumps(state)
        restored = yours(length, most)
        restored.see(
            torch.full((2, 2), 1e6)
        )  # and one that is loaded takes the place of all before
        restored.step()
        restored.load(json.loads(text))
        again = list(self._followed(restored, seen[half:]))
        return {
            "found": found,
            "state": json.loads(text),
            "later": json.loads(later),
            "again": again,
        }

    def _followed(self, history, seen):
        for tensors in seen:
            yield history.scale
            for x in tensors:
                history.see(x.clone())
                yield history.scale
            history.step()
        yield history.scale

    def check(self, case, got, length, most, seen):
        half = len(seen) // 2
        follow = lambda **slip: list(self._followed(History(length, most, **slip), seen))
        self._scales(got["found"], follow(), "", follow)
        saved = History(length, most)
        for _ in self._followed(saved, seen[:half]):
            pass
        typed(got["state"], list, "state()", "a list of numbers")
        for amax in got["state"]:
            number(amax, "an amax in state()")
        if got["state"] != saved.state():
            raise Wrong(
                f"state() is {got['state']} after {half} steps, and should be {saved.state()}: the amax of each step that "
                "counts, the oldest first, and none that is forgotten already."
            )
        if got["later"] != got["state"]:
            raise Wrong("a list that state() gave out before has changed since: give out a copy.")
        restored = History(length, most)
        restored.load(saved.state())
        self._scales(
            got["again"],
            list(self._followed(restored, seen[half:])),
            f"from a checkpoint after {half} steps: ",
            None,
        )

    def _scales(self, got, want, where, follow):
        for i, (found, right) in enumerate(zip(got, want, strict=True)):
            number(found, f"scale {i}")
            if found != right:
                words = "load(state) takes the place of all that was seen before, and the run goes on as it would have."
                if follow:
                    words = "It is the smallest power of two for the largest amax of the last steps; 1 before there is one."
                    looks = [said for said, slip in self.slips.items() if follow(**slip) == got]
                    words = (looks or [words])[0]
                raise Wrong(
                    f"{where}the scale is {found:g} at look {i} (before each step, after each tensor, and at the end), "
                    f"and should be {right:g}. {words}"
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
    row_scales = 2 * (tokens + inputs + outputs)
    values = {
        "sixteen": 2 * numbers,
        "blocks": blocks,
        "row_scales": row_scales,
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
        "row_scales": {
            row_scales
            / 2: "Each matrix is rounded twice, with scales of its rows and with scales of its columns: products "
            "sum along both.",
            2 * tokens
            + outputs: "Those are the scales of rows alone: dx and dW need scales of columns.",
            2 * tokens + inputs + outputs: "W is rounded twice, too: dx sums over the outputs.",
            3: "That is one scale a tensor.",
            row_scales * n: ALL,
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

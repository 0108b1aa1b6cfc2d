"""Graders of lesson 09: half precision, rounded by hand; masters, scales, lists, who overflowed, ranks that agree.

The oracle has the right answers, and what the usual mistakes would give.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import partial
from itertools import product
from operator import eq

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from ..exam import (
    Case,
    Exam,
    Prediction,
    Report,
    Wrong,
    alike,
    alone,
    bare,
    close,
    encode,
    few,
    finished,
    holds,
    integer,
    integers,
    near,
    normal,
    number,
    ranked,
    ranks,
    real,
    recognized,
    shaped,
    shown,
    shuffled,
    table,
    typed,
    unchanged,
    uniform,
)
from ..oracles.precision import (
    COUNTING,
    FORBIDDEN,
    LOADING,
    SLIPS,
    Masters,
    blamed,
    looks_like,
    rounded,
    scales,
)
from ..refuse import LIBRARYS, Refused

# ------------------------------------------------------------
# What PyTorch has of a scaler below its Python classes, `torch._amp_update_scale_` for one: refused in an answer.


class NoKernels(TorchDispatchMode):
    """While it is entered, an operator of torch's own loss scaling raises Refused."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_amp_" in func.name():
            raise Refused(LIBRARYS)
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------
# Rounding: a number in a format of so many bits of exponent and fraction.
#
# The formats are drawn, so that no dtype of any library is the answer.


KNOWN = {(5, 10): "fp16", (8, 7): "bf16", (8, 10): "TF32"}


def _named(form):
    return (
        f"{form[0]} bits of exponent, {form[1]} of fraction" if form else "a format drawn at random"
    )


def as_float(x):
    """A number without its wrapping, as Python has it; inf for an int that is larger than every float."""
    x = bare(x)
    exact = isinstance(x, float | Fraction)
    return real(x) if exact or (type(x) is int and abs(x) > 1e308) else x


class RoundTo(Report):
    """`round_to(x, exponent, fraction)`: x as the nearest number of that format, a float."""

    name = "round_to"
    right = (
        "Tried with fp16, bf16, TF32 and 7 other formats: normal and subnormal numbers, ties, 0, inf, and numbers that are "
        "too large."
    )
    forbidden = FORBIDDEN
    formats = ((5, 10), (8, 7), (8, 10), (4, 3), (3, 4), (6, 9), (9, 12), None, None, None)
    cases = alone((KNOWN.get(f) or _named(f), f) for f in formats)

    def draw(self, case, rng):
        pick = partial(integer, rng)
        exponent, fraction = case.given or (pick(3, 8), pick(2, 12))
        bias = 2 ** (exponent - 1) - 1
        powers = integers(rng, 1 - bias - fraction - 3, bias + 3, 120)
        numbers = [m * 2.0**p for m, p in zip(normal(rng, 120).tolist(), powers)]
        step, most = 2.0 ** (1 - bias - fraction), (2 - 2.0**-fraction) * 2.0**bias
        # the tie between the largest number and what would come next
        edge = most + 2.0 ** (bias - fraction - 1)
        special = [1.0, 0.0, most, edge, most + 0.9 * (edge - most), 4 * most, math.inf, step]
        for k in (0, 1, 2, 3, 2**fraction, 2**fraction + 1):
            special += [(k + 0.5) * step, (k + 0.5) * step * 2.0**bias]
        # ties in float32
        special += [
            1 + 2.0 ** -(fraction + 1) + 2.0**-40,
            1 + 3 * 2.0 ** -(fraction + 1) - 2.0**-40,
        ]
        return [([*special, *(-x for x in special), *numbers], exponent, fraction)]

    def run(self, comm, yours, numbers, exponent, fraction):
        return [as_float(yours(x, exponent, fraction)) for x in numbers]

    def check(self, case, got, numbers, exponent, fraction):
        where = "" if case.given else f"{exponent} bits of exponent, {fraction} of fraction: "
        for y in got:
            typed(y, int | float, f"{where}the result", "a float")
        for x, y in zip(numbers, got, strict=True):
            want = rounded(x, exponent, fraction)
            if y != want:
                hint = looks_like(numbers, got, exponent, fraction) or _region(
                    x, exponent, fraction
                )
                raise Wrong(f"{where}{x!r} becomes {y!r}, and should become {want!r}. {hint}")


def _region(x, exponent, fraction):
    bias = 2 ** (exponent - 1) - 1
    smallest, most = 2.0 ** (1 - bias), (2 - 2.0**-fraction) * 2.0**bias
    if x == 0 or math.isinf(x):
        return "0 and inf stay what they are."
    if abs(x) < smallest:
        return f"It is below the smallest normal number, 2^{1 - bias}: there the step is 2^{1 - bias - fraction}."
    if abs(x) > most:
        return f"The largest number is {most!r}; inf begins half a step beyond it."
    power = math.frexp(x)[1] - 1
    return (
        f"It lies between 2^{power} and 2^{power + 1}, where the step is 2^{power - fraction}; a tie goes to the even "
        "multiple."
    )


# ------------------------------------------------------------
# Numbers: what fp16 and bf16 hold, what a model's states take, what a step gains, how long a scale takes.


def predict_precision(
    updates=100, billions=1.5, part=0.8, tensor=989.0, single=67.0, interval=2000
):
    """fp16: a weight of 1 after 100 updates of ¾·2⁻¹⁰. bf16: where a weight of ¼ stops, with updates of 2⁻⁹. fp16: where
    a sum of 2s stops. GB of 1.5 B parameters with masters, Adam, and gradients in fp32; of O2 with SGD and momentum; how
    many times as fast a step is, of which products take 0.8; good steps after three overflows that divide by 4.
    """
    faster = 1 / (part * single / tensor + (1 - part) / 2)
    values = {
        "climbs": 1 + updates * 2.0**-10,
        "stops": 0.5,
        "stuck": 4096.0,
        "states": 18 * billions,
        "momentum": 12 * billions,
        "faster": faster,
        "recovered": 6.0 * interval,
    }
    slips = {
        "climbs": {
            1
            + updates
            * 0.75
            * 2.0
            ** -10: "That is where it ends in fp32: in fp16 the step at 1 is 2⁻¹⁰, and every sum is rounded.",
            1.0: "¾ of a step is more than half a step: it is rounded up.",
        },
        "stops": {
            1.0: "At ½ the step of bf16 is 2⁻⁸: 2⁻⁹ is half of it, and the tie goes to ½, which is even.",
            0.25: "At ¼ the step of bf16 is 2⁻⁹: an update is a whole step.",
            2.0: "At ½ the step of bf16 is 2⁻⁸ already: the fraction has 7 bits.",
            4.0: "That is where it stops in fp16, whose fraction has 10 bits: bf16 has 7.",
        },
        "stuck": {
            2048.0: "At 2048 the step is 2: adding 2 is a whole step.",
            8192.0: "At 4096 the step is 4: 2 is half of it, and the tie goes to 4096, which is even.",
        },
        "states": {
            16 * billions: "Gradients in fp16 would take that: these are in fp32.",
            20 * billions: "The gradients are in fp32 instead of fp16, not in both.",
            14
            * billions: "Did you count both the masters (4 bytes each) and the fp16 weights (2 bytes each)?",
            18 * billions * 1e9 / 2**30: "Those are GiB: GB are asked for.",
        },
        "momentum": {
            16 * billions: "That is what Adam takes: SGD with momentum has one state, not two.",
            8
            * billions: "Did you count both the masters (4 bytes each) and the momentum (4 bytes each)?",
            10
            * billions: "The momentum has the dtype of the weights that are stepped: these are the fp32 masters.",
            6
            * billions: "That is O3: at O2 the masters are stepped, and the momentum is as wide as they are.",
            12 * billions * 1e9 / 2**30: "Those are GiB: GB are asked for.",
        },
        "faster": {
            tensor
            / single: "That holds for the products alone: the rest only gains from moving half the bytes.",
            part * tensor / single
            + (1 - part)
            * 2: "Add up the times that the parts take, not how many times as fast they are.",
            1
            / (
                part * single / tensor + 1 - part
            ): "The part that is bound by memory moves half the bytes, so it takes half the time.",
            2.0: "Large products are bound by FLOPs, and gain much more than a factor of 2.",
            1 / faster: "That is the reciprocal: the fraction of the time that is left.",
        },
        "recovered": {
            3.0
            * interval: "Each overflow divides by 4: it takes two doublings to make up for that.",
            float(interval): "The scale was divided by 4 three times: one doubling is not enough.",
            2.0 * interval: "There were three overflows, not one.",
            6.0: "That is how many times it has to double: each time takes a whole interval.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_precision,
    "Your numbers, GB, times and steps are right within 1 %.",
    {
        "updates": ("{} updates", (50, 200, 300, 400)),
        "billions": ("{:g} billion parameters", (1.3, 2.7, 6.7)),
        "part": ("products that take {:.0%} of the time", (0.7, 0.75, 0.9)),
        "interval": ("an interval of {:,}", (500, 1000, 1500)),
    },
)


# ------------------------------------------------------------
# A dynamic scale: it grows, backs off, and goes on where it was saved.


class Scaler(Exam):
    """`Scaler(init, growth, backoff, interval, patience, least)`: `.scale`, `.scaled`, `.update`, `.state`, `.load`."""

    name = "scaler"
    right = (
        "Tried with growth and back-off, patience, a least scale, overflows in a row and at the end of an interval, and a "
        "loss in fp16; saved and loaded, then loaded in another process."
    )
    forbidden = FORBIDDEN
    # what, (init, growth, backoff, interval, patience, least), overflows; None: drawn
    kinds = (
        ("3 good steps", (8.0, 2.0, 0.5, 3, 1, 1.0), "..."),
        ("an overflow", (8.0, 2.0, 0.5, 3, 1, 1.0), "..x...."),
        ("saved after 4 good steps of 5", (8.0, 2.0, 0.5, 5, 1, 1.0), "......"),
        ("two overflows in a row", (2.0**16, 2.0, 0.5, 2, 1, 1.0), ".xx...."),
        ("other factors", (100.0, 3.0, 0.25, 2, 1, 1.0), "..x....x"),
        ("no step is good", (4.0, 2.0, 0.5, 5, 1, 2.0**-20), "xxxx"),
        ("down to the least scale", (4.0, 2.0, 0.5, 2, 1, 1.5), "xxxx...."),
        ("a patience of 2", (64.0, 2.0, 0.5, 4, 2, 1.0), "..x...x.xx...."),
        ("a patience of 3", (64.0, 2.0, 0.5, 2, 3, 1.0), ".x.xx....x.x.x"),
        ("saved after 1 overflow of 2", (8.0, 2.0, 0.5, 6, 2, 1.0), ".x..x..."),
        ("30 steps drawn at random", (2.0**10, 2.0, 0.5, 3, 1, 1.0), None),
        ("40 steps drawn at random", (2.0**12, 4.0, 0.5, 4, 2, 1.0), None),
        ("a scale that grows above 2²⁴", (2.0**22, 2.0, 0.5, 1, 1, 1.0), "......"),
    )
    cases = tuple(Case(1, what, rest) for what, *rest in kinds)
    processes = (
        Case(2, "saved in one process, loaded in another", ((4.0, 2.0, 0.5, 4, 2, 1.0), None)),
    )

    def draw(self, case, rng):
        how, marks = case.given
        count = 40 if "40" in case.what else 30
        found = (
            [m == "x" for m in marks]
            if marks
            else (torch.rand(count, generator=rng) < 0.15).tolist()
        )
        at = 4 if "saved" in case.what else integer(rng, 1, len(found))
        if case.n == 2:
            return [(how, found[:at]), (how, found[at:])]
        loss = 1 + torch.rand((), generator=rng)
        return [(how, found, at, [loss, loss.to(torch.float16) * 4, math.nan * loss])]

    def run(self, comm, yours, how, found, *rest):
        with NoKernels():
            run = self._alone if rest else partial(self._handed_on, comm)
            return run(yours, how, found, *rest)

    def _handed_on(self, comm, yours, how, found):
        """Rank 0 saves, rank 1 loads: nothing passes from one to the other but the state, as a JSON file has it."""
        size, mine = torch.zeros(1, dtype=torch.int64), yours(*how)
        if comm.rank:
            comm.recv(size, 0)
            text = torch.empty(int(size), dtype=torch.uint8)
            comm.recv(text, 0)
            mine.load(json.loads(bytes(text.tolist())))
        resumed = updated(mine, found)
        if not comm.rank:
            text = torch.tensor(list(json.dumps(mine.state()).encode()), dtype=torch.uint8)
            comm.send(size.fill_(len(text)), 1)
            comm.send(text, 1)
        return resumed

    def _alone(self, yours, how, found, at, losses):
        saved, other = yours(*how), yours(8 * how[0], *how[1:])
        updated(saved, found[:at])
        state = saved.state()
        before = encode(state)
        saved.update(True)  # what was saved stays as it is
        updated(other, [True, False])  # and of what was before nothing is left
        other.load(state)
        fresh, mine = yours(*how), [x.clone() for x in losses]
        leaves = [x.clone().requires_grad_() for x in losses]
        for back in map(fresh.scaled, leaves):
            if isinstance(back, Tensor) and back.requires_grad:
                back.backward()
        return {
            "seen": updated(yours(*how), found),
            "state": state,
            "resumed": updated(other, found[at:]),
            "kept": encode(state) == before,
            "grads": [leaf.grad for leaf in leaves],
            "scaled": [fresh.scaled(x) for x in mine],
            "given": mine,
        }

    def judge(self, case, args, outcome):
        if case.n == 2:
            (how, found), (_, later) = args
            return self._resumed(
                how, found + later, len(found), {"state": {}, "resumed": outcome.results[1]}
            )
        (how, found, at, losses), got = args[0], outcome.results[0]
        marks = "".join("x" if bad else "." for bad in found)
        want, seen = [how[0], *scales(how, found)], [scale_of(s) for s in got["seen"]]
        if seen[0] != want[0]:
            raise Wrong(
                f"before any update the scale is {shown(got['seen'][0])}, and should be {how[0]:g}."
            )
        if seen != want:
            i = next(i for i, (a, b) in enumerate(zip(seen[1:], want[1:])) if a != b)
            _, growth, backoff, interval, patience, least = how
            slips = {text: scales(how, found, slip) for slip, text in COUNTING.items()}
            raise Wrong(
                f"steps {marks} (x: overflow), growth {growth:g}, backoff {backoff:g}, interval {interval}, patience "
                f"{patience}, least {least:g}: "
                f"after step {i} the scale is {shown(got['seen'][i + 1])}, and should be {want[i + 1]:g}. "
                f"{recognized(seen[1:], slips, self._hint(found[i]), eq)}"
            )
        self._scaled(how[0], got["scaled"], losses)
        unchanged(got["given"], losses, "losses")
        if any(g is None for g in got["grads"]) or not got["grads"][0].equal(torch.tensor(how[0])):
            raise Wrong(
                "scaled(loss) gives the right number, but a backward that begins there does not give the loss a "
                "gradient that equals the scale: multiply the tensor itself."
            )
        self._resumed(how, found, at, got)
        kept = (
            "what state() returned changes later, with the updates of a scaler that saved or loaded it: save and load "
            "numbers, not the dict or list that a scaler works with."
        )
        holds(got, {"kept": kept})

    def _hint(self, bad):
        if bad:
            return "From number `patience` on, every overflow multiplies the scale by `backoff`, down to `least`."
        return "The scale is multiplied by `growth` after `interval` good steps in a row."

    def _scaled(self, scale, scaled, losses):
        for x, given in zip(scaled, losses, strict=True):
            typed(x, Tensor, "scaled(loss)", "a tensor: backward begins there")
            want = given.float() * scale
            if x.dtype != torch.float32 or not near(x, want, 1e-6):
                name = str(given.dtype).removeprefix("torch.")
                looks = {
                    "It is not multiplied.": given.float(),
                    "It is divided.": given.float() / scale,
                }
                hint = recognized(x.float(), looks, "")
                if given.dtype == torch.float16:
                    hint = "A loss in fp16 may overflow when it is multiplied: convert it to fp32 first."
                raise Wrong(
                    f"scaled(loss) of a loss of {given.item():g} in {name}, scale {scale:g}, is "
                    f"{x.double().mean():g} in {str(x.dtype)[6:]}, and should be {want.item():g} in float32. "
                    f"{hint}".rstrip()
                )

    def _resumed(self, how, found, at, got):
        if not plain(got["state"]):
            raise Wrong(
                "state() returns what cannot be written to a JSON file: numbers by name are enough."
            )
        whole = scales(how, found)
        want = [whole[at - 1], *whole[at:]]
        seen = [scale_of(s) for s in got["resumed"]]
        if seen != want:
            hint = "The scale is not in the state, or not loaded. Or has a later update changed what was saved?"
            if seen[0] == want[0]:
                forgotten = {
                    text: scales(how, found, slip, at)[at:] for slip, text in LOADING.items()
                }
                rule = "After load() both counts are those of the state, and nothing is left of what was before."
                hint = recognized(seen[1:], forgotten, rule, eq)
            marks = "".join("x" if bad else "." for bad in found)
            raise Wrong(
                f"steps {marks} (x: overflow), saved after {at} of them and loaded into another scaler: its scales are "
                f"{got['resumed']}, and should be {want}. {hint}"
            )


def updated(scaler, found: list[bool]) -> list:
    """Its scale, before and after each update."""
    scales = [as_float(scaler.scale)]
    for bad in found:
        scaler.update(bad)
        scales.append(as_float(scaler.scale))
    return scales


def scale_of(x) -> float:
    """A scale as a number; nan for anything else."""
    return real(x) if isinstance(x, int | float) and not isinstance(x, bool) else math.nan


def plain(x) -> bool:
    """Whether JSON could hold it."""
    if isinstance(x, dict):
        return all(isinstance(k, str) and plain(v) for k, v in x.items())
    if isinstance(x, list | tuple):
        return all(map(plain, x))
    return x is None or isinstance(x, int | float | str)


# ------------------------------------------------------------
# Lists of functions: a function mode that casts what they are given.
#
# The functions are probes, which keep what reaches them; then a small network, with its gradients.


KINDS = ("white", "black", "gray", "unlisted")
NAMES = ("matmul", "softmax", "cat")
f16 = torch.float16
bf16 = torch.bfloat16
f32 = torch.float32
f64 = torch.float64
CAST = (f16, bf16, f32)


def probe(name: str, seen: list):
    """A function that modes see as one of torch's; it keeps the tensors that reach it."""

    def function(*args, **kwargs):
        given = tensors((args, kwargs))
        if has_torch_function(given):
            return handle_torch_function(function, given, *args, **kwargs)
        seen.append(
            [
                [x.clone() for x in given],
                sorted(kwargs),
                [a for a in args if isinstance(a, int | float)],
            ]
        )
        return given[0] * 1

    function.__name__ = name
    return function


def tensors(value) -> list[Tensor]:
    """All tensors in a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [x for v in value for x in tensors(v)] if isinstance(value, list | tuple) else []


class Autocast(Report):
    """`Autocast(dtype, white, black, gray)`: a TorchFunctionMode that casts by the names of functions."""

    name = "autocast"
    right = (
        "Tried with fp16 and bf16, all three lists, arguments by position, by name, in lists and in tuples, float64, "
        "integers, and the gradients of a network."
    )
    forbidden = (*FORBIDDEN, "torch.amp.autocast_mode")
    # how they are given, and what comes with them: names, and numbers
    ways = {
        "two tensors": ([], []),
        "by name": (["none", "other"], []),
        "in a list": ([], []),
        "in a tuple and a number": ([], [3]),
    }
    # the dtype of `Autocast`, and those of the two tensors
    cases = table(
        lambda _, first, second: f"{str(first)[6:]} and {str(second)[6:]}",
        (
            (f16, f32, f16),
            (bf16, bf16, f32),
            (bf16, f32, bf16),
            (f16, f64, f16),
            (bf16, f32, torch.int64),
            (f16, f16, f16),
            (bf16, f16, bf16),
        ),
    )
    cases += (Case(1, "a network", None),)

    def draw(self, case, rng):
        names = [NAMES[i] + f"_{integer(rng, 0, 100)}" for i in shuffled(rng, len(NAMES))]
        names.append(names[0] + "_")  # another name, as torch's in-place functions have
        drawn = lambda *shape: normal(rng, *shape, dtype=torch.float32)
        if case.given is None:
            target = torch.randint(3, (6,), generator=rng)
            return [(names, "float16", [drawn(6, 4), drawn(8, 4), drawn(3, 8), target])]
        dtype, *two = case.given
        x, y = [(4 * drawn(*shape)).to(d) for shape, d in zip(((2, 3), (4, 5)), two)]
        x[0, :2] = torch.tensor([math.nan, 1e5])  # a cast hides neither
        return [(names, str(dtype)[6:], [x, y])]

    def run(self, comm, yours, names, dtype, given):
        dtype = getattr(torch, dtype)
        if len(given) == 4:
            return self._network(yours, dtype, *given)
        seen: list = []
        functions = [probe(name, seen) for name in names]
        mode = yours(dtype, {names[0]}, {names[1]}, {names[2]})
        x, y = given
        out = []
        with mode:
            for f in functions:
                out += [f(x, y), f(x, other=y, none=None), f([x, y]), f((x, y), 3)]
            for tensor in given:
                tensor += 1
            functions[0](x, y)
        kind = lambda r: str(r.dtype)[6:] if isinstance(r, Tensor) else "no tensor"
        return {"seen": seen, "kinds": list(map(kind, out))}

    def _network(self, yours, dtype, x, w, v, target):
        weights = [nn.Parameter(w), nn.Parameter(v)]
        with yours(dtype, {"linear"}, {"cross_entropy"}, {"cat"}):
            h = F.linear(x, weights[0]).relu()
            z = F.linear(h, weights[1])
            loss = F.cross_entropy(z, target)
        if loss.requires_grad:
            loss.backward()
        return {
            "layers": h.dtype == z.dtype == dtype,
            "graph": all(p.grad is not None for p in weights),
            "found": [loss.detach(), *(p.grad for p in weights)],
            "kept": all(p.dtype == f32 for p in weights),
        }

    def check(self, case, got, names, word, given):
        if case.given is None:
            return self._judge_network(given, got)
        if len(got["seen"]) != 17:
            raise Wrong(
                f"17 calls were made, and {len(got['seen'])} have reached their function: call func once for each."
            )
        dtype = case.given[0]
        for call, (kind, way) in enumerate(product(KINDS, self.ways)):
            try:
                others = self.ways[way]
                self._call(kind, dtype, given, got["seen"][call], got["kinds"][call], others)
            except Wrong as wrong:
                raise Wrong(
                    f"a{'n' * (kind == 'unlisted')} {kind} function, {way}: {wrong}"
                ) from None
        try:
            self._received("white", dtype, [x + 1 for x in given], got["seen"][16][0])
        except Wrong as wrong:
            raise Wrong(
                f"a white function, after 1 was added in place to what it is given: {wrong} Is an earlier cast kept?"
            ) from None

    def _call(self, kind, dtype, given, seen, returned, others):
        found, names, numbers = seen
        if (names, numbers) != others:
            raise Wrong(
                "an argument that is not a tensor, or one given by name, was lost on the way: hand everything on to func."
            )
        self._received(kind, dtype, given, found)
        if returned != str(found[0].dtype)[6:]:
            raise Wrong(
                f"the function returns {str(found[0].dtype)[6:]}, and {returned} comes back: return what func returns, "
                "as it is."
            )

    def _received(self, kind, dtype, given, found):
        wide = {x.dtype for x in given if x.dtype in CAST}
        to = {
            "white": dtype,
            "black": f32,
            "gray": wide.copy().pop() if len(wide) == 1 else f32,
        }.get(kind)
        wants = [x.to(to) if to and x.dtype in CAST else x for x in given]
        rule = {
            "white": f"white: its tensors are cast to {str(dtype)[6:]}",
            "black": "black: its tensors are cast to float32",
            "gray": "gray: its tensors are cast to the widest dtype among them (float32, if two dtypes meet)",
            "unlisted": "on no list: its arguments stay as they are",
        }[kind]
        if len(found) != len(wants):
            raise Wrong(f"{len(wants)} tensors were given, and {len(found)} reached the function.")
        for x, got, want in zip(given, found, wants, strict=True):
            if got.dtype != want.dtype:
                extra = "" if x.dtype in CAST else f" {str(x.dtype)[6:]} is left alone."
                both = ", ".join(str(g.dtype)[6:] for g in given)
                raise Wrong(
                    f"of two tensors, {both}, one of {str(x.dtype)[6:]} reaches it as {str(got.dtype)[6:]}, and should "
                    f"reach it as {str(want.dtype)[6:]}. The function is {rule}.{extra}"
                )
            if encode(got) != encode(want):
                raise Wrong(
                    f"apart from the cast, the numbers that reach it are not those that were given. It is {rule}. "
                    "Is a tensor changed in place, by .data or copy_? Others use it, too."
                )

    def _judge_network(self, given, got):
        x, w, v, target = given
        params = [w.clone().requires_grad_(), v.clone().requires_grad_()]
        # With the casts: a number near 0, rounded, may be on the other side of relu's corner than in fp32.
        h = F.linear(x.half(), params[0].half()).relu()
        loss = F.cross_entropy(F.linear(h, params[1].half()).float(), target)
        loss.backward()
        layers = "a layer's output has the wrong dtype: linear is white."
        cast = "a parameter has another dtype than before: cast what func is given, not the model."
        cut = (
            "was the graph cut, by detach, .data or no_grad? `x.to(dtype)` is recorded by autograd."
        )
        holds(got, {"layers": layers, "kept": cast, "graph": f"a weight has no gradient: {cut}"})
        rule = "linear is white and cross_entropy is black; rounding makes a difference of 3 % at most."
        wants = (loss.detach(), *(p.grad for p in params))
        for what, x, want in zip(("the loss", *["a weight's gradient"] * 2), got["found"], wants):
            close(x, want, what, None, rule, 0.03)


# ------------------------------------------------------------
# Who overflowed: a function mode that looks, and changes nothing.
#
# The calls are drawn: names, what each is given, and what it then returns. So nobody knows better than by looking.


CALLS = {  # a call: what it is given and returns, in words, and what to say where it is judged wrongly
    "fine": ("gets and returns finite numbers", ""),
    "overflow": ("gets finite numbers and returns an inf", ""),
    "nan": ("gets finite numbers and returns a nan", "A nan counts as well as an inf does."),
    "passed on": (
        "gets an inf and returns one",
        "It is not to blame: it got what another function had made.",
    ),
    "by name": ("gets an inf by name and returns one", "Look at what is given by name, too."),
    "in a list": (
        "gets an inf in a list and returns one",
        "Look into lists and tuples that are given.",
    ),
    "on purpose": (
        "gets the number −inf and returns it",
        "An infinite number was given on purpose.",
    ),
    "on purpose, by name": (
        "gets the number −inf by name and returns it",
        "An infinite number was given on purpose.",
    ),
    "a pair": (
        "returns a tuple with an inf in its second tensor",
        "Look into a tuple that is returned.",
    ),
    "a list": (
        "returns a list with a nan in its last tensor",
        "Look into a list that is returned.",
    ),
    "in place": (
        "writes an inf into the tensor that it gets",
        "Look at what is given before the call: in place, the same tensor is another afterwards.",
    ),
    "cured": ("gets a nan and returns finite numbers", "What it returns is finite."),
    "large": (
        "returns large numbers, all of them finite",
        "Look at each number, not at their sum or norm.",
    ),
    "integers": ("gets and returns whole numbers", "Whole numbers are always finite."),
    "a number": ("gets a number and returns a tensor with an inf", ""),
}


class Overflowed(Report):
    """`overflowed(function, *given)`: the names of the operators that made an inf or nan of finite numbers."""

    name = "overflowed"
    right = (
        "Tried with inf and nan that are given by position, by name, in lists and tuples, and on purpose, with functions "
        "that work in place, and with a network in fp16."
    )
    forbidden = FORBIDDEN
    cases = alone({"each kind of call": 0, "another order": 1, "nothing overflows": 2})
    networks = {
        "a network": [],
        "a network with large weights": ["linear"],
        "a network with a large input": ["linear"],
        "a network whose exponential overflows": ["exp"],
    }
    cases += alone((name, name) for name in networks)

    def draw(self, case, rng):
        if isinstance(case.given, str):
            drawn = lambda *shape: normal(rng, *shape, dtype=torch.float32).half()
            x, w, v = map(drawn, (4, 5, 3), (6, 6, 5))
            if "large weights" in case.given:
                x[0], w[1] = 1.0, 4e4
            if "large input" in case.given:
                x[2], w[0] = 3e4, 1.0
            mask = torch.zeros(4, 5, dtype=torch.bool)
            mask[1, integer(rng, 1, 5)] = True
            return [([], [x, w, v, mask, 100.0 if "exponential" in case.given else 2.0])]
        kinds = [list(CALLS)[i] for i in shuffled(rng, len(CALLS))]
        names = [f"{NAMES[i % len(NAMES)]}_{i}" for i in shuffled(rng, len(kinds))]
        calls = [self._call(kind, name, rng) for kind, name in zip(kinds, names)]
        if case.given == 2:
            calls = [call for call in calls if not blamed([call])]
        return [(calls, [])]

    def _call(self, kind, name, rng):
        """A call as (name, args, kwargs, output, kind)."""
        good = normal(rng, 2, 3, dtype=torch.float32)
        other = normal(rng, 4, dtype=torch.float32)
        bad, strange = good.clone(), good.clone()
        bad[1, integer(rng, 0, 3)] = (math.inf, -math.inf)[integer(rng, 0, 2)]
        strange[0, integer(rng, 0, 3)] = math.nan
        whole = torch.arange(5)
        args, kwargs, output = {
            "fine": ([good, other], {}, good + 1),
            "overflow": ([good, other], {}, bad),
            "nan": ([good], {"other": other}, strange),
            "passed on": ([other, bad], {}, bad),
            "by name": ([good], {"other": bad}, bad),
            "in a list": ([[good, bad]], {}, bad),
            "on purpose": ([good, -math.inf], {}, bad),
            "on purpose, by name": ([good], {"value": -math.inf}, bad),
            "a pair": ([good], {}, (good, bad)),
            "a list": ([good], {"dim": 0}, [good, bad, strange]),
            "in place": ([good, other], {}, bad),
            "cured": ([strange], {"other": other}, good),
            "large": ([good], {"other": other}, 3e38 + 0 * good),
            "integers": ([whole, 3], {}, whole + 3),
            "a number": ([good, 1e30], {}, bad),
        }[kind]
        return name, args, kwargs, output, kind

    def run(self, comm, yours, calls, given):
        came: list = []
        if given:
            return {"found": yours(partial(self._network, came), *given), "came": came}
        before = [encode((args, kwargs)) for _, args, kwargs, *_ in calls]
        found = yours(partial(self._replay, calls, came), 7)
        for row, args in zip(came, before):
            made = row[1]
            row[1] = len(made) == 1 and encode(made[0]) == args
        return {"found": found, "came": came}

    def _replay(self, calls, came, number):
        """Make the calls; note of each what reached it, and whether its output came back."""
        for name, args, kwargs, output, kind in calls:
            made: list = []
            function = replayed(name, made, output, kind == "in place")
            row = [number == 7, made, False]
            came.append(row)
            back = function(*args, **kwargs)
            row[2] = back is (args[0] if kind == "in place" else output)

    def _network(self, came, x, w, v, mask, factor):
        h = F.linear(x, w).masked_fill(mask, -math.inf)
        p = F.softmax(h, -1).mul_(factor)
        out = F.linear(torch.exp(p), v)
        came.append([x.shape == (4, 6), out.dtype == f16, True])
        return torch.cat([out, h], 1)

    def check(self, case, got, calls, given):
        rows = [[True, True, True]] * (1 if given else len(calls))
        if got["came"] != rows:
            raise Wrong(self._disturbed(got["came"], rows))
        found = list(shaped(got["found"], [str], "the result", "a list of names"))
        want, words = blamed(calls), {name: CALLS[kind] for name, *_, kind in calls}
        if given:
            want = self.networks[case.given]
            words = {
                "linear": CALLS["overflow" if "linear" in want else "fine"],
                "exp": CALLS["overflow" if "exp" in want else "passed on"],
                "masked_fill": CALLS["on purpose"],
                "softmax": CALLS["passed on"],
            }
        self._compare(found, want, words)

    def _compare(self, found, want, words):
        for name in found:
            if name not in want:
                what, hint = words.get(
                    name,
                    ("is no function that was called", "A function's name is `func.__name__`."),
                )
                raise Wrong(f"{shown(name)} is in the list, but it {what}. {hint}".rstrip())
        for name in want:
            if name not in found:
                what, hint = words[name]
                raise Wrong(f"{name!r} is not in the list, but it {what}. {hint}".rstrip())
        if found != want:
            raise Wrong(
                f"the list is {found}, and should be {want}: each name once, in the order of the calls."
            )

    def _disturbed(self, came, rows):
        if len(came) != len(rows):
            return (
                f"`function` makes {len(rows)} calls if it is called once, and {len(came)} were made: call it once, as "
                "function(*given), and let it finish."
            )
        number, as_given, _ = next(row for row in came if row != [True, True, True])
        if not number:
            return "`function` did not get what was given: call it as function(*given)."
        if not as_given:
            return (
                "a function of PyTorch was not called exactly once with its own arguments, by position and by name: only "
                "look, and change nothing."
            )
        return "what a function of PyTorch returned did not come back to its caller: return it as it is."


def replayed(name: str, made: list, output, in_place: bool):
    """A function that modes see as one of torch's; it keeps what it is given, and returns `output`, whatever that is."""

    def function(*args, **kwargs):
        given = tensors((args, kwargs))
        if has_torch_function(given):
            return handle_torch_function(function, given, *args, **kwargs)
        made.append(copied((list(args), kwargs)))
        if not in_place:
            return output
        args[0].copy_(output)
        return args[0]

    function.__name__ = name
    return function


def copied(value):
    """A value with copies of its tensors."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value


# ------------------------------------------------------------
# Master weights: unscale, look, skip or step, round.
#
# Sequences of steps, so that what an update loses, or a skipped step changes, adds up and shows.


FP32 = 5e-7  # its rounding, over some steps
SHAPES = ((3, 4), (5,), (2, 3, 4), (7,))
LISTS = ("weights", "masters", "momenta")


class MasterStep(Report):
    """`master_step(weights, masters, momenta, grads, scale, lr, mu)`: whether it stepped; all in place."""

    name = "master_step"
    right = (
        "Tried with fp16 and bf16, tiny and large gradients, missing ones, shared weights, inf and nan, and several steps in "
        "a row."
    )
    forbidden = FORBIDDEN
    # what, dtype, scale, size of a gradient times the scale, steps, {step: (place, what is planted)}, the place without a
    # gradient; and of which weight each place is, where one is shared
    kinds = (
        ("one step", f16, 1024.0, 1.0, 1, {}, None),
        ("gradients near 2⁻³⁰", f16, 2.0**20, 2.0**-10, 3, {}, None),
        ("updates below a step of the weights", f16, 256.0, 4.0, 12, {}, None),
        ("no gradient for the second tensor", f16, 256.0, 1.0, 3, {}, 1),
        ("large gradients, all finite", f16, 2.0**16, 40_000.0, 2, {}, None),
        ("an inf in step 1", f16, 2.0**16, 8.0, 3, {1: (0, math.inf)}, None),
        ("a −inf in step 0", f16, 2.0**16, 8.0, 2, {0: (3, -math.inf)}, None),
        ("a nan in step 2", f16, 2.0**16, 8.0, 4, {2: (2, math.nan)}, 0),
        ("bf16", bf16, 1.0, 0.5, 6, {}, None),
        ("gradients that are 0", f16, 256.0, 0.0, 2, {}, None),
        ("large gradients in bf16", bf16, 1.0, 1e38, 1, {}, None),
        ("a weight at two places", f16, 1024.0, 1.0, 3, {}, None, (0, 1, 2, 3, 0)),
        ("a weight at three places", bf16, 1.0, 0.5, 3, {}, None, (1, 0, 1, 2, 3, 1)),
        ("a shared weight, without the first part", f16, 256.0, 1.0, 2, {}, 0, (0, 1, 2, 3, 0)),
        ("a shared weight, without the last part", f16, 256.0, 1.0, 2, {}, 4, (0, 1, 2, 3, 0)),
        ("a shared weight with large parts", f16, 2.0**16, 40_000.0, 2, {}, None, (0, 1, 2, 3, 0)),
        (
            "a shared weight, an inf in its last part",
            f16,
            2.0**16,
            8.0,
            2,
            {0: (4, math.inf)},
            None,
            (0, 1, 2, 3, 0),
        ),
    )
    cases = tuple(Case(1, kind[0], kind[1:]) for kind in kinds)

    def draw(self, case, rng):
        dtype, scale, size, steps, planted, none, *shared = case.given
        places = list(shared[0]) if shared else [0, 1, 2, 3]
        drawn = lambda shapes: [normal(rng, shape, dtype=torch.float32) for shape in shapes]
        weights = [x.sign() * (1 + x.abs().clamp(max=0.9)) for x in drawn(SHAPES)]
        rate = 2.0**-13 / ((size or 1.0) / scale) if dtype == f16 or size > 1 else 2.0**-10
        grads = []
        for step in range(steps):
            parts = drawn(SHAPES[place] for place in places)
            now = [(size * (x / x.abs().max())).to(dtype) for x in parts]
            if size > 1e4:  # their sum overflows, none of them does
                now = [(size * (1 + x.abs() / 10)).to(dtype) for x in parts]
                now[0].view(-1)[0] = torch.finfo(f16).max if dtype == f16 else size
            if step in planted:
                place, value = planted[step]
                now[place].view(-1)[-1] = value
            grads.append([None if i == none else g for i, g in enumerate(now)])
        momenta = [0.5 * (size or 1.0) / scale * x for x in drawn(SHAPES)]
        mu = 0.8 + 0.15 * uniform(rng)
        halves = [w.to(dtype) for w in weights]
        return [(halves, [w + 1e-5 for w in weights], momenta, places, grads, scale, rate, mu)]

    def run(self, comm, yours, weights, masters, momenta, places, grads, scale, lr, mu):
        kept, steps = [list(some) for some in (weights, masters, momenta)], []
        for step in grads:
            given = [None if g is None else g.clone() for g in step]
            with NoKernels():
                # of the same memory: `w.data = …` does not write
                mine = [[x.detach() for x in some] for some in kept]
                told = yours(*[[some[i] for i in places] for some in mine], given, scale, lr, mu)
            after = {
                name: [x.clone() for x in some] for name, some in zip(LISTS, kept, strict=True)
            }
            steps.append({"told": told, "grads": given, **after})
        return steps

    def check(self, case, found, weights, masters, momenta, places, grads, scale, lr, mu):
        start = (weights, masters, momenta, places, scale, lr, mu)
        right = Masters(*start)
        wrongs = {text: Masters(*start, slip) for slip, text in SLIPS.items()}
        for i, (now, got) in enumerate(zip(grads, found, strict=True)):
            stepped, where = right.step(now), f"step {i}: "
            for wrong in wrongs.values():
                wrong.step(now)
            self._told(where, got["told"], stepped)
            for name in ("momenta", "masters"):
                self._same(where, name, got, right, wrongs, stepped)
            self._copies(where, got, right)
            unchanged(got["grads"], now, f"{where}grads")

    def _told(self, where, told, stepped):
        told = bool(told) if isinstance(told, Tensor) and told.numel() == 1 else told
        typed(told, bool, f"{where}the result", "True or False: whether it stepped")
        if told and not stepped:
            raise Wrong(
                f"{where}it returns True, that it stepped, but a gradient has an inf or nan."
            )
        if stepped and not told:
            raise Wrong(
                f"{where}it returns False, that it skipped, but every gradient is finite. Did you look at their sum, which "
                "overflows in fp16? Or does None count as an overflow? Look at each number: isfinite()."
            )

    def _same(self, where, name, got, right, wrongs, stepped):
        for i, (x, want) in enumerate(zip(got[name], getattr(right, name), strict=True)):
            looks = {text: getattr(w, name)[i] for text, w in wrongs.items()}
            rule = (
                "It should be v ← mu·v + g, then master ← master − lr·v, with g in fp32 and divided by the scale, once for "
                "each weight."
            )
            rule = rule if stepped else "This step is to be skipped: nothing may change."
            close(x, want, f"{where}{name}[{i}]", looks, rule, FP32)

    def _copies(self, where, got, right):
        for i, (w, m) in enumerate(zip(got["weights"], got["masters"], strict=True)):
            if w.dtype != right.weights[i].dtype or w.shape != m.shape:
                raise Wrong(f"{where}weights[{i}] has a different dtype or shape than before.")
            if not w.equal(right.weights[i]) and not w.equal(m.to(w.dtype)):
                raise Wrong(
                    f"{where}weights[{i}] is not its rounded master. The model computes with this very tensor: copy into "
                    "it, in place, after every step."
                )


# ------------------------------------------------------------
# Ranks: all step, or none, though each sees only its own gradients.


FLAG = 8  # bytes of a flag, at most


class ShardedStep(Exam):
    """`sharded_step(comm, weights, grads, scale, lr)`: all ranks step or none; returns the next scale."""

    name = "sharded_step"
    right = (
        "Tried on 1 to 4 ranks, then in 3 real processes, with an overflow on any rank, on all and on none, and with a rank "
        "that has no parameters."
    )
    forbidden = FORBIDDEN
    step = 2.0
    # n, ranks that overflow (-1: the last), ranks without parameters
    given = (
        (2, (), ()),
        (2, (1,), ()),
        (3, (0,), ()),
        (4, (2,), ()),
        (3, (0, 1, 2), ()),
        (4, (-1,), (1,)),
        (3, (), (2,)),
        (1, (), ()),
        (1, (0,), ()),
        (2, (), (), 3e38),
    )
    cases = ranked(
        lambda n, bad, empty, *large: (
            f"n = {n}, {'no overflow' if not bad else f'an overflow on {ranks([b % n for b in bad])}'}"
            f"{f', no parameters on {ranks(list(empty))}' if empty else ''}{', large gradients' * bool(large)}"
        ),
        given,
    )
    processes = (
        Case(3, "3 real processes, an overflow on rank 1", ((1,), ())),
        # of as many: who says nothing cannot know which
        Case(3, "3 real processes, no overflow", ((), ())),
    )

    def draw(self, case, rng):
        bad, empty, *large = case.given
        out, scale = [], 2.0 ** integer(rng, 8, 17)
        lr = 0.1 + uniform(rng)
        for r in range(case.n):
            shapes = () if r in empty else ((3,), (2, 4))
            weights, grads = (
                [normal(rng, s, dtype=torch.float32) for s in shapes] for _ in range(2)
            )
            if large:  # each is finite, and neither their squares nor their sum
                grads = [large[0] / scale + 0 * g for g in grads]
            if r in [b % case.n for b in bad]:
                grads[1].view(-1)[2] = (math.nan, math.inf, -math.inf)[r % 3]
            out.append((weights, [g * scale for g in grads], scale, lr))
        return out

    def run(self, comm, yours, weights, grads, scale, lr):
        # of the same memory: `w.data = …` does not write into it
        mine, given = [w.detach() for w in weights], [g.clone() for g in grads]
        told = yours(comm, list(mine), given, scale, lr)
        finished(comm)
        after = [
            w if (w.shape, w.dtype) == (m.shape, m.dtype) else m
            for w, m in zip(weights, mine, strict=True)
        ]
        return {"scale": as_float(told), "weights": after}

    def judge(self, case, args, outcome):
        bad = [b % case.n for b in case.given[0]]
        stepped = [
            self._stepped(r, args[r], outcome.results[r]["weights"], bad)
            for r in range(case.n)
            if args[r][0]
        ]
        holders = [r for r in range(case.n) if args[r][0]]
        moved = [r for r, s in zip(holders, stepped) if s]
        if bad and moved:
            raise Wrong(
                f"{ranks(moved)} stepped, though {ranks(bad)} had an overflow: all should step, or none. Now parts of the "
                "model have made a different number of steps."
            )
        still = [r for r in holders if r not in moved]
        if not bad and still:
            raise Wrong(
                f"{ranks(still)} skipped, though no gradient of any rank has an inf or nan. (Or were new tensors made? "
                "`w -= …` changes the weight itself.)"
            )
        for r, got in enumerate(outcome.results):
            self._scale(r, got["scale"], args[r][2] / 2 if bad else args[r][2], bad)
        self._traffic(case, outcome)

    def _stepped(self, rank, args, after, bad):
        weights, grads, scale, lr = args
        moved = []
        for i, (before, g, now) in enumerate(zip(weights, grads, after, strict=True)):
            want = before - lr * g / scale
            alike(now, want, f"rank {rank}: weights[{i}]")
            moved.append(not now.equal(before))
            looks = {
                "The gradient was not divided by the scale.": before - lr * g,
                "It goes up the gradient: subtract.": before + lr * g / scale,
            }
            rule = "It is neither as before nor stepped: a step is w ← w − lr·g/scale, and a skip does nothing."
            if moved[-1]:
                close(now, want, f"rank {rank}: weights[{i}]", looks, rule, 1e-5)
        if len(set(moved)) > 1:
            raise Wrong(
                f"rank {rank}: one of its tensors stepped, and another did not: look at all gradients before the first "
                "step."
            )
        return bool(moved and moved[0])

    def _scale(self, rank, got, want, bad):
        number(got, f"rank {rank}: the next scale")
        if got != want:
            hint = (
                "The scales of the ranks would differ from now on."
                if bad and rank not in bad
                else "It is halved after an overflow on any rank, and otherwise stays as it was."
            )
            raise Wrong(f"rank {rank}: the next scale is {got:g}, and should be {want:g}. {hint}")

    def _traffic(self, case, outcome):
        most = 2 * (case.n - 1)
        hint = "One flag is enough. Is there a flag for each tensor, or are gradients sent?"
        few(outcome, most * FLAG, hint, most)

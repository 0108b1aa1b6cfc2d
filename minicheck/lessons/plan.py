"""The exercises of lesson 22, Plan a run: memory by stage, what an error decides, a machine, why a grid loses, MFU."""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import product

from ..exam import (
    Prediction,
    Report,
    Solo,
    Wrong,
    attempt,
    bare,
    close,
    entries,
    integer,
    near,
    number,
    real,
    refusal,
    shuffled,
    table,
    typed,
    unchanged,
    uniform,
    unpacked,
)
from ..oracles import plan as oracle

FORBIDDEN = ("minidist.study", "minicheck.oracles.plan")

# ------------------------------------------------------------
# The fullest stage: weights at the ends, activations at the beginning.


class FullestStage(Solo):
    """`fullest_stage(hidden, vocab, tokens, layers, stages, tensor, data, zero, micro_batch, micro_batches)`."""

    name = "fullest_stage"
    right = "20 pipelines: uneven layers, ZeRO 0 to 3, few micro-batches, one stage, a large vocabulary: stage and bytes."
    forbidden = FORBIDDEN
    returns = ("the stage", "the number of bytes")
    # layers, stages, ZeRO, micro-batches, and whether words or activations outweigh the rest
    cases = table(
        "{} layers on {} stages, ZeRO {}, {} micro-batches, {}",
        (
            *((24, 4, 0, 8, "even"), (26, 4, 1, 8, "even"), (24, 4, 2, 2, "even")),
            *((12, 1, 3, 4, "even"), (12, 1, 0, 4, "words"), (18, 4, 1, 16, "words")),
            *((8, 8, 3, 32, "words"), (30, 8, 3, 3, "even"), (7, 3, 2, 5, "tokens")),
            *((10, 4, 1, 1, "words"), (16, 8, 0, 1, "even"), (9, 2, 1, 9, "tokens")),
        ),
    )
    cases += cases[:8]

    def draw(self, case, rng):
        layers, stages, zero, micro_batches, kind = case.given
        hidden = 64 * integer(rng, 8, 40)
        vocab = hidden * layers * 12 if kind == "words" else 64 * integer(rng, 30, 90)
        tokens = 128 * integer(rng, 4, 12) * (8 if kind == "tokens" else 1)
        tensor, data = 2 ** integer(rng, 0, 3), integer(rng, 2, 9)
        if (
            tensor == micro_batches
        ):  # logits that are not divided would look like those of all micro-batches
            tensor = 8
        batch = integer(rng, 1, 5)
        return [(hidden, vocab, tokens, layers, stages, tensor, data, zero, batch, micro_batches)]

    def wants(self, case, args):
        of = oracle.stage_bytes(*args[0])
        return [{"the stage": of.index(max(of)), "the number of bytes": max(of)}]

    def value(self, case, args, rank, name, got, want):
        of = oracle.stage_bytes(*args[0])
        if name == "the stage":
            got = number(got, name)
            if got == want:
                return
            if got == want + 1:
                raise Wrong(f"the stage is {got}, and should be {want}: stages are counted from 0.")
            hint = f"By yours it is {got}." if got in range(len(of)) else "There is no such stage."
            raise Wrong(
                f"the stage should be {want}, with {max(of):,.0f} bytes. {hint} Layers that are left go "
                "to stages 1, 2, …; words lie at both ends, logits on the last; stage s keeps min(S − s, M) micro-batches; "
                "tensor ranks divide all of it."
            )
        close(got, want, name, partial(_looks_of_stage, args[0]), OTHER_BYTES)


OTHER_BYTES = "Count for each stage its layers, its words, what ZeRO divides by the data ranks, and the micro-batches under way."


def _looks_of_stage(given, got):
    hidden, vocab, tokens, layers, stages, tensor, data, zero, batch, micro_batches = given
    most = lambda *other: max(oracle.stage_bytes(*other))
    less = partial(oracle.stage_bytes, hidden, vocab, tokens, layers, stages)
    words = vocab * hidden / tensor
    kept = 34 * batch * tokens * hidden / tensor
    full = less(tensor, data, zero, batch, micro_batches)
    logits = 6 * batch * tokens * vocab / tensor
    return {
        "That is the lesson's planner, which looks at stage 0 alone, knows only ZeRO 1, and shares out words and layers evenly.": (
            (layers * 12 * hidden**2 + 2 * vocab * hidden) / (tensor * stages) * (6 + 12 / data)
            + kept * layers / stages * min(stages, micro_batches)
        ),
        "Words and logits are missing.": most(hidden, 0, *given[2:]),
        "The logits are missing: 6·b·T·V bytes on the last stage.": max(
            *full[:-1], full[-1] - logits
        )
        if stages > 1
        else full[0] - logits,
        "The last stage has one micro-batch's logits, not M.": full[-1]
        + logits * (micro_batches - 1),
        "Words are missing: the first stage has the embedding, the last the projection, V·H parameters each.": max(
            n - ((s == 0) + (s == stages - 1)) * words * _bytes_of(data, zero)
            for s, n in enumerate(full)
        ),
        "What is left of the layers goes to stages 1, 2, …, not to stage 0.": max(
            n
            + ((s < layers % stages) - (1 <= s <= layers % stages))
            * (
                12 * hidden**2 / tensor * _bytes_of(data, zero)
                + kept * min(stages - s, micro_batches)
            )
            for s, n in enumerate(full)
        ),
        "All M micro-batches are not under way: 1F1B keeps at most S − s of them on stage s.": max(
            n
            + oracle.stage_layers(layers, stages, s)
            * kept
            * (micro_batches - min(stages - s, micro_batches))
            for s, n in enumerate(less(tensor, data, zero, batch, micro_batches))
        ),
        "There are only M micro-batches: min(S − s, M) of them are under way.": most(
            *given[:9], 10**6
        ),
        "Only one micro-batch is counted: stage s keeps up to S − s of them.": most(*given[:9], 1),
        "Nothing of ZeRO is in it.": most(*given[:7], 0, *given[8:]),
        "ZeRO divides more with each stage: 1 the optimizer, 2 the gradients too, 3 the weights too.": most(
            *given[:7], 3, *given[8:]
        ),
        "ZeRO 1 divides the optimizer's 12 bytes alone.": most(*given[:7], 1, *given[8:]),
        "ZeRO 2 divides the optimizer's 12 bytes, too, and ZeRO 3 all three.": _only(given),
        "ZeRO divides by the data ranks.": most(*given[:6], tensor, *given[7:]),
        "ZeRO divides by the data ranks alone: tensor ranks divide the parameters already.": most(
            *given[:6], data * tensor, *given[7:]
        ),
        "Bytes are asked for, not GB.": max(full) / 1e9,
        "Tensor ranks divide the logits, too.": full[-1] + logits * (tensor - 1),
        "Tensor ranks divide activations and logits, too.": max(
            n
            + (tensor - 1)
            * (
                oracle.stage_layers(layers, stages, s) * kept * min(stages - s, micro_batches)
                + (s == stages - 1) * logits
            )
            for s, n in enumerate(full)
        ),
        "Tensor ranks divide the activations, too, and the words.": most(*given[:5], 1, *given[6:]),
        "The activations are missing.": most(*given[:8], 0, micro_batches),
        "With one stage, embedding and head lie on it: V·H twice.": max(
            less(tensor, data, zero, batch, micro_batches)
        )
        - words * _bytes_of(data, zero),
        "Layers do not divide evenly: they come whole, and stages from 1 on have one more.": _even(
            given
        ),
        "That is the last stage.": less(tensor, data, zero, batch, micro_batches)[-1],
        "That is the sum over all stages.": sum(less(tensor, data, zero, batch, micro_batches)),
    }


def _bytes_of(data, zero):
    return sum(
        n / (data if zero >= oracle.SHARDED_FROM[what] else 1) for what, n in oracle.BYTES.items()
    )


def _only(given):
    """ZeRO 2 divides the gradients and nothing else, ZeRO 3 the weights."""
    hidden, vocab, _, layers, stages, tensor, data, zero, _, _ = given
    more = sum(
        n * (1 - 1 / data) for what, n in oracle.BYTES.items() if oracle.SHARDED_FROM[what] < zero
    )
    found = []
    for s, n in enumerate(oracle.stage_bytes(*given)):
        own = oracle.stage_layers(layers, stages, s)
        words = ((s == 0) + (s == stages - 1)) * vocab * hidden
        found.append(n + (own * 12 * hidden**2 + words) / tensor * more)
    return max(found)


def _even(given):
    hidden, vocab, tokens, layers, stages, tensor, data, zero, batch, micro_batches = given
    own = layers / stages
    found = []
    for s in range(stages):
        parameters = own * 12 * hidden**2 + ((s == 0) + (s == stages - 1)) * vocab * hidden
        kept = own * min(stages - s, micro_batches) * 34 * batch * tokens * hidden
        kept += (s == stages - 1) * 6 * batch * tokens * vocab
        found.append((parameters * _bytes_of(data, zero) + kept) / tensor)
    return max(found)


# ------------------------------------------------------------
# Choose: what is closer than the error is equal.


class Choose(Report):
    """`choose(estimates, capacity, error)`: the names of what fits and is as fast as the fastest, the simplest first."""

    name = "choose"
    right = "14 plans: ties, the edge of the error, what is too large and fast, nothing that fits."
    forbidden = FORBIDDEN
    cases = table(
        lambda what: what,
        (
            *("grids that are drawn",) * 6,
            *("one at the very edge of the error",) * 2,
            *("the fastest does not fit",) * 2,
            "one exactly as large as the device",
            "an error of 0",
            *("nothing fits",) * 2,
        ),
    )

    def draw(self, case, rng):
        capacity = 80 * 10**9
        # between two of the grids, so that no rounding decides; or exact in binary, at the edge
        error = 0.0 if "of 0" in case.what else 0.01 + 0.02 * integer(rng, 1, 5)
        fastest = 10.0
        if "edge" in case.what:
            fastest, error = 8.0, 0.25
        estimates = {}
        for i in shuffled(rng, 9):
            seconds = fastest * (1 + 0.02 * i) if i < 6 else 13.0 + i
            nbytes = integer(rng, 20, 79) * 10**9 + integer(rng, 1, 10**6)
            estimates[f"grid{i}"] = (nbytes, seconds, integer(rng, 1, 4))
        if "edge" in case.what:
            estimates["at the edge"] = (10**9, 10.0, 1)
            estimates["beyond the edge"] = (10**9, 10.25, 1)
        if "exactly" in case.what:
            estimates["grid0"] = (capacity, 10.0, 3)
        if "does not fit" in case.what:
            estimates["grid0"] = (capacity + 1, 10.0, 1)
            estimates["faster"] = (2 * capacity, 5.0, 1)
        if "nothing" in case.what:
            estimates = {
                name: (capacity + nbytes, *rest) for name, (nbytes, *rest) in estimates.items()
            }
        return [(estimates, capacity, error)]

    def run(self, comm, yours, estimates, capacity, error):
        given = dict(estimates)
        due = all(nbytes > capacity for nbytes, _, _ in estimates.values())
        report = attempt(due, yours, estimates, capacity, error)
        return report | {"same": list(given.items()) == list(estimates.items())}

    def check(self, case, got, estimates, capacity, error):
        unchanged(got["same"], True, "`estimates`")
        leanest = min(estimates, key=lambda name: estimates[name][0])
        over = estimates[leanest][0] - capacity
        if over > 0:
            return refusal(
                got,
                [leanest, over],
                "",
                f"nothing fits; {leanest} is the leanest, too large by {over}",
            )
        if "refused" in got:
            raise Wrong(f"raised ValueError: {got['refused']}. {leanest} fits.")
        found = bare(got["value"])
        typed(found, list, "the result", "a list of names")
        want = oracle.choose(estimates, capacity, error)
        if found == want:
            return None
        raise Wrong(
            f"the result is {found}, and should be {want}. {_chosen(found, want, estimates, capacity, error)}"
        )


def _chosen(found, want, estimates, capacity, error):
    large = [name for name in found if name in estimates and estimates[name][0] > capacity]
    fastest = min(seconds for nbytes, seconds, _ in estimates.values() if nbytes <= capacity)
    if large:
        return f"{large[0]} does not fit."
    missing = [name for name in want if name not in found]
    if missing and estimates[missing[0]][0] == capacity:
        return "What is exactly as large as the device fits."
    if missing and estimates[missing[0]][1] == (1 + error) * fastest:
        return "What is slower by exactly the error still counts as equal."
    if missing:
        slower = any(n > capacity and s < fastest for n, s, _ in estimates.values())
        also = " The fastest that does *not* fit is no measure." if slower else ""
        return f"{missing[0]} fits, and is within the error of the fastest that fits.{also}"
    more = [name for name in found if name not in want]
    if more:
        return f"{more[0]} takes more than (1 + error) times the seconds of the fastest."
    return "Those are the right names: fewest axes first, and the faster first among those with as many."


# ------------------------------------------------------------
# Improve: from the obvious grid, one decision at a time.


class Improve(Report):
    """`improve(estimates, start)`: the decisions that are changed, one at a time, with what each saves; and the end."""

    name = "improve"
    right = "12 searches of 72 or 96 grids: every step the largest saving of one decision, to where none helps."
    forbidden = FORBIDDEN
    cases = table(
        lambda what: what,
        (
            *("grids that are drawn",) * 4,
            *("one decision is changed twice",) * 2,
            *("most do not fit",) * 2,
            *("nothing is better than the start",) * 2,
            *("the fastest of all is not reached",) * 2,
        ),
    )

    def draw(self, case, rng):
        shapes = [(8, 1, 1), (4, 2, 1), (2, 2, 2), (1, 8, 1)][: integer(rng, 3, 5)]
        values = shapes, (1, 2), (0, 1), ("none", "full"), (1, 2, 4)
        ways = [dict(zip(oracle.DECISIONS, way)) for way in product(*values)]
        ways = [ways[i] for i in shuffled(rng, len(ways))]
        part = 0.4 if "most" in case.what else 0.85
        estimates = [
            way | {"seconds": 5 + 10 * uniform(rng), "fits": uniform(rng) < part} for way in ways
        ]
        start = integer(rng, 0, len(ways))
        estimates[start]["fits"] = True
        if "nothing" in case.what:
            estimates[start]["seconds"] = 4.0
        if "reached" in case.what:
            _surround(estimates)
        if "twice" in case.what:
            _lead_on(estimates, start)
        return [(estimates, start)]

    def run(self, comm, yours, estimates, start):
        given = [dict(e) for e in estimates]
        return yours(estimates, start), given == estimates

    def check(self, case, report, estimates, start):
        found, same = report
        unchanged(same, True, "`estimates`")
        got = unpacked(found, ("the steps", "the end"))
        steps, end = oracle.improve(estimates, start)
        typed(got["the steps"], list, "the steps", "a list of pairs")
        self._steps(bare(got["the steps"]), steps, estimates, start)
        if bare(got["the end"]) != end:
            raise Wrong(
                f"the steps are right, and the end is {bare(got['the end'])!r}: it should be {end}, the index in "
                "`estimates` of the grid where you stop."
            )

    def _steps(self, got, want, estimates, start):
        seconds = estimates[start]["seconds"]
        for i, (mine, right) in enumerate(zip(got, want)):
            if not isinstance(mine, list | tuple) or len(mine) != 2:
                raise Wrong(
                    f"step {i} is {mine!r}, and should be a pair: a decision and the seconds saved."
                )
            name, saved = mine
            number(saved, f"what step {i} saves")
            if name == right[0] and near(real(saved), right[1]):
                seconds -= right[1]
                continue
            if name == right[0] and near(
                real(saved), estimates[start]["seconds"] - seconds + right[1]
            ):
                raise Wrong(
                    f"step {i} saves {real(saved):.6g} s, and should save {right[1]:.6g} s: that is what all steps so far "
                    "save together."
                )
            if sorted(map(_pair, got)) == sorted(map(_pair, want)):
                raise Wrong(
                    "the steps are the right ones in another order: list them as you change them."
                )
            raise Wrong(
                f"step {i} changes {name!r} and saves {real(saved):.6g} s, and should change {right[0]!r} and save "
                f"{right[1]:.6g} s. {_slip(name, real(saved), right, estimates, start, i)}"
            )
        if len(got) != len(want):
            more = "No change of one decision saves any more" if len(got) > len(want) else "Go on"
            twice = [name for name, _ in want]
            again = ""
            if len(got) < len(want) and want[len(got)][0] in twice[: len(got)]:
                again = f" {want[len(got)][0]!r} is changed once more."
            raise Wrong(
                f"the number of steps is {len(got)}, and should be {len(want)}. {more}: stop where no grid that fits, and differs "
                f"from the *present* one in one decision, is faster.{again}"
            )


def _pair(step):
    """A step as text and rounded seconds, to be sorted; what is no pair stays by itself."""
    if isinstance(step, list | tuple) and len(step) == 2 and isinstance(step[1], int | float):
        return str(step[0]), f"{step[1]:.6g}"
    return str(step), ""


def _surround(estimates):
    """Make one grid the fastest of all, and all that are one decision away from it too large."""
    fastest = estimates[0]
    fastest.update(seconds=1.0, fits=True)
    for other in estimates[1:]:
        if len(oracle.changed(other, fastest)) == 1:
            other["fits"] = False


def _lead_on(estimates, start):
    """Make a way from the start that changes the micro-batch, the chunks, and the micro-batch once more."""
    at = estimates[start]
    at["seconds"] = 4.0
    second, third = [b for b in (1, 2, 4) if b != at["micro_batch"]]
    chunks = 3 - at["chunks"]
    ways = {"micro_batch": second}, {"micro_batch": second, "chunks": chunks}
    ways += ({"micro_batch": third, "chunks": chunks},)
    for seconds, way in zip(
        (3.5, 2.5, 1.0), ways, strict=True
    ):  # each saves more than the one before
        wanted = {name: at[name] for name in oracle.DECISIONS} | way
        for other in estimates:
            if all(other[name] == value for name, value in wanted.items()):
                other.update(seconds=seconds, fits=True)


def _slip(name, saved, right, estimates, start, i):
    here = estimates[start]
    if name not in oracle.DECISIONS:
        return f"The decision is one of the five keys, {', '.join(oracle.DECISIONS)}."
    if near(-saved, right[1]):
        return "Saved seconds are positive."
    if i == 0 and near(saved, here["seconds"] - right[1]):
        return "That is what the next grid takes: how much does it *save*?"
    if i == 0:
        best = min((e for e in estimates if e["fits"]), key=lambda e: e["seconds"])
        one = [e for e in estimates if len(oracle.changed(e, here)) == 1]
        if near(saved, here["seconds"] - best["seconds"]):
            return "That is the fastest of all, in one leap: change one decision at a time."
        if near(saved, here["seconds"] - min(e["seconds"] for e in one)):
            return "That grid does not fit."
        if near(saved, right[1] / here["seconds"]):
            return "Seconds are asked for, not a part of the step."
        if any(e["fits"] and near(saved, here["seconds"] - e["seconds"]) for e in one):
            return "Another decision saves more: compare all grids that differ in one, not the first that is better."
    if near(saved, right[1]):
        return "The decision is the key whose value has changed."
    return "Look for the fastest among grids that fit and differ from the *present* one in exactly one of five decisions."


# ------------------------------------------------------------
# Utilization of causal attention: by convention, needed, executed; with a window.


class Utilizations(Solo):
    """`attention_utilization(parameters, layers, hidden, tokens, window, rate, peak)`: three ways to count."""

    name = "attention_utilization"
    right = "14 runs, with and without a window, windows of one token and longer than the sequence: three utilizations."
    forbidden = FORBIDDEN
    cases = table(
        lambda what: what,
        (
            *("no window",) * 4,
            *("a window",) * 6,
            "a window of one token",
            "a window as long as the sequence",
            "a window longer than the sequence",
            "a sequence of one token",
        ),
    )

    def draw(self, case, rng):
        tokens = 1 if "sequence of one" in case.what else integer(rng, 300, 4000)
        window = {
            "no window": None,
            "a window of one token": 1,
            "a window as long as the sequence": tokens,
            "a window longer than the sequence": tokens + integer(rng, 1, 99),
            "a sequence of one token": None,
        }.get(case.what, integer(rng, 20, 250))
        layers, hidden = integer(rng, 4, 40), 64 * integer(rng, 8, 60)
        parameters = layers * hidden * integer(rng, 400, 4000)
        return [(parameters, layers, hidden, tokens, window, integer(rng, 10**3, 10**5), 312e12)]

    def wants(self, case, args):
        return [{"the result": oracle.utilizations(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        entries(got, tuple(want), name)
        for key, right in want.items():
            close(got[key], right, repr(key), partial(_looks_of_use, key, args[0]), OTHER_USE)


OTHER_USE = "FLOPs a token are 6Ψ + L·H·(12 for each key by convention; 12 or 14 for each key that a query looks at, in the mean)."


def _looks_of_use(key, given, got):
    parameters, layers, hidden, tokens, window, rate, peak = given
    use = lambda times: rate * (6 * parameters + layers * hidden * times) / peak
    exact = oracle.pairs(tokens, window) / tokens
    times = {"convention": 12, "needed": 12, "executed": 14}[key]
    right = use(12 * tokens) if key == "convention" else use(times * exact)
    looks = {
        "A fraction is asked for, not a percentage.": 100 * right,
        "The fraction is upside down.": 1 / right,
        "Attention is missing.": use(0),
        "The parameters' part is missing: 6Ψ.": use(
            12 * tokens if key == "convention" else times * exact
        )
        - use(0),
        "Is that of the whole sequence? `rate` counts tokens: multiply by FLOPs a token.": right
        * tokens,
        "There are L layers.": rate
        * (6 * parameters + hidden * times * (tokens if key == "convention" else exact))
        / peak,
    }
    if key == "convention":
        return looks | {
            "The convention knows no mask and no window: T keys for each query.": use(12 * exact),
            "The convention counts 12, forward and backward: 4 is the forward alone.": use(
                4 * tokens
            ),
            "The convention ignores the window: T keys for each token.": use(
                12 * min(tokens, window or tokens)
            ),
        }
    half = tokens / 2
    if window is not None and window < tokens:
        looks["The first w tokens look at fewer than w keys: count them one by one."] = use(
            times * window
        )
    if window is not None and window > tokens:
        looks[
            "A window longer than the sequence changes nothing: a token looks at T keys at most."
        ] = use(times * (window * (window + 1) / 2 + (tokens - window) * window) / tokens)
    return looks | {
        "A query sees itself, too: T(T + 1)/2 pairs, not T²/2.": use(times * half),
        "A token looks at itself, too.": use(times * oracle.pairs(tokens - 1, window) / tokens),
        "The window is not in it: a token looks back at w − 1 others at most.": use(
            times * oracle.pairs(tokens, None) / tokens
        ),
        "A window of w tokens contains the token itself.": use(
            times * oracle.pairs(tokens, (window or tokens) + 1) / tokens
        ),
        "Needed are 12 for each pair of a query and a key: 6 is that of half a square, which is counted already.": use(
            6 * exact
        ),
        "Executed are 2 products forward and 5 backward: 14 for each pair.": use(12 * exact),
        "The scores are computed again in backward alone, one product: 14, not 16.": use(
            16 * exact
        ),
        "What is computed again is not needed: 12 for each pair.": use(14 * exact),
        "7 is that of half a square, which is counted already: 14 for each pair.": use(7 * exact),
        "Masked pairs are not needed, and a fused kernel skips them.": use(times * tokens),
    }


# ------------------------------------------------------------
# In and out of sample: one constant, fitted with a table and without it.


class LeftOut(Solo):
    """`in_and_out(tables)`: {table: (mean error with it among those that were fitted, mean error without it)}."""

    name = "in_and_out"
    right = "12 collections of 2 to 5 tables of 1 to 30 runs: both errors of each."
    forbidden = FORBIDDEN
    given = ("`tables`",)
    cases = table(
        "{} tables{}",
        (
            *((2, ""), (3, ""), (5, ""), (4, "")),
            *((3, ", one of them much longer"), (4, ", one of them much longer")),
            *((2, ", of one run each"), (3, ", of one run each")),
            *((3, ", one of another kind"), (5, ", one of another kind")),
            *((2, ""), (4, "")),
        ),
    )

    def draw(self, case, rng):
        count, kind = case.given
        tables = {}
        for k in range(count):
            rows = 1 if "one run" in kind else integer(rng, 2, 7)
            rows = 30 if k == 0 and "longer" in kind else rows
            bias = 0.6 + 0.9 * uniform(rng) if k or not kind else 2.5
            xs = [1 + 50 * uniform(rng) for _ in range(rows)]
            tables[f"table-{k}"] = [(x, x * bias * (0.8 + 0.4 * uniform(rng))) for x in xs]
        return [(tables,)]

    def wants(self, case, args):
        return [{"the result": oracle.errors(args[0][0])}]

    def value(self, case, args, rank, name, got, want):
        entries(got, tuple(want), name)
        for key, pair in want.items():
            parts = unpacked(got[key], ("in-sample", "out-of-sample"), f"{key}: ")
            for (what, value), right in zip(parts.items(), pair, strict=True):
                looks = partial(_looks_of_sample, what, args[0][0], key, pair)
                close(value, right, f"{key}, {what}", looks, OTHER_FIT)


OTHER_FIT = (
    "The factor is e to the mean, over the tables, of each table's mean of ln(published/x); an error is "
    "|factor·x/published − 1|."
)


def _looks_of_sample(what, tables, key, pair, got):
    rows = tables[key]
    fitted = {
        "in-sample": tables,
        "out-of-sample": {name: rows for name, rows in tables.items() if name != key},
    }[what]
    all_rows = [row for rows in fitted.values() for row in rows]
    mean = lambda values: sum(values) / len(values)
    off = lambda c: mean([abs(c * x / said - 1) for x, said in rows])
    c = oracle.factor(list(fitted.values()))
    other = pair[what == "in-sample"]
    return {
        "In- and out-of-sample are exchanged, or the same runs are fitted for both.": other,
        "Each table counts the same, however long: a mean of the tables' means.": off(
            oracle.factor([all_rows])
        ),
        "That is the factor of this table alone.": off(oracle.factor([rows])),
        "Nothing is fitted: multiply x by the factor.": off(1.0),
        "The factor is upside down.": off(1 / c),
        "Fit the logarithms: the factor is a geometric mean, not an arithmetic one.": off(
            mean([mean([said / x for x, said in rows]) for rows in fitted.values()])
        ),
        "An error without its sign is asked for: the mean of absolute values.": mean(
            [c * x / said - 1 for x, said in rows]
        ),
        "The error is measured against what was published: factor·x/published − 1.": mean(
            [abs(said / (c * x) - 1) for x, said in rows]
        ),
        "That is the mean of |ln|, not of |factor·x/published − 1|.": mean(
            [abs(math.log(c * x / said)) for x, said in rows]
        ),
        "The error is a fraction, not a percentage.": 100 * off(c),
        "First the absolute value of each run's error, then the mean.": abs(
            mean([c * x / said - 1 for x, said in rows])
        ),
        "That is the sum of the errors: take their mean.": off(c) * len(rows),
        "Take e to the mean of the tables' means, once, at the end.": off(
            mean([oracle.factor([rows]) for rows in fitted.values()])
        ),
        "Out of sample, c is fitted on the others, and the error is that of this table's runs.": mean(
            [mean([abs(c * x / said - 1) for x, said in rows]) for rows in fitted.values()]
        ),
        "The largest is not asked for, but the mean.": sorted(
            abs(c * x / said - 1) for x, said in rows
        )[-1],
        "Those are seconds: an error is relative.": mean([abs(c * x - said) for x, said in rows]),
    }


# ------------------------------------------------------------
# Numbers of a plan for a machine from a file.


@cache
def _planned(inside, gbits, share, memory=64, batch=480, nodes=6):
    """The plan that the file should give. `minidist.study` is loaded here, as few exams need it."""
    from dataclasses import replace

    from minidist.study.catalog import cluster_of
    from minidist.study.plan import plan

    whole = cluster_of(f"a100:{nodes}x8")
    links = dict(whole.links)
    links["nvlink"] = replace(links["nvlink"], beta=1 / (inside * 1e9))
    links["nic"] = replace(links["nic"], beta=8 / (gbits * 1e9), share=share)
    device = replace(whole.device, memory=memory * 2**30)
    return plan("gpt3-13b", replace(whole, links=links, device=device), batch)


def _facts(found) -> dict[str, float]:
    filled = [e for e in found.estimates if e.grid.tensor == 8 and not e.over]
    slower = min(e.step.total for e in filled) / found.seconds - 1
    return {
        "step_seconds": found.seconds,
        "tensor_ranks": found.best.grid.tensor,
        "stages": found.best.grid.pipeline,
        "filled_percent": 100 * slower,
        "gpu_hours": found.cost(200e9, 0.0).gpu_hours,
    }


def predict_plan(inside=100, gbits=200, share=8):
    """13 B on 6 nodes of 8 A100 with 64 GiB, 100 GB/s within a node, one card of 200 Gbit/s for 8; 480 sequences."""
    values = _facts(_planned(inside, gbits, share))
    mistaken = {
        # both make the card too fast, and often give the same plan
        "The card is too fast: so many Gbit/s are an eighth as many GB/s, and the file must say how many GPUs share it.": (
            _planned(inside, 8 * gbits, share)
        ),
        "The GPUs of a node share a card: say so in the file, and mind the unit.": _planned(
            inside, gbits, 1
        ),
        "The card is too slow: the file has the whole card's GB/s, and `share` divides it.": _planned(
            inside, gbits / share, share
        ),
        "Within a node the wires are slower than an A100's: say so in the file.": _planned(
            240, gbits, share
        ),
        "These GPUs have 64 GiB.": _planned(inside, gbits, share, memory=80),
        "A step has 480 sequences.": _planned(inside, gbits, share, batch=240),
        "There are six nodes.": _planned(inside, gbits, share, nodes=1),
    }
    slips: dict[str, dict[float, str]] = {name: {} for name in values}
    for words, found in mistaken.items():
        for name, value in _facts(found).items():
            if name not in ("tensor_ranks", "stages"):  # few numbers, which many mistakes give
                slips[name].setdefault(value, words)
    best = _planned(inside, gbits, share).best.grid
    slips["tensor_ranks"][best.data] = slips["stages"][best.data] = "Those are the data ranks."
    slips["stages"][best.pipeline * best.interleave] = "Those are the stages times their chunks."
    step, hours = values["step_seconds"], values["gpu_hours"]
    slips["step_seconds"][1e3 * step] = "Those are milliseconds."
    slips["filled_percent"] |= {
        values["filled_percent"] / 100: "Percent are asked for.",
        100 + values["filled_percent"]: "That is the time in percent: how much *more* is it?",
        step * (1 + values["filled_percent"] / 100): "Those are the seconds of that grid.",
        step * values["filled_percent"] / 100: "Those are seconds: how much is it in percent?",
        100 - 100 / (1 + values["filled_percent"] / 100): "Divide by the seconds of the best grid.",
    }
    slips["gpu_hours"] |= {
        hours / 48: "Those are hours of the run: there are 48 GPUs.",
        hours * 3600: "Those are seconds.",
        hours / 24: "Those are days of a GPU.",
        hours * 1.5: "That is for 300 billion tokens: 200 are asked for.",
        6 * 13e9 * 200e9 / (3600 * 312e12): "That is at the peak: take the plan's tokens a second.",
    }
    for name, value in values.items():
        slips[name] = {
            wrong: words for wrong, words in slips[name].items() if not near(wrong, value, 0.02)
        }
    return values, slips


PREDICTED = Prediction(
    predict_plan,
    "The seconds, the grid, what filling the node loses, and GPU-hours, within 1 %.",
    {
        "inside": ("{} GB/s within a node", (50, 150, 200)),
        "share": ("a card for {} GPUs", (2, 4)),
    },
)

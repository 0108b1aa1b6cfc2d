"""The exercises of lesson 28, Capstone: a ring, a future, flat shards and a hook, under PyTorch's own DDP and FSDP2."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, cycle, pairwise

import torch
from torch import Tensor, nn

from minidist.comm.base import Comm
from minidist.comm.processgroup import CommGroup
from minidist.comm.wires import WorldComm

from ..exam import (
    ALL,
    HALF,
    NUMBERS,
    Case,
    Costly,
    Exam,
    Outcome,
    Prediction,
    Wrong,
    close,
    equal,
    holds,
    identical,
    integer,
    normal,
    recognized,
    same,
    shuffled,
    unchanged,
    who,
    wrong_means,
)
from ..oracles import capstone as oracle
from .messages import RingInPlace, _astray, to_the_right, words, wrong_part

# ------------------------------------------------------------
# PyTorch's own DistributedDataParallel on an answer: in a World, or in real processes beside the backward pass.
#
# It needs no torch.distributed but a group. What the answer is not about, DDP's broadcast of the order of its buckets, is
# here, from send and receive.


SIZES = (35, 7, 21, 3)
RATE = 0.05
STEPS = 3  # of the four parameters: 5 × 7 and 7, 7 × 3 and 3


def network(start: Tensor) -> nn.Module:
    """Two layers that hold the numbers of `start`, (66,) float64."""
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    for p, end, size in zip(net.parameters(), accumulate(SIZES), SIZES, strict=True):
        p.data = start[end - size : end].clone().view(p.shape)
    return net


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def loss_of(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().sum()


def broadcast_(comm: Comm, x: Tensor, root: int) -> None:
    for r in range(comm.size):
        if comm.rank == root and r != root:
            comm.send(x, r)
    if comm.rank != root:
        comm.recv(x, root)


def gather_sizes_(comm: Comm, chunks: list[Tensor]) -> None:
    """What DDP compares when it begins: every rank's number of parameters."""
    for root, chunk in enumerate(chunks):
        broadcast_(comm, chunk, root)


def train(
    comm: Comm, start: Tensor, x: Tensor, ring: Callable, hook: Callable | None = None
) -> list[Tensor]:
    """All parameters after each of three steps of SGD on this rank's `x`, (B, 5); buckets of one or two tensors."""
    group = CommGroup(
        comm,
        overlap=not isinstance(comm, WorldComm),
        all_reduce_=ring,
        broadcast_=broadcast_,
        all_gather_=gather_sizes_,
    )
    net, seen = network(start), []
    model = nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=1e-4)
    if hook is not None:
        model.register_comm_hook(
            comm, lambda state, bucket: _ready(comm, hook(comm, bucket), bucket.buffer())
        )
    for _ in range(STEPS):
        model.zero_grad()
        loss_of(model, x).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= RATE * p.grad
        seen.append(flat(net))
    return seen


def gradient(params: Tensor, x: Tensor) -> Tensor:
    """Of the loss of one rank's rows, by all parameters in one vector."""
    net = network(params)
    loss_of(net, x).backward()
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def trained(start: Tensor, xs: list[Tensor]) -> list[Tensor]:
    """All parameters after each step by the average gradient of the ranks."""
    net, seen = network(start), []
    for _ in range(STEPS):
        now = flat(net)
        net = network(now - RATE * oracle.combined([gradient(now, x) for x in xs], "mean"))
        seen.append(flat(net))
    return seen


def _ready(comm, future, buffer):
    """The hook's future, of a value as large as the bucket's buffer. In a World C++ would wait without end for one that a lane has still to set: wait here."""
    if not isinstance(future, torch._C.Future):
        raise RuntimeError(
            f"a torch.futures.Future is to be returned, not a {type(future).__name__}"
        )
    if isinstance(comm, WorldComm) and not future.done():
        comm.stream(lambda lane: None).wait()  # comes after what was put there before
        if not future.done():
            raise RuntimeError("the hook's future is never set: DDP would wait without end")
    value = future.value() if future.done() else None
    if isinstance(value, Tensor) and value.shape != buffer.shape:
        raise RuntimeError(
            f"the value of the future has shape {tuple(value.shape)}, and the bucket {tuple(buffer.shape)}"
        )
    return future


# ------------------------------------------------------------
# What PyTorch's DDP itself examines: the ring below it, and the hook in place of it.


ORACLE = "minicheck.oracles.capstone"
FORBIDDEN = (
    "minidist.collectives",
    "minidist.parallel",
    "minidist.train",
    "minidist.checkpoint",
    ORACLE,
)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.int64)
# Ranks, numbers (None: drawn) and reduction; the dtypes take turns.
ASKED = (
    *((3, k, "sum") for k in (6, 7, 1, 2, 0)),
    (3, 7, "max"),
    (3, 8, "min"),
    (3, 5, "prod"),
    (2, 7, "sum"),
    (2, 5, "max"),
    (4, 13, "sum"),
    (4, 10, "min"),
    (1, 4, "sum"),
    (1, 4, "max"),
    (5, 64, "sum"),
    (5, 13, "prod"),
    (4, None, "sum"),
    (5, None, "max"),
)


def draw_training(case: Case, rng: torch.Generator) -> list[tuple]:
    """Every rank's (start, x), start the same."""
    draw = lambda *shape: normal(rng, *shape)
    start = draw(sum(SIZES)) / 2
    xs = [draw(3, 5) for _ in range(case.n)]
    if case.n == 1:
        xs[0][0, 0] = torch.nan
    return [(start, x) for x in xs]


def _first_step(start: Tensor, given: list[Tensor], r: int, mine: Tensor) -> str:
    found = recognized((start - mine) / RATE, wrong_means(r, given), "")
    return found and f"Of the gradient: {found}"


def judge_training(args: list[tuple], outcome: Outcome, rule: str) -> None:
    """Raise Wrong unless every rank trained as one would, and all end equal bit for bit. rule: what the answer is to do."""
    start, xs = args[0][0], [x for _, x in args]
    want, given = trained(start, xs), [gradient(start, x) for x in xs]
    for r, got in enumerate(outcome.results):
        if not isinstance(got, list) or len(got) != len(want):
            raise Wrong(f"rank {r}: training did not come to its end.")
        looks = partial(_first_step, start, given, r)
        for step, (mine, right) in enumerate(zip(got, want, strict=True)):
            where = f"under PyTorch's DDP: rank {r}, step {step + 1}: all parameters"
            close(mine, right, where, None if step else looks, rule)
    identical([got[-1] for got in outcome.results], "under PyTorch's DDP, what every rank has")


def draw_numbers(
    size: int, n: int, op: str, dtype: torch.dtype, rng: torch.Generator
) -> list[Tensor]:
    """Every rank's, of both signs, with parts where the dtype has them: sums and products are exact in any order."""
    draw = lambda low, high: torch.randint(low, high, (size,), generator=rng)
    # all digits; often all ranks have one sign
    if op in ("max", "min") and dtype.is_floating_point:
        base, *own = (normal(rng, size) for _ in range(n + 1))
        return [(2 * base + x).to(dtype) for x in own]
    # of int64 so large that float64 would round
    most = {torch.bfloat16: 50, torch.int64: 10**17, torch.uint8: 3}.get(dtype, 10**6)
    xs = [
        (draw(1, 4) * (2 * draw(0, 2) - 1) if op == "prod" else draw(-most, most)).to(dtype)
        for _ in range(n)
    ]
    return [x / 4 if dtype.is_floating_point else x for x in xs]


def _with_nan(xs: list[Tensor]) -> list[Tensor]:
    """Where there are more than three ranks, the last number of the first is nan, if it can be."""
    if len(xs) > 3 and xs[0].is_floating_point() and xs[0].numel():
        xs[0][-1] = torch.nan
    return xs


def _order(rng: torch.Generator, n: int) -> list[int]:
    """Of n ranks. Of three and more, one that is not by number; of four and more, one that is not its own inverse."""
    while True:
        order = shuffled(rng, n)
        by_number = all((b - a) % n == 1 for a, b in pairwise(order))
        own_inverse = all(order[order[r]] == r for r in range(n))
        if n < 3 or not (by_number or (n > 3 and own_inverse)):
            return order


class DdpRing(RingInPlace):
    """`ddp_ring(comm, x, op, order)`: x, flat, combined over all ranks, in place. A ring; then PyTorch's DDP runs on it."""

    name = "ddp_ring"
    forbidden = FORBIDDEN
    right = (
        "n = 1…5, four reductions, six dtypes, 9 lengths and secret ones, 2(n−1) messages a rank; under "
        "PyTorch's DDP with 1 to 4 ranks, and in 3 real processes beside the backward pass."
    )
    step = 10.0
    cases = (
        *(
            Case(
                n,
                f"n = {n}, {'a drawn length' if k is None else words((k,))} of {str(dtype)[6:]}, op = {op!r}",
                (k, op, dtype),
            )
            for (n, k, op), dtype in [*zip(ASKED, cycle(DTYPES)), ((4, 9, "min"), torch.uint8)]
        ),
        *(Case(n, f"PyTorch's DDP on {n} rank{'s' * (n > 1)}") for n in (3, 2, 4, 1)),
    )
    processes = (
        Case(2, "2 real processes, 7 numbers", (7, "max", torch.float32)),
        Case(3, "PyTorch's DDP in 3 real processes"),
    )

    def draw(self, case, rng):
        order = _order(rng, case.n)
        if case.given is None:
            return [(start, x, order) for start, x in draw_training(case, rng)]
        size, op, dtype = case.given
        size = integer(rng, 20, 400) if size is None else size
        return [(x, op, order) for x in _with_nan(draw_numbers(size, case.n, op, dtype, rng))]

    def run(self, comm, yours, x, op, order):
        if isinstance(op, Tensor):
            return train(comm, x, op, lambda comm, x, op: yours(comm, x, op, list(order)))
        return super().run(comm, yours, x, op, list(order))

    def judge(self, case, args, outcome):
        if case.given is None:
            rule = (
                "DDP divides by n before it calls: the gradients are to be added up, in x itself."
            )
            return judge_training([(start, x) for start, x, _ in args], outcome, rule)
        super().judge(case, args, outcome)

    def wants(self, case, args):
        return [{"x": oracle.combined([x for x, _, _ in args], args[0][1])}] * case.n

    def cost(self, case, args, outcome):
        x, _, order = args[0]
        if not x.numel():
            return
        place = {r: i for i, r in enumerate(order)}
        for src, dst, _ in outcome.sent:
            after = order[(place[src] + 1) % case.n]
            if dst != after:
                raise Wrong(
                    f"the numbers are right, but rank {src} sends to rank {dst}: the ring runs along order = {order}, in "
                    f"which rank {after} comes after rank {src}."
                )
        along = [(place[src], place[dst], nbytes) for src, dst, nbytes in outcome.sent]
        super().cost(case, [(own,) for own, _, _ in args], outcome._replace(sent=along))

    def mistakes(self, case, args, rank, name, got):
        xs, op = [x for x, _, _ in args], args[0][1]
        looks = {f"It is rank {s}'s input, unchanged.": own for s, own in enumerate(xs)}
        for other in oracle.COMBINE.keys() - {op}:
            looks[f"It is the {other}: op says {op!r}."] = oracle.combined(xs, other)
        found = recognized(got, looks, "")
        if op == "sum":
            found = found or super().mistakes(case, [(own,) for own in xs], rank, name, got)
        return found or (
            f"Chunks with the same number are combined over all ranks by {op!r}, signs included: which one sets out first? "
            "Count places in `order`, not ranks. In the second half the chunks are finished: receive them in place, and combine nothing."
        )


class MeanHook(Exam):
    """`mean_hook(comm, bucket)`: a future whose value is the mean of the bucket's gradients over the ranks."""

    name = "mean_hook"
    right = "PyTorch's DDP with your hook, on 1 to 4 ranks, several buckets: three steps, equal to one rank's."
    forbidden = ("minidist.parallel", "minidist.train", "minidist.checkpoint", ORACLE)
    step = 10.0
    cases = tuple(Case(n, f"PyTorch's DDP on {n} rank{'s' * (n > 1)}") for n in (3, 2, 4, 1))
    processes = (Case(2, "PyTorch's DDP in 2 real processes"),)

    def draw(self, case, rng):
        return draw_training(case, rng)

    def run(self, comm, yours, start, x):
        return train(comm, start, x, _not_called, yours)

    def judge(self, case, args, outcome):
        rule = "DDP does not divide if there is a hook: its value must be the mean, and must be there when the future is done."
        judge_training(args, outcome, rule)


def _not_called(comm, x, op):
    """DDP still adds up small things of its own, never the gradients: those are the hook's."""
    raise RuntimeError(f"all_reduce_ of {tuple(x.shape)} was called, but the hook is there for it")


# ------------------------------------------------------------
# Time: a call that returns at once, and a future that is ready when the job is.


POLLS = 60


class Torn(Exception):
    """No usual error: a job may raise any."""


class Later(Exam):
    """`later(comm, jobs, result)`: does each job(lane) beside the program; one Future of `result` for all."""

    name = "later"
    right = (
        "2 to 4 ranks, two calls of two jobs: back at once, ready when all sums are there, never before; the first "
        "error arrives; 2 processes."
    )
    forbidden = (*FORBIDDEN, "minidist.comm.torchdist", "minidist.comm.processgroup")
    cases = tuple(
        Case(n, f"n = {n}, two calls, {what}", fails)
        for n in (2, 3, 4)
        for what, fails in (
            ("jobs that end", None),
            (
                f"{('the first job', 'the second job', 'each job')[n - 2]} of the {('first', 'second')[n % 2]} call raises",
                n % 2,
            ),
        )
    )
    processes = tuple(Case(2, f"2 real processes{case.what[5:]}", case.given) for case in cases[:2])

    def draw(self, case, rng):
        words = f"wire {integer(rng, 10**6, 10**7)} is cut"
        whole = lambda: torch.randint(-(10**6), 10**6, (5,), generator=rng).double()
        return [([whole(), whole()], case.given, words) for _ in range(case.n)]

    def run(self, comm, yours, xs, fails, words):
        """Two jobs of n−1 messages, while the program sends its own; they meet only where the lane is not a lane."""
        n = comm.size
        r = comm.rank
        token = torch.zeros(1)
        error = (OSError, Torn, ValueError)[n - 2](words)
        calls = [Call(comm, yours, x, i, error if i == fails else None) for i, x in enumerate(xs)]
        if any(call.found["kind"] is not None for call in calls):
            return [call.found for call in calls]
        for call in calls:  # in a World no time has passed; in processes a job may be done by now
            call.found["early"] |= isinstance(comm, WorldComm) and call.future.done()
        own = torch.full((3,), float(r), dtype=torch.float64)
        comm.sendrecv(own, (r + 1) % n, torch.empty_like(own), (r - 1) % n, label="program")
        for _ in range(POLLS):  # a message takes time, on every clock
            comm.sendrecv(token, (r + 1) % n, torch.empty_like(token), (r - 1) % n, label="program")
        until = time.monotonic() + 1.0  # in processes a lane has a thread, which may be late
        while (
            not isinstance(comm, WorldComm)
            and not all(c.found["told"] for c in calls)
            and time.monotonic() < until
        ):
            time.sleep(1e-3)
        return [call.ended() for call in calls]

    def judge(self, case, args, outcome):
        for r, found in enumerate(outcome.results):
            for i, got in enumerate(found):
                at, words = (
                    f"{r}, {('first', 'second')[i]} call",
                    args[0][2] if i == case.given else None,
                )
                self._begun(at, got, bool(words))
                self._ended(at, got, [xs[i] for xs, _, _ in args], r, words)

    def _begun(self, at, got, fails):
        if got["kind"] is not None:
            missing = " Is there a `return`?" if got["kind"] == "NoneType" else ""
            raise Wrong(
                f"rank {at}: a torch.futures.Future should be returned, not a {got['kind']}.{missing}"
            )
        called = [k for k, _ in got["jobs"]]
        if called != [0, 1]:
            heard = f" Whoever waits hears: {got['error'][:100]}" if got["error"] else ""
            raise Wrong(
                f"rank {at}: the jobs that were called: {called or 'none'}. `jobs` is a list of two: call job 0, then job 1, "
                f"each once with the lane, the second also if the first raised.{heard}"
            )
        why = "A job raised: whoever waits must hear of it." if fails else "Who sets it?"
        inside = any(same_comm for _, same_comm in got["jobs"])
        report = {"lane": not inside, "late": not got["early"], "done": got["done"]}
        words = {
            "lane": "a job got comm itself, on which the program sends, too: give it the lane.",
            "late": "the future was done before the program went on. Did a call wait for a job? Then nothing overlaps. "
            "Or is it set too early? Then DDP goes on with half a sum.",
            "done": f"the jobs have ended long ago, and the future is not done. {why} Two calls are under way here: each "
            "has a future of its own.",
        }
        holds(report, words, f"rank {at}: ")

    def _ended(self, at, got, xs, r, words):
        """words: of the error that the job raised."""
        if words and got["error"] is None:
            raise Wrong(
                f"rank {at}: a job raised, and whoever waits for the future does not hear of it."
            )
        if words and words not in got["error"]:
            raise Wrong(
                f'rank {at}: the first error was "{words}", and whoever waits hears: {got["error"][:80]}'
            )
        if not words and got["error"] is not None:
            raise Wrong(f"rank {at}: whoever waits gets an error: {got['error'][:200]}")
        if len(got["told"]) != 1:
            raise Wrong(
                f"rank {at}: a callback of the future was called {len(got['told'])} times instead of once."
            )
        same(
            got["told"][0],
            sum(xs),
            f"rank {at}: the sum when the future became done",
            lambda y: f"Set it when the last job has ended. {who(y, xs, r) or ''}".rstrip(),
        )
        same(got["y"], sum(xs), f"rank {at}: the sum")
        if not words and not got["held"]:
            raise Wrong(
                f"rank {at}: the value of the future, a {got['value']}, is not `result`, a {got['asked']}: it "
                "should be the very object that this call was given."
            )


class Call:
    """One call of an answer. `found`: plain values, what became of it."""

    def __init__(self, comm: Comm, yours, x: Tensor, i: int, error: Exception | None):
        n = comm.size
        r = comm.rank
        self.y = x.clone()
        self.result = ([self.y], self.y, {"y": self.y}, "the sum is there")[(n + i) % 4]
        self.found = {"kind": None, "jobs": [], "told": [], "error": None}

        def job(k, lane):
            self.found["jobs"].append((k, lane is comm))
            half = slice(3) if k == 0 else slice(3, None)
            around = x[half].clone()
            for _ in range(n - 1):
                around = lane.sendrecv(
                    around, (r + 1) % n, torch.empty_like(around), (r - 1) % n, label="job"
                )
                self.y[half].add_(around)
            if error is not None and (n == 4 or k == n - 2):
                raise error if k == 0 or n < 4 else type(error)("a later error")

        self.future = yours(comm, [partial(job, 0), partial(job, 1)], self.result)
        if not isinstance(self.future, torch._C.Future):  # what `then` gives is one, too
            self.found["kind"] = type(self.future).__name__
            return
        self.found["early"] = self.future.done()
        self.future.add_done_callback(lambda _: self.found["told"].append(self.y.clone()))

    def ended(self) -> dict:
        done, value = self.future.done(), None
        if done:
            try:
                value = self.future.wait()
            except Exception as raised:
                self.found["error"] = str(raised)
        names = {"asked": type(self.result).__name__, "value": type(value).__name__}
        return self.found | names | {"done": done, "held": value is self.result, "y": self.y}


# ------------------------------------------------------------
# Flat shards: what FSDP2 asks of a group, parameters together and gradients apart.


LENGTHS = ((3, 4), (3, 1), (3, 0), (2, 5), (4, 3), (1, 6), (5, 2))


class FlatExam(Exam):
    """Case.given: k, which numbers a rank has; how; their dtype."""

    forbidden = FORBIDDEN
    returns = ("output",)

    def value(self, case, args, rank, name, got, want):
        unchanged(got["input"], args[rank][0], f"rank {rank}: input")
        super().value(case, args, rank, name, got["output"], want)

    def cost(self, case, args, outcome):
        k, _, dtype = case.given
        least = (case.n - 1) * k * dtype.itemsize
        if k:
            to_the_right(case, outcome, case.n - 1, [least] * case.n, "n−1")


def flat_cases(hows: dict) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Of `LENGTHS`, for each of `hows` (by name in messages), float64 and float32 in turn; and the one in processes."""
    dtypes = torch.float64, torch.float32
    cases = [
        Case(
            n,
            f"n = {n}, k = {k} of {str(dtypes[(k + i) % 2])[6:]}{words}",
            (k, how, dtypes[(k + i) % 2]),
        )
        for n, k in LENGTHS
        for i, (how, words) in enumerate(hows.items())
    ]
    return tuple(cases), (cases[1]._replace(what="3 real processes, k = 4"),)


class GatherSingle(FlatExam):
    """`gather_single(comm, output, input)`: every rank's input, (k,), in rank order in output, (n·k,)."""

    name = "gather_single"
    right = (
        "n = 1…5, 0 to 6 numbers a rank, two dtypes, apart from float64 and in place: n−1 messages a rank to the "
        "right; then 3 processes."
    )
    cases, processes = flat_cases({False: " from float64", True: ", in place"})

    def draw(self, case, rng):
        k, place, dtype = case.given
        xs = [normal(rng, k).to(dtype if place else torch.float64) for _ in range(case.n)]
        return [(x, place, str(dtype)[6:]) for x in _with_nan(xs)]

    def call(self, comm, yours, x, place, dtype):
        output, mine = (
            torch.full((comm.size * len(x),), -1.0, dtype=getattr(torch, dtype)),
            x.clone(),
        )
        if place:  # FSDP2 gives a view
            mine = output[comm.rank * len(x) : (comm.rank + 1) * len(x)].copy_(x)
        alias = output.detach()  # the caller's memory: `output.data = …` leaves it as it was
        yours(comm, output, mine)
        return {"output": alias, "input": mine.clone()}

    exact = True

    def cost(self, case, args, outcome):
        k, place, dtype = case.given
        if dtype != torch.float64 and not place and outcome.nbytes(0) == (case.n - 1) * k * 8 > 0:
            raise Costly(
                f"the numbers are right, but what travels is float64, the dtype of input: {str(dtype)[6:]}, the dtype of output, "
                "is enough."
            )
        super().cost(case, args, outcome)

    def wants(self, case, args):
        return [{"output": torch.cat([x for x, *_ in args]).to(case.given[2])}] * case.n

    def mistakes(self, case, args, rank, name, got):
        xs = [x.to(case.given[2]) for x, *_ in args]
        i, part, _ = wrong_part(got, torch.cat(xs), [], case.n)
        looks = {
            "nothing arrived there.": torch.full_like(xs[0], -1),
            "what was in output is added to it.": xs[i] - 1,
            "it is zero. Is output cleared? input may be a view of it.": 0 * xs[0],
        }
        for j, x in enumerate(xs):
            looks[f"It is rank {j}'s." + " Which chunk sets out first?" * (j != i)] = x
        text = recognized(part, looks, "", equal)
        return text and f"Part {i} of {case.n} is wrong: {text}"


BEFORE = -7e9  # what is in output, of the size of the sums


class ReduceSingle(FlatExam):
    """`reduce_single(comm, output, input, op)`: output, (k,), becomes chunk `rank` of all inputs, (n·k,), combined."""

    name = "reduce_single"
    right = (
        "n = 1…5, 0 to 6 numbers a rank, two dtypes, sums and means: n−1 messages of a chunk; then 3 real "
        "processes."
    )
    cases, processes = flat_cases({op: f", op = {op!r}" for op in ("sum", "mean")})

    def draw(self, case, rng):
        k, op, dtype = case.given
        # sums are exact; float32 rounds those of float64
        most = 10**10 if dtype == torch.float64 else 10**6
        whole = lambda: torch.randint(-most, most, (case.n * k,), generator=rng)
        draw = lambda: (whole() if op == "sum" else normal(rng, case.n * k)).to(dtype)
        xs = [draw() for _ in range(case.n)]
        return [(x, op) for x in _with_nan(xs)]

    def call(self, comm, yours, x, op):
        output = x.new_full((len(x) // comm.size,), BEFORE)
        alias = output.detach()
        yours(comm, output, x, op)
        return {"output": alias, "input": x}

    def wants(self, case, args):
        chunks, op = [x.tensor_split(case.n) for x, _ in args], case.given[1]
        return [{"output": oracle.combined([c[i] for c in chunks], op)} for i in range(case.n)]

    def value(self, case, args, rank, name, got, want):
        self.exact = case.given[1] == "sum"
        super().value(case, args, rank, name, got, want)

    def mistakes(self, case, args, rank, name, got):
        n, op = case.n, case.given[1]
        chunks = [x.tensor_split(n) for x, _ in args]
        mine = [c[rank] for c in chunks]
        total = sum(mine)
        looks = {
            "It is the sum: divide by n." if op == "mean" else "It is the sum.": total,
            "It is divided by n twice.": total / n**2,
            "It is the mean: op says 'sum'.": total / n,
            "Nothing was written into it.": 0 * total + BEFORE,
            "What was in output is added to it.": total + BEFORE,
        }
        others = {
            f"It is chunk {i}, finished: rank {rank} should have chunk {rank}.": found[name]
            for i, found in enumerate(self.wants(case, args))
        }
        found = recognized(got, looks | others, "")
        if op == "sum":
            found = found or who(got, mine, rank) or _astray(got, chunks, rank)
        return found or (
            f"Chunk {rank} goes around the ring, and each rank adds its own numbers to it; a mean is divided by n "
            "once, at the end."
        )


# ------------------------------------------------------------
# Numbers foretold: what a step of DDP and of FSDP2 sends over a ring.


def predict_capstone(n=8, layers=4, psi=24_000_000, buckets=5, micro=3, alpha=20e-6, beta=1e-10):
    """8 ranks, 4 layers of 6 million fp32 parameters, 5 buckets, 3 micro-batches, 20 µs, 1/(10 GB/s)."""
    part, whole = (n - 1) / n, 4 * psi
    ring = 2 * part * whole
    values = {
        "ddp_messages": buckets * 2 * (n - 1),
        "ddp_bytes": ring,
        "gathers": 2 * layers,
        "fsdp_messages": 3 * layers * (n - 1),
        "fsdp_bytes": 3 * part * whole,
        "seconds": buckets * 2 * (n - 1) * alpha + ring * beta,
        "micro_bytes": micro * ring,
    }
    slips = {
        "ddp_messages": {
            2 * (n - 1): "That is one bucket.",
            buckets * (n - 1): HALF,
            n * buckets * 2 * (n - 1): ALL,
            buckets * 2 * n: "A chunk takes n−1 steps, not n.",
            layers * 2 * (n - 1): "DDP does not look at layers: it fills buckets.",
        },
        "ddp_bytes": {
            ring / 4: NUMBERS,
            ring / 2: HALF,
            n * ring: ALL,
            2 * whole: "Nearly: the factor is 2(n−1)/n.",
            buckets * ring: "The buckets share the gradients: together they are N.",
            whole: "A ring has two halves, each (n−1)/n of N.",
        },
        "gathers": {
            layers: "A layer is freed after its forward: the backward needs it again.",
            3 * layers: "That counts the reduce-scatters, too.",
            2 * layers - 1: "The last layer is freed, too, unless reshard_after_forward=False.",
        },
        "fsdp_messages": {
            2 * layers * (n - 1): "The reduce-scatters are missing, or the backward's gathers.",
            3 * (n - 1): "That is one layer.",
            3 * layers * 2 * (n - 1): "A gather is one half of a ring: n−1 messages.",
            3 * layers * n: "A gather takes n−1 steps, not n.",
            n * 3 * layers * (n - 1): ALL,
        },
        "fsdp_bytes": {
            ring: "That is DDP's: parameters are gathered twice, gradients scattered once.",
            3 * whole: "Nearly: the factor is 3(n−1)/n.",
            3 * part * psi: NUMBERS,
            4 * part * whole: "Gradients are scattered, and not gathered again.",
            n * 3 * part * whole: ALL,
            part * whole: "That is one of three.",
        },
        "seconds": {
            ring * beta: "The α of each message is missing.",
            buckets * 2 * (n - 1) * alpha: "The bytes take time, too: β.",
            2 * (n - 1) * alpha + ring * beta: "Every bucket pays its α.",
            buckets * alpha + ring * beta: "A bucket is 2(n−1) messages.",
        },
        "micro_bytes": {
            ring: "That is with no_sync: without it every backward reduces.",
            ring / micro: "More micro-batches do not send less.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_capstone,
    "Messages, bytes, gathers and seconds, within 1 %.",
    {
        "n": ("{} ranks", (4, 6, 16)),
        "buckets": ("{} buckets", (3, 6, 8)),
        "micro": ("{} micro-batches", (2, 4, 5)),
    },
)

"""Every verb gives what the definition says, in every world."""

import csv
import math
from itertools import chain

import pytest
import torch

from minidist.collectives import (
    Hierarchical,
    all_gather,
    all_gather_,
    all_reduce_,
    all_to_all,
    bandwidth,
    barrier,
    broadcast_,
    fastest,
    gather,
    predict,
    reduce_,
    reduce_scatter,
    reduce_scatter_,
    ring,
    scatter,
    seconds,
)
from minidist.collectives.hierarchical import FLAT, having
from minidist.collectives.links import Net
from minidist.collectives.verbs import ALGORITHMS, Flat, flat_rows
from minidist.comm import World, launch
from minidist.comm.cluster import Cluster, Device
from tests.collectives.cases import check
from tests.collectives.costs import ALPHA, BETA, EVERY, SOME, run
from tests.largest import smallest
from tests.repository.files import ROOT
from tests.size import FULL


def wrong(results):
    return list(chain(*results))


@pytest.mark.parametrize(
    ("n", "algorithm"),
    [
        (1, "naive"),
        (2, "naive"),
        (3, "naive"),
        (5, "naive"),
        (1, "ring"),
        (2, "ring"),
        (3, "ring"),
        (4, "ring"),
        (5, "ring"),
        (3, "tree"),
        (3, "double_tree"),
        (3, "halving_doubling"),
        (3, "pipelined"),
        (3, "hierarchical"),
        (2, "auto"),
    ],
)
def test_verbs_world(n, algorithm):
    assert wrong(World(n).run(check, algorithm)) == []


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_world_with_buffered_sends(algorithm):
    assert wrong(World(3, rendezvous=False).run(check, algorithm)) == []


@pytest.mark.parametrize(("n", "algorithm"), [(3, "naive"), *((n, "ring") for n in range(1, 5))])
def test_verbs_processes(n, algorithm):
    assert wrong(launch(check, n, algorithm)) == []


@pytest.mark.parametrize(
    ("n", "algorithm"), [(2, "ring"), (1, "native"), (2, "native"), (3, "native")]
)
def test_gloo(n, algorithm):
    assert wrong(launch(check, n, algorithm, transport="gloo")) == []


def forgotten_mean(comm, x, op="sum", algorithm=None):
    return all_reduce_(comm, x, "sum" if op == "mean" else op, algorithm)


def remainder_dropped(comm, x, op="sum", algorithm=None):
    if isinstance(x, torch.Tensor) and x.is_contiguous():
        all_reduce_(comm, x.view(-1)[: x.numel() // comm.size * comm.size], op, algorithm)
        return x
    return all_reduce_(comm, x, op, algorithm)


def wrong_root(comm, x, root=0, algorithm=None):
    return broadcast_(comm, x, 0, algorithm)


def own_rows_last(comm, x, sizes=None, algorithm=None):
    got = all_gather(comm, x, sizes, algorithm)
    return got.flip(0) if isinstance(got, torch.Tensor) else got


def input_overwritten(comm, x, op="sum", sizes=None, algorithm=None):
    got = reduce_scatter(comm, x, op, sizes, algorithm)
    if isinstance(x, torch.Tensor):
        x.zero_()
    return got


def strided_left_alone(comm, x, op="sum", algorithm=None):
    if isinstance(x, torch.Tensor) and not x.is_contiguous():
        all_reduce_(comm, x.contiguous(), op, algorithm)
        return x
    return all_reduce_(comm, x, op, algorithm)


def aliased(comm, x, sizes=None, algorithm=None):
    got = all_gather(comm, x, sizes, algorithm)
    return x if isinstance(x, torch.Tensor) and x.shape == got.shape else got


@pytest.mark.parametrize(
    ("verb", "planted", "n"),
    [
        ("all_reduce_", forgotten_mean, 3),
        ("all_reduce_", remainder_dropped, 3),
        ("all_reduce_", strided_left_alone, 2),
        ("all_reduce_", lambda comm, x, op="sum", algorithm=None: x, 2),
        ("broadcast_", wrong_root, 2),
        ("all_gather", own_rows_last, 2),
        ("all_gather", aliased, 1),
        ("reduce_scatter", input_overwritten, 2),
    ],
)
def test_a_wrong_verb_is_found(verb, planted, n):
    assert wrong(World(n).run(check, "ring", {verb: planted}))


def random_sums(comm, algorithm, lengths, seed):
    """The all-reduce of random numbers: this rank's results."""
    return [
        all_reduce_(comm, numbers(comm.rank, length, seed), algorithm=algorithm)
        for length in lengths
    ]


def numbers(rank, length, seed):
    return torch.randn(
        length, generator=torch.Generator().manual_seed(seed + rank), dtype=torch.float64
    )


VERBS_LENGTHS = [0, 1, 3, 7, 64, 1_000_003]


@pytest.mark.parametrize("n", range(1, 9))
def test_all_reduce_is_the_serial_sum_bit_for_bit_the_same_everywhere(n):
    results = World(n).run(random_sums, "ring", VERBS_LENGTHS, 5)
    for i, length in enumerate(VERBS_LENGTHS):
        serial = sum(numbers(r, length, 5) for r in range(n))
        # n−1 additions, in another order: each rounds numbers of at most about 20 by 2⁻⁵³
        assert torch.allclose(results[0][i], serial, rtol=0, atol=n * 20 * 2**-53)
        assert all(torch.equal(mine[i], results[0][i]) for mine in results)


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_all_worlds_give_the_same_bits(algorithm):
    world, processes = (
        run(random_sums, algorithm, [1, 7, 1000], 6) for run in (World(3).run, on_three_processes)
    )
    for mine, theirs in zip(world, processes, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def on_three_processes(program, *args):
    return launch(program, 3, *args)


@pytest.mark.parametrize("algorithm", ["naive", "ring", "tree", "auto"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_nobody_leaves_a_barrier_before_all_have_come(n, algorithm):
    beside = min(1, n - 2)  # where there are three or more, rank 0 comes early

    def program(comm):
        if comm.rank == n - 1:  # this one is late: it has two messages to pass first
            for _ in range(2):
                comm.recv(torch.empty(1000), beside)
        elif comm.rank == beside:
            for _ in range(2):
                comm.send(torch.empty(1000), n - 1)
        came = comm.now()
        barrier(comm, algorithm=algorithm)
        return came, comm.now()

    times = World(n).run(program)
    assert smallest(left for _, left in times) >= max(came for came, _ in times)


@pytest.mark.parametrize("algorithm", ["naive", "ring"])
def test_parameters_are_reduced_in_place_without_a_graph(algorithm):
    def program(comm):
        p = torch.nn.Parameter(torch.ones(5))
        all_reduce_(comm, p, algorithm=algorithm)
        broadcast_(comm, [p, torch.nn.Parameter(torch.zeros(2))], algorithm=algorithm)
        return p.is_leaf and p.requires_grad and p.detach().eq(3).all()

    assert all(World(3).run(program))


# ------------------------------------------------------------
# Formulas against the World's clock, on links all alike and on clusters; the choice that follows; bandwidths.


COST_WHOLE = [
    ("naive", "all_reduce"),
    ("ring", "all_reduce"),
    ("tree", "all_reduce"),
    ("halving_doubling", "all_reduce"),
]
PARTS = [
    ("naive", "broadcast"),
    ("naive", "reduce"),
    ("naive", "scatter"),
    ("naive", "gather"),
    ("naive", "barrier"),
    ("naive", "reduce_scatter"),
    ("naive", "all_gather"),
    ("naive", "all_to_all"),
    ("ring", "broadcast"),
    ("ring", "reduce"),
    ("ring", "reduce_scatter"),
    ("ring", "all_gather"),
    ("ring", "all_to_all"),
    ("ring", "barrier"),
    ("tree", "broadcast"),
    ("tree", "reduce"),
    ("tree", "barrier"),
    ("halving_doubling", "reduce_scatter"),
    ("halving_doubling", "all_gather"),
    ("pipelined", "all_reduce"),
    ("pipelined", "reduce_scatter"),
    ("pipelined", "all_gather"),
]
PIECES = [(name, verb) for name in ("pipelined", "double_tree") for verb in ("broadcast", "reduce")]
PIECES += [("double_tree", "all_reduce")]  # in as many pieces as are best, which need not be alike


def divisible(n):
    """Bytes that every algorithm cuts evenly: by n, by the powers of two in it, in two pieces, of 8 bytes."""
    return n * (1 << n.bit_length()) * 16


def off(world, predicted):
    """How far the prediction is from the world's time, relative."""
    return abs(predicted - world.time) / world.time if world.time else abs(predicted)


def far_off(algorithm, verb, ns, bound):
    """[(n, how far)] where formula and World differ by more than `bound`."""
    found = []
    for n in ns:
        nbytes = 1 if verb == "barrier" else divisible(n)
        wrong = off(
            run(n, verb, algorithm, nbytes), seconds(verb, algorithm, n, nbytes, ALPHA, BETA)
        )
        if wrong > bound:
            found.append((n, wrong))
    return found


@pytest.mark.parametrize(("algorithm", "verb"), COST_WHOLE)
def test_exact_for_every_n(algorithm, verb):
    """What consists of other verbs, so that those are exact, too, or their errors undo each other at each n."""
    assert far_off(algorithm, verb, EVERY, 1e-9) == []


@pytest.mark.parametrize(("algorithm", "verb"), PARTS)
def test_exact(algorithm, verb):
    assert far_off(algorithm, verb, SOME, 1e-9) == []


@pytest.mark.parametrize(("algorithm", "verb"), PIECES)
def test_in_pieces(algorithm, verb):
    assert far_off(algorithm, verb, [*SOME, 33, 64], 0.05) == []


@pytest.mark.parametrize("nbytes", [1 << 14, 1 << 20])
@pytest.mark.parametrize(("algorithm", "verb"), PIECES)
def test_in_many_pieces(algorithm, verb, nbytes):
    for n in (2, 3, 7, 12):
        predicted = seconds(verb, algorithm, n, nbytes, 2e-5, BETA)
        assert off(run(n, verb, algorithm, nbytes, alpha=2e-5), predicted) <= 0.05, n


def test_every_formula_is_tested():
    have = [
        (name, verb)
        for name, module in FLAT.items()
        for verb in dir(module.Cost)
        if hasattr(module, verb)
    ]
    assert {*COST_WHOLE, *PARTS, *PIECES} == {(name, verb) for name, verb in have if verb[0] != "_"}


@pytest.mark.parametrize(
    "verb", ["broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather"]
)
@pytest.mark.parametrize(("n", "size"), [(4, 2), (8, 2), (8, 4), (12, 4), (16, 4)])
def test_hierarchical(verb, n, size):
    algorithm = Hierarchical("ring", "ring", size)
    predicted = seconds(verb, algorithm, n, divisible(n), ALPHA, BETA)
    assert off(run(n, verb, algorithm, divisible(n)), predicted) <= 1e-9


@pytest.mark.parametrize("length", [1, 7, 1000, 1001])
def test_uneven_chunks_take_as_long_as_the_longest(length):
    for n in (3, 8, 13):
        whole = 8 * n * math.ceil(length / n)
        for algorithm, nbytes in (("ring", whole), ("tree", 8 * length)):
            world = run(n, "all_reduce", algorithm, 8 * length)
            assert off(world, seconds("all_reduce", algorithm, n, nbytes, ALPHA, BETA)) <= 1e-9


# of the device: combining reads two bytes and writes one for each, so γ = 3 / BANDWIDTH
BANDWIDTH = 1e12
DEVICE = Device(
    "without launch cost", {torch.float64: 1e18}, memory=10**12, bandwidth=BANDWIDTH, launch=0.0
)


@pytest.mark.parametrize(
    ("algorithm", "verb"), [(a, v) for a, v in COST_WHOLE + PARTS + PIECES if "reduce" in v]
)
def test_combining_takes_time(algorithm, verb):
    alpha, beta = 1e-7, 2e-11
    for n in (2, 3, 4, 8, 13):
        nbytes = 256 * divisible(n)
        world = run(
            n,
            verb,
            algorithm,
            nbytes,
            cluster=Cluster.uniform(n, alpha, beta, device=DEVICE),
            meter=True,
        )
        without, with_it = (
            seconds(verb, algorithm, n, nbytes, alpha, beta, gamma)
            for gamma in (0.0, 3 / BANDWIDTH)
        )
        # who acts for a pair
        copied = (algorithm, verb) == ("halving_doubling", "reduce_scatter") and n & (n - 1)
        assert off(world, with_it) <= (0.05 if copied or (algorithm, verb) in PIECES else 1e-9), n
        assert with_it > 1.002 * without or algorithm == "pipelined"  # which hides it


CLUSTERS = {
    "two nodes": (Cluster.dgx_h100(nodes=2), 16),
    "three, one of them smaller": (Cluster.dgx_a100(nodes=3), 20),
    "a slow rank": (Cluster.dgx_h100(nodes=2).slow_rank(5, 3.0), 16),
}
TOO_LONG = {"two nodes": 1.001, "three, one of them smaller": 1.1, "a slow rank": 1.4}
LARGE = 64 << 20
if FULL:
    CLUSTERS["16 nodes"] = Cluster.dgx_h100(nodes=16), 128
    TOO_LONG["16 nodes"] = 1.05


def net_of(cluster, n):
    return Net(n, lambda dst, src: cluster.link(src, dst))


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 18, 1 << 22] + [LARGE] * FULL)
@pytest.mark.parametrize("where", CLUSTERS)
def test_clusters(where, nbytes, figure):
    """Predicted from the links alone: exact where nodes are alike; never too short by more than 5 %, and too long
    where a slow rank is not on the longest path, or some wait less than others."""
    cluster, n = CLUSTERS[where]
    for algorithm in ALGORITHMS:
        for verb in ("all_reduce", "broadcast", "reduce_scatter"):
            if hasattr(ALGORITHMS[algorithm], verb):
                size = nbytes // (8 * n) * 8 * n
                world = run(n, verb, algorithm, size, cluster=cluster, meter=False)
                ratio = predict(net_of(cluster, n), verb, size, algorithm) / world.time
                figure(
                    f"{n} GPUs, {verb} of {size:,} bytes, {algorithm}: {world.time * 1e6:,.1f} µs simulated, "
                    f"{ratio - 1:+.1%} predicted"
                )
                assert 0.95 <= ratio <= TOO_LONG[where], (algorithm, verb)


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 18, 1 << 23] + [LARGE] * FULL)
@pytest.mark.parametrize(
    ("cluster", "n"),
    [
        (Cluster.uniform(16, 5e-6, 2e-11), 3),
        (Cluster.uniform(16, 5e-6, 2e-11), 16),
        (Cluster.dgx_h100(nodes=4), 24),
    ]
    + [(Cluster.dgx_h100(nodes=16), 128)] * FULL,
)
def test_auto_is_the_fastest(cluster, n, nbytes, figure):
    between = [Hierarchical(outer=name) for name in having("all_reduce")[1:]] if n >= 24 else []
    for verb in ("all_reduce", "broadcast"):
        names = [a for a in ALGORITHMS if hasattr(ALGORITHMS[a], verb)]
        names += [a for a in between if a.outer in having(verb)]
        times = [run(n, verb, a, nbytes, cluster=cluster, meter=False).time for a in names]
        auto = run(n, verb, "auto", nbytes, cluster=cluster, meter=False).time
        figure(
            f"{n} ranks, {verb} of {nbytes:,} bytes: auto {auto * 1e6:,.1f} µs, the fastest of {len(times)} "
            f"{min(times) * 1e6:,.1f} µs"
        )
        assert auto <= 1.05 * min(times)


def test_all_ranks_choose_the_same_without_a_message():
    def program(comm):
        return [str(fastest(comm, "all_reduce", nbytes)) for nbytes in (100, 10**5, 10**8)]

    world = World(12, cluster=Cluster.dgx_h100(nodes=2))
    chosen = world.run(program)
    assert chosen == [chosen[0]] * 12 and len(world.trace) == 0
    assert len(set(chosen[0])) > 1


def test_auto_can_be_the_default_of_a_comm():
    def program(comm):
        comm.algorithm = "auto"
        return all_reduce_(comm, torch.ones(1_000_000))[0].item()

    auto = World(4)
    assert auto.run(program) == [4.0] * 4
    # as a ring does: naive would send three times the whole from rank 0
    assert max(auto.trace.bytes_sent(rank) for rank in range(4)) == 6_000_000


def one_message_more(comm, flat, combine):
    ring.reduce_scatter(
        comm,
        list(flat.split(flat.numel() // comm.size)),
        flat[: flat.numel() // comm.size],
        combine,
    )
    ring.all_gather(comm, list(flat.split(flat.numel() // comm.size)))
    comm.sendrecv(
        flat[:1], (comm.rank + 1) % comm.size, flat[:1].clone(), (comm.rank - 1) % comm.size
    )


def test_an_error_on_either_side_shows(monkeypatch):
    assert far_off("ring", "all_reduce", [4], 1e-9) == []
    with monkeypatch.context() as patch:
        patch.setattr(ring, "all_reduce", one_message_more)
        assert far_off("ring", "all_reduce", [4], 1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(ring.Cost, "all_gather", lambda cost: 0.0)
        assert far_off("ring", "all_reduce", [4], 1e-9)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: seconds("gather", "ring", 4, 8, 1, 1), ("gather", "'naive'", "'ring'")),
        (lambda: seconds("gather", Hierarchical(), 4, 8, 1, 1), ("gather", "'naive'")),
        (lambda: seconds("all_reduce", "ring", 0, 8, 1, 1), ("at least 1 rank", "0")),
        (lambda: bandwidth("gather", 4, 8, 1.0), ("gather", "all_reduce")),
        (lambda: bandwidth("all_reduce", 0, 8, 1.0), ("0",)),
    ],
)
def test_refused(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


VERBS = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
}
FACTORS = {
    "2(n-1)/n": lambda n: 2 * (n - 1) / n,
    "(n-1)/n": lambda n: (n - 1) / n,
    "1": lambda n: 1,
}


def test_bandwidths_are_those_of_nccl_tests():
    with open(ROOT / "minidist/study/figures/nccl.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "busbw_over_algbw"]
    assert {row["collective"] for row in rows} == set(VERBS)
    for row in rows:
        for n in (2, 3, 8):
            algorithm, bus = bandwidth(VERBS[row["collective"]], n, 1000, 0.5)
            assert algorithm == 2000 and bus == pytest.approx(
                2000 * FACTORS[row["value"]](n), rel=1e-12
            )


def test_a_ring_uses_the_wire():
    """Bus bandwidth of a long message is the wire's, whatever n: what the factor is for."""
    for n in (2, 5, 8):
        for verb in ("all_reduce", "all_gather", "reduce_scatter"):
            nbytes = divisible(n) << 12
            _, bus = bandwidth(verb, n, nbytes, seconds(verb, "ring", n, nbytes, 1e-7, BETA))
            assert bus == pytest.approx(1 / BETA, rel=1e-2)


# ------------------------------------------------------------
# Wrong calls are refused in words, before a message is sent, in every world.


X = torch.arange(6.0)
DISPATCH_WHOLE = torch.arange(6)


def from_root(comm, x=X, **kwargs):
    return scatter(comm, x if comm.rank == 0 else None, **kwargs)


WRONG = {
    "op": (
        lambda comm: all_reduce_(comm, X.clone(), op="avg"),
        ("'sum', 'mean', 'min', 'max', 'prod'", "'avg'"),
    ),
    "op of a reduce": (lambda comm: reduce_(comm, X.clone(), op="or"), ("'or'",)),
    "op of a reduce_scatter": (lambda comm: reduce_scatter(comm, X, op="or"), ("'or'",)),
    "mean of ints": (
        lambda comm: all_reduce_(comm, DISPATCH_WHOLE.clone(), op="mean"),
        ("mean", "int64"),
    ),
    "mean of ints, scattered": (
        lambda comm: reduce_scatter(comm, DISPATCH_WHOLE, op="mean"),
        ("mean", "int64"),
    ),
    "mean of ints in a list": (
        lambda comm: all_reduce_(comm, [X.clone(), DISPATCH_WHOLE.clone()], op="mean"),
        ("int64",),
    ),
    "root too large": (lambda comm: broadcast_(comm, X.clone(), root=3), ("rank 3", "3 ranks")),
    "root below 0": (lambda comm: reduce_(comm, X.clone(), root=-1), ("rank -1", "3 ranks")),
    "root of a gather": (lambda comm: gather(comm, X, root=7), ("rank 7", "3 ranks")),
    "root of a scatter": (lambda comm: from_root(comm, root=7), ("rank 7", "3 ranks")),
    "algorithm": (
        lambda comm: all_reduce_(comm, X.clone(), algorithm="star"),
        ("'naive', 'ring'", "'star'"),
    ),
    "algorithm of a barrier": (
        lambda comm: barrier(comm, algorithm="star"),
        ("'naive', 'ring'", "'star'"),
    ),
    "one without the verb": (
        lambda comm: all_to_all(comm, X, algorithm="tree"),
        ("'ring', 'auto', 'native'",),
    ),
    "a ring without one": (lambda comm: gather(comm, X, algorithm="ring"), ("'naive'", "'ring'")),
    "no native one": (
        lambda comm: all_reduce_(comm, X.clone(), algorithm="native"),
        ("torch.distributed",),
    ),
    "odd split": (lambda comm: reduce_scatter(comm, torch.ones(7)), ("7 rows", "3 ranks")),
    "odd split of rows": (lambda comm: all_to_all(comm, torch.ones(4, 3)), ("4 rows", "3 ranks")),
    "sizes that do not add up": (
        lambda comm: reduce_scatter(comm, X, sizes=[1, 2, 4]),
        ("7", "6 rows"),
    ),
    "sizes that do not add up, sent": (
        lambda comm: all_to_all(comm, X, sizes=[1, 2, 2]),
        ("5", "6 rows"),
    ),
    "too few sizes": (lambda comm: all_gather(comm, X, sizes=[6, 6]), ("2 sizes", "3 ranks")),
    "no sizes": (lambda comm: all_gather(comm, X, sizes=[]), ("0 sizes", "3 ranks")),
    "not my size": (
        lambda comm: all_gather(comm, X, sizes=[6, 6, 5] if comm.rank else [5, 6, 6]),
        ("6 rows", "5"),
    ),
    "negative size": (
        lambda comm: reduce_scatter(comm, X, sizes=[8, -1, -1]),
        ("[8, -1, -1]", "at least 0", "not -1"),
    ),
    "own rows": (
        lambda comm: all_to_all(comm, X, sizes=[2, 2, 2], out_sizes=[1, 1, 1]),
        ("2 rows", "[1, 1, 1]"),
    ),
}
AT_ROOT = {
    "odd split at the root": (lambda comm: from_root(comm, torch.ones(7)), ("7 rows", "3 ranks")),
    "sizes at the root": (lambda comm: from_root(comm, sizes=[1, 1, 1]), ("3", "6 rows")),
    "no x at the root": (lambda comm: scatter(comm, None), ("rank 0", "x")),
    "out of another length": (lambda comm: from_root(comm, out=torch.ones(3)), ("(2,)", "(3,)")),
    "out of another dtype": (
        lambda comm: from_root(comm, out=torch.ones(2).double()),
        ("float32", "float64"),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_refused_before_anything_is_sent(what):
    program, words = WRONG[what]
    world = World(3)
    with pytest.raises(ValueError) as caught:
        world.run(program)
    assert all(word in str(caught.value) for word in words), caught.value
    assert len(world.trace) == 0


@pytest.mark.parametrize("what", AT_ROOT)
def test_the_root_refuses(what):
    program, words = AT_ROOT[what]
    with pytest.raises(ValueError) as caught:
        World(3).run(program)
    assert caught.value.rank == 0 and all(word in str(caught.value) for word in words), caught.value


def all_wrong(comm, names):
    """What each wrong call says, on this rank."""
    said = {}
    for name in names:
        try:
            WRONG[name][0](comm)
        except ValueError as error:
            said[name] = str(error)
    return said


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_processes_say_the_same(transport):
    names = [name for name in WRONG if name not in ("no native one", "not my size")]
    assert launch(all_wrong, 3, names, transport=transport) == World(3).run(all_wrong, names)


DIFFERENT = {
    "length": (lambda comm: all_reduce_(comm, torch.ones(6 + 3 * comm.rank)), ("(2,)", "(3,)")),
    "dtype": (
        lambda comm: all_reduce_(comm, X.clone() if comm.rank else X.double()),
        ("float32", "float64"),
    ),
    "verb": (
        lambda comm: all_gather(comm, X) if comm.rank else all_to_all(comm, X),
        ("all-gather", "all-to-all"),
    ),
    "rows": (lambda comm: all_gather(comm, torch.ones(1 + comm.rank)), ("(1,)", "(2,)")),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.parametrize(
    "run",
    [lambda program: World(2).run(program), lambda program: launch(program, 2)],
    ids=["world", "processes"],
)
def test_ranks_that_disagree_are_both_named(run, what):
    program, words = DIFFERENT[what]
    with pytest.raises(ValueError) as caught:
        run(program)
    assert all(word in str(caught.value) for word in ("rank 0", "rank 1", *words)), caught.value


def test_rows_are_of_one_tensor():
    for verb in (all_gather, reduce_scatter, all_to_all, gather, from_root):
        with pytest.raises(TypeError, match="or in place a list of tensors, not list"):
            World(2).run(lambda comm, verb=verb: verb(comm, [X, X]))


def test_a_tuple_of_tensors_is_reduced_in_place_as_a_list_is():
    def program(comm):
        x, y = torch.full((2,), 1.0 + comm.rank), torch.ones(3)
        all_reduce_(comm, (x, y))
        return x.tolist(), y.tolist()

    world = World(2)
    assert world.run(program) == [([3.0] * 2, [2.0] * 3)] * 2
    assert world.trace.messages(0) == 2  # both are in one


def test_the_default_is_the_comms():
    def program(comm, algorithm):
        comm.algorithm = algorithm
        all_reduce_(comm, torch.ones(8))
        gather(comm, torch.ones(8))  # knows only the naive one

    assert [World(4).run(program, "ring").trace.messages(r) for r in range(4)] == [6, 7, 7, 7]
    assert [World(4).run(program, "naive").trace.messages(r) for r in range(4)] == [3, 2, 2, 2]


class Loud:
    """An algorithm of one's own: anything with the functions of a verb."""

    def __init__(self):
        self.calls = []

    def all_reduce(self, comm, flat, combine):
        self.calls.append((comm.rank, flat.numel()))
        ring.all_reduce(comm, flat, combine)


def test_an_algorithm_of_ones_own():
    def program(comm):
        loud = Loud()
        x = all_reduce_(comm, torch.ones(5), algorithm=loud)
        return loud.calls, x.tolist()

    assert World(3).run(program) == [([(r, 5)], [3.0] * 5) for r in range(3)]


# ------------------------------------------------------------
# In place, with every algorithm, for chunks that lie beside each other and for those that do not.


IN_PLACE_LENGTHS = [(3, 3, 3, 3, 3), (4, 0, 7, 1, 2), (0, 0, 5, 0, 0), (0, 0, 0, 0, 0)]
IN_PLACE_ALGORITHMS = ["naive", "ring", "pipelined", "halving_doubling", "hierarchical", "auto"]


def chunks_of(rank, lengths, apart):
    """Numbers of a rank, small whole ones, which any order of additions sums exactly."""
    flat = torch.randint(
        -9, 9, (sum(lengths),), generator=torch.Generator().manual_seed(rank)
    ).double()
    chunks = list(flat.split(list(lengths)))
    return [chunk.clone() for chunk in chunks] if apart else chunks


def check_in_place(comm, algorithm):
    """What was wrong."""
    n = comm.size
    r = comm.rank
    wrong = []
    for lengths in IN_PLACE_LENGTHS:
        lengths = lengths[:n]
        for apart in (False, True):
            everyone = [chunks_of(rank, lengths, apart) for rank in range(n)]
            summed = sum(chunks[r] for chunks in everyone)
            for op, want in (("sum", summed), ("mean", summed / n)):
                chunks = chunks_of(r, lengths, apart)
                mine = chunks[r]
                reduce_scatter_(comm, chunks, op, algorithm)
                if not (mine is chunks[r] and torch.equal(mine, want)):
                    wrong.append((op, lengths, apart, r, mine, want))
            chunks = [
                chunk if i == r else torch.full_like(chunk, torch.nan)
                for i, chunk in enumerate(chunks_of(r, lengths, True))
            ]
            if not apart:
                chunks = list(torch.cat(chunks).split(list(lengths)))
            all_gather_(comm, chunks, algorithm)
            if not all(torch.equal(chunks[i], everyone[i][i]) for i in range(n)):
                wrong.append(("all_gather_", lengths, apart, r, chunks))
    return wrong


@pytest.mark.parametrize(
    ("n", "algorithm"),
    [
        (1, "ring"),
        (2, "ring"),
        (4, "ring"),
        (5, "ring"),
        (1, "naive"),
        *((3, algorithm) for algorithm in IN_PLACE_ALGORITHMS),
    ],
)
def test_in_place_world(n, algorithm):
    assert World(n).run(check_in_place, algorithm) == [[]] * n


@pytest.mark.parametrize(
    ("algorithm", "transport"), [("ring", "shm"), ("halving_doubling", "shm"), ("native", "gloo")]
)
def test_in_place_processes(algorithm, transport):
    assert launch(check_in_place, 3, algorithm, transport=transport) == [[]] * 3


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_messages_and_memory(n, apart):
    """In a ring each sends n−1 messages of a chunk. A sum needs room for one chunk beside, an all-gather nothing."""

    def program(comm, run):
        chunks = list(torch.empty(0 if apart else 1200, device="meta").split(1200 // n))
        if apart:
            chunks = [torch.empty(1200 // n, device="meta") for _ in range(n)]
        run(comm, chunks)

    for act, room in ((all_gather_, 0), (reduce_scatter_, 4800 // n if n > 1 else 0)):
        world = World(n, device="meta", meter=True)
        world.run(program, act)
        for rank in range(n):
            assert world.trace.messages(rank) == n - 1
            assert world.trace.bytes_sent(rank) == 4800 * (n - 1) // n
            assert world.trace.memory[rank].peak == 4800 + room


def test_wrong_chunks():
    def program(comm, chunks):
        reduce_scatter_(comm, chunks)

    for chunks, message in (
        ([torch.ones(2)], "1 chunks were given for 2 ranks"),
        ([torch.ones(2), torch.ones(1, 2)], r"chunk 1 is \(1, 2\)"),
        ([torch.ones(2), torch.ones(4)[::2]], r"chunk 1 is \(2,\) .* strides \(2,\)"),
        ([torch.ones(2), torch.ones(2).half()], "chunk 1 is .*float16"),
    ):
        with pytest.raises(ValueError, match=message):
            World(2).run(program, chunks)


# ------------------------------------------------------------
# Tensors laid out flat, and put back.


def test_one_contiguous_tensor_is_not_copied():
    x = torch.arange(6.0).view(2, 3)
    flat = Flat([x])
    assert flat.buffer.data_ptr() == x.data_ptr()
    flat.buffer.add_(1)
    flat.restore()
    assert torch.equal(x, torch.arange(1.0, 7.0).view(2, 3))


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.arange(6.0).view(2, 3).t()],
        [torch.arange(6.0), torch.tensor(5.0), torch.empty(0), torch.arange(8.0)[::2]],
    ],
)
def test_others_are_copied_and_copied_back(tensors):
    tensors = [t.clone(memory_format=torch.preserve_format) for t in tensors]
    before = [t.clone() for t in tensors]
    flat = Flat(tensors)
    assert torch.equal(flat.buffer, torch.cat([t.reshape(-1) for t in before]))
    flat.buffer.add_(1)
    assert all(torch.equal(t, b) for t, b in zip(tensors, before, strict=True))
    flat.restore()
    assert all(torch.equal(t, b + 1) for t, b in zip(tensors, before, strict=True))


def test_rows_of_every_rank():
    chunks = flat_rows(torch.arange(6).view(3, 2), [1, 2])
    assert [c.tolist() for c in chunks] == [[0, 1], [2, 3, 4, 5]]
    strided = torch.arange(6).view(2, 3).t()
    assert [c.tolist() for c in flat_rows(strided, [2, 1])] == [[0, 3, 1, 4], [2, 5]]


def test_a_number_is_one_row():
    assert [c.tolist() for c in flat_rows(torch.tensor(3.0), [1])] == [[3.0]]

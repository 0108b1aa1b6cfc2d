"""Attention over tokens that lie on many ranks is the serial one; what it sends, computes and keeps is as predicted."""

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.models import TransformerLayer, gpt, next_token_loss
from minidist.parallel import context
from minidist.parallel.context import (
    all_tokens,
    context_parallel_,
    explicit_block,
    gathered_attention,
    heads_attention,
    lengths,
    order_of,
    own_tokens,
    positions,
    ring_attention,
    segments,
    visible,
)
from minidist.study import predict
from tests.largest import largest
from tests.parallel.context_cases import (
    BATCH,
    SIZE,
    WAYS,
    attend,
    difference,
    inputs,
    on_rank,
    serial,
)
from tests.parallel.tensor_cases import RUNS
from tests.size import FULL

EVERY_WAY = [*WAYS, "heads"]
DEVICE = Device("plain", {torch.float32: 1e12}, 80 * 10**9, 1e12)

# ------------------------------------------------------------
# Which tokens each rank has.


def test_orders_as_drawn():
    own = lambda order: [x.tolist() for x in positions(16, 4, order)]
    assert own("contiguous") == [[*range(4 * r, 4 * r + 4)] for r in range(4)]
    assert own("zigzag") == [
        [0, 1, 14, 15],
        [2, 3, 12, 13],
        [4, 5, 10, 11],
        [6, 7, 8, 9],
    ]


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_token_has_one_rank(n, order):
    for T in (0, 1, 3, 13, 24):
        own = positions(T, n, order)
        assert sorted(torch.cat(own).tolist()) == [*range(T)]
        assert [len(x) for x in own] == lengths(T, n, order)
        assert max(lengths(T, n, order)) - min(lengths(T, n, order)) <= 2
        parts = World(n).run(lambda comm, T=T: own_tokens(torch.arange(T)[None], comm, order)[0])
        assert [x.tolist() for x in parts] == [x.tolist() for x in own]


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_each_query_sees_what_is_before_it(order):
    """The pairs of segments, drawn as a matrix, are the causal one, each once."""
    for T, n in ((24, 3), (13, 4), (3, 4)):
        seen = torch.zeros(T, T, dtype=torch.int64)
        every = positions(T, n, order)
        for rank in range(n):
            for source in range(n):
                parts = segments(T, n, order)
                for rows, columns, diagonal in visible(parts[rank], parts[source], True):
                    q, k = every[rank][rows], every[source][columns]
                    ones = torch.ones(len(q), len(k), dtype=torch.int64)
                    seen[q[:, None], k] += ones.tril() if diagonal else ones
        assert torch.equal(seen, torch.ones(T, T, dtype=torch.int64).tril())


# ------------------------------------------------------------
# Results and gradients are the serial ones.


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5] if FULL else [1, 2, 3, 4])
def test_is_the_serial_attention(n, way, figure):
    """T divided, not divided, and fewer tokens than ranks; as many heads of keys and fewer, one for all among them."""
    found = []
    for T in (24, 13, 3):
        for heads, groups in ((4, 4), (6, 2), (3, 1)):
            oracle = serial(T, heads, groups)
            for ours in World(n).run(on_rank, way, T, heads, groups):
                found.append(difference(ours, oracle))
    assert largest(found) < 1e-12
    figure(f"{way}, n={n}, fp64: largest difference {largest(found):.1e}")


@pytest.mark.parametrize("way", ["ring", "ring-explicit", "gathered", "heads"])
def test_not_causal(way):
    oracle = serial(13, causal=False)
    for ours in World(3).run(on_rank, way, 13, causal=False):
        assert difference(ours, oracle) < 1e-12


@pytest.mark.parametrize("n", [2, 3, 4])
def test_in_processes(n, figure):
    def every_way(comm):
        return {way: on_rank(comm, way, 13) for way in EVERY_WAY}

    oracle = serial(13)
    for results in RUNS["processes"](n, every_way):
        assert results.keys() == {*EVERY_WAY}
        worst = largest([difference(ours, oracle) for ours in results.values()])
        assert worst < 1e-12
    figure(f"processes, n={n}, all ways, fp64: largest difference {worst:.1e}")


def test_the_same_on_every_rank_and_in_every_world():
    """Bit for bit: what rank 0 puts together in a World, and in processes."""
    ours = [RUNS[world](3, on_rank, "ring-zigzag", 24)[rank] for world in RUNS for rank in (0, 2)]
    assert all(torch.equal(a, b) for other in ours[1:] for a, b in zip(ours[0], other, strict=True))


def test_large_scores():
    """exp of them overflows: the online softmax subtracts what is largest, of each block and of their union."""

    def program(comm):
        q, k, v, _ = (own_tokens(x, comm, "zigzag", 2) for x in inputs(16, 2, 2))
        return all_tokens(ring_attention(1e4 * q, k, v, comm), comm, 16, "zigzag", 2)

    q, k, v, _ = inputs(16, 2, 2)
    for ours in World(4).run(program):
        assert (ours - attend(1e4 * q, k, v)).abs().max() < 1e-10


# ------------------------------------------------------------
# In bf16 it is within the rounding. With u = 2⁻⁸ half the distance of two numbers, relative:
#
#     out   P is rounded before it meets v, each block's result, and their union: 3u of Σ P|v|
#     dv    P and g meet, the block's result, and the sum:                        3u of Σ P|g|
#     dS    from rowsum(g ∘ out), where out is 3u of Σ P|v| off; itself rounded:  δ = P·3u·Σ|g|·(P|V|) + u|dS|
#     dq    dS meets k, each block's result, the sum:                             Σ (δ + u|dS|)·|k| + u|dq|
#
# and dk as dq, with queries for keys. What is in float32 adds a thousandth of that.


def bf16_bounds(q, k, v, g):
    """Of the result and the three gradients, element by element; exact values beside them, all in float64."""
    u = 2.0**-8
    q, k, v, g = (x.double() for x in (q, k, v, g))
    scale = q.shape[-1] ** -0.5
    T = q.shape[-2]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    P = (q @ k.mT * scale).masked_fill(future, -torch.inf).softmax(-1)
    out = P @ v
    dS = P * (g @ v.mT - (g * out).sum(-1, keepdim=True))
    of_out = 3 * u * P @ v.abs()
    of_dS = P * (g.abs() * of_out).sum(-1, keepdim=True) + 2 * u * dS.abs()
    dq = dS @ k * scale
    dk = dS.mT @ q * scale
    dv = P.mT @ g
    of_dq = of_dS @ k.abs() * scale + u * dq.abs()
    of_dk = of_dS.mT @ q.abs() * scale + u * dk.abs()
    bounds = [of_out, of_dq, of_dk, 3 * u * P.mT @ g.abs()]
    return [out, dq, dk, dv], [1.001 * bound + 1e-6 for bound in bounds]


@pytest.mark.parametrize("way", ["ring", "ring-zigzag", "ring-explicit"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bf16_within_its_rounding(n, way, figure):
    exact, bounds = bf16_bounds(*inputs(48, 4, 4, torch.bfloat16))
    for ours in World(n).run(on_rank, way, 48, 4, 4, dtype=torch.bfloat16):
        assert [x.dtype for x in ours] == [torch.bfloat16] * 4
        ratios = [
            ((a.double() - b).abs() / bound).max().item()
            for a, b, bound in zip(ours, exact, bounds, strict=True)
        ]
        assert largest(ratios) < 1
    figure(f"{way}, n={n}, bf16: largest error {largest(ratios):.2f} of its bound")
    # the bound is no larger than it must be: a third of it would not do
    assert n == 1 or largest(ratios) > 0.15


def test_partial_results_are_in_float32():
    """Of many blocks: with 16-bit sums the error grows with their number, so that it leaves the bound."""

    def program(comm):
        q, k, v, _ = (own_tokens(x, comm, "zigzag", 2) for x in inputs(96, 2, 2, torch.bfloat16))
        return all_tokens(ring_attention(q, k, v.abs(), comm), comm, 96, "zigzag", 2)

    q, k, v, g = inputs(96, 2, 2, torch.bfloat16)
    [exact, *_], [bound, *_] = bf16_bounds(q, k, v.abs(), g)
    for n in (1, 4, 12):
        ours = World(n).run(program)[0]
        assert ((ours.double() - exact).abs() / bound).max() < 0.67


# ------------------------------------------------------------
# Bytes, work and memory: as predicted.


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_bytes(n, dtype, figure):
    def program(comm, way, backward):
        order = "zigzag" if way == "ring" else "contiguous"
        q, k, v, _ = (
            own_tokens(x, comm, order, 2).requires_grad_() for x in inputs(26, 6, 2, dtype)
        )
        out = {
            "gathered": lambda: gathered_attention(q, k, v, comm, 26),
            "ring": lambda: ring_attention(q, k, v, comm, 26),
            "heads": lambda: heads_attention(q, k, v, comm, attend, 26),
        }[way]()
        if backward:
            out.sum().backward()

    for way in ("gathered", "ring", "heads"):
        forward, back = predict.context_bytes(n, way, BATCH, 26, 6, 2, SIZE, dtype.itemsize)
        sent = [World(n).run(program, way, b).trace.bytes_sent() for b in (False, True)]
        assert sent == [forward, forward + back], way
        figure(f"{way}, n={n}, {dtype.itemsize} bytes: {forward:,} forward, {back:,} backward")


def test_messages_of_the_ring():
    """Keys and values travel together: n − 1 messages of a rank forward; backward as many again, and their gradients."""

    def program(comm, backward):
        q = torch.ones(1, 2, 8, 4, requires_grad=True)
        out = ring_attention(q, q, q, comm)
        if backward:
            out.sum().backward()

    for n in (2, 3, 4):
        traces = [World(n).run(program, backward).trace for backward in (False, True)]
        for rank in range(n):
            right = (rank + 1) % n
            assert [t.messages(rank) for t in traces] == [n - 1, 3 * (n - 1)]
            assert [t.messages(link=(rank, right)) for t in traces] == [n - 1, 3 * (n - 1)]


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_work_is_as_predicted(order, monkeypatch, figure):
    """Pairs of a query and a key that a rank computes; the slowest of a zigzag has 4n/(2n + 1) times fewer."""
    pairs = {}

    def counting(q, k, v, diagonal):
        rank = int(q[0, 0, 0, 0])  # the queries say whose they are
        pairs[rank] = pairs.get(rank, 0) + q.shape[-2] * k.shape[-2]
        return explicit_block(q, k, v, diagonal)

    def program(comm):
        q, k = torch.empty(2, 1, 1, 24 // comm.size, 2)
        ring_attention(q.fill_(comm.rank), k.fill_(1), k, comm, order=order)

    monkeypatch.setattr(context, "_operators", lambda q, attention: (counting, None))
    for n in (1, 2, 3, 4):
        pairs.clear()
        World(n).run(program)
        assert [pairs[rank] for rank in range(n)] == predict.context_pairs(n, order, 24)
        figure(f"{order}, n={n}: pairs by rank {[*pairs.values()]}")
    slowest = [max(predict.context_pairs(4, o, 24)) for o in ("contiguous", "zigzag")]
    assert slowest[0] * (2 * 4 + 1) == slowest[1] * 4 * 4


def kept(comm, T, count=1, way=None):
    """A step of `count` layers of a GPT on a rank's tokens of a sample of T."""
    layers = [TransformerLayer(96, 12, device="meta") for _ in range(count)]
    x = torch.empty(2, T // comm.size, 96, device="meta", requires_grad=True)
    for layer in layers:
        x = (context_parallel_(layer, comm, way) if way else layer)(x)
    x.sum().backward()


def activations_of_a_layer(n, T, *args):
    """Bytes that one layer more keeps at the peak of a step, on rank 0."""
    cluster = Cluster.uniform(n, 0.0, 0.0, DEVICE)
    most = [
        World(n, cluster=cluster, device="meta").run(kept, T, count, *args).trace.memory[0]
        for count in (1, 2)
    ]
    return most[1].at_peak["activations"] - most[0].at_peak["activations"]


NUMBERS = 24  # bytes that the fused attention keeps to draw its random numbers again


def test_memory_is_divided(figure):
    """All that a layer keeps: T/n of the serial one's, to the byte."""
    alone = activations_of_a_layer(1, 240)
    for n in (1, 2, 3, 4) if FULL else (3,):
        for way in ("zigzag", "contiguous"):
            own = activations_of_a_layer(n, 240, way)
            assert own * n == alone - NUMBERS, (n, way)
        figure(f"activations of a layer, n={n}: {own:,} of {alone:,} bytes")


def peak_of(comm, attention, T):
    """Bytes of the largest moment of attention alone, beside its inputs."""
    q, k, v = (torch.empty(2, h, T // comm.size, 8, device="meta") for h in (12, 4, 4))
    attention(q, k, v, comm)


def test_a_ring_holds_three_blocks_of_keys(figure):
    """A rank's own, the one it computes with, and the next; gathered, all n of them."""
    block = 2 * 2 * 4 * 60 * 8 * 4  # bytes of keys and values of 60 tokens
    cluster = lambda n: Cluster.uniform(n, 0.0, 0.0, DEVICE)
    run = lambda n, how: World(n, cluster=cluster(n), device="meta").run(peak_of, how, 60 * n)
    of_ring = {n: run(n, ring_attention).trace.memory[0].peak for n in (1, 2, 4, 8)}
    of_gathered = {n: run(n, gathered_attention).trace.memory[0].peak for n in (4, 8)}
    # with as many tokens on each rank, a longer sample costs nothing
    assert of_ring[2] == of_ring[4] == of_ring[8]
    assert of_gathered[8] - of_gathered[4] > 4 * block
    figure(f"60 tokens on each of 4 and 8 ranks: ring {of_ring}, gathered {of_gathered} bytes")


def test_what_attention_keeps(figure):
    """Queries, keys, values, the result and a number for each query and head."""

    def program(comm):
        q, k, v = (torch.empty(2, h, 240 // comm.size, 8, requires_grad=True) for h in (12, 4, 4))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.nbytes), id):
            ring_attention(q, k, v, comm)
        return sum(saved)

    for n in (1, 2, 3, 4):
        expected = predict.context_memory(n, 2, 240, 12, 4, 8, 4)
        assert World(n).run(program) == [expected] * n
        figure(f"ring attention keeps, n={n}: {expected:,} bytes")


# ------------------------------------------------------------
# The next block travels while this one is computed.


def timed(comm, q_heads, T):
    q, k, v = (torch.empty(1, h, T, 64, device="meta") for h in (q_heads, 4, 4))
    ring_attention(q, k, v, comm, order="contiguous", causal=False)


@pytest.mark.parametrize("slow", [0.5, 3.0])
def test_exchange_beside_the_block(slow, figure):
    """On a link so slow that a block takes `slow` times as long to send as to compute: the longer of the two counts."""
    cluster = lambda n, beta: Cluster.uniform(n, 0.0, beta, DEVICE)
    block = World(1, cluster=cluster(1, 0.0), device="meta").run(timed, 16, 512).time
    nbytes = 2 * 4 * 512 * 64 * 4
    exchange = slow * block
    run = World(4, cluster=cluster(4, exchange / nbytes), device="meta").run(timed, 16, 512)
    predicted = predict.ring_seconds(4, block, exchange)
    assert 0.98 * predicted < run.time < 1.05 * predicted  # k and v are put together once
    assert 4 * block + 3 * exchange > 1.2 * run.time  # one after the other
    # on the timeline: a rank computes while its message is under way
    first = min(message.start for message in run.trace)
    spans = [span for span in run.trace.spans if span.rank == 0 and span.kind == "compute"]
    assert first < max(span.end for span in spans[:4])
    figure(
        f"exchange {slow:g} of a block: {run.time / block:.2f} blocks, predicted {predicted / block:.2f}, "
        f"one after the other {4 + 3 * slow:g}"
    )


def test_zigzag_takes_nearly_half_the_time(figure):
    """Causal, on fast links: contiguous, all wait for the last rank."""

    def program(comm, order):
        q, k, v = (torch.empty(1, 16, 4096 // comm.size, 64, device="meta") for _ in range(3))
        ring_attention(q, k, v, comm, order=order)

    for n in (2, 4, 8):
        cluster = Cluster.uniform(n, 0.0, 1e-15, DEVICE)
        orders = ("contiguous", "zigzag")
        runs = [World(n, cluster=cluster, device="meta").run(program, order) for order in orders]
        gain = runs[0].time / runs[1].time
        pairs = [max(predict.context_pairs(n, o, 4096)) for o in ("contiguous", "zigzag")]
        figure(
            f"n={n}: contiguous takes {gain:.2f} times as long, predicted {pairs[0] / pairs[1]:.2f}"
        )


# ------------------------------------------------------------
# A layer, and a GPT with learned and with rotary positions.


def losses_and_gradients(model, tokens):
    loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def small_gpt(rotary):
    return gpt(2, 24, 6, 17, 24, dtype=torch.float64, rotary=rotary, kv_heads=3)


def gpt_on_rank(comm, way, rotary):
    """The mean loss of all tokens, and the gradients, averaged over the ranks."""
    model = context_parallel_(small_gpt(rotary), comm, way)
    tokens = torch.randint(17, (2, 25), generator=torch.Generator().manual_seed(3))
    x, y = (own_tokens(t, comm, order_of(way)) for t in (tokens[:, :-1], tokens[:, 1:]))
    loss = next_token_loss(model(x), y)
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    return [all_reduce_(comm, x.clone()) / comm.size for x in found]


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("way", ["zigzag", "contiguous", "heads"])
def test_a_gpt(way, rotary, figure):
    tokens = torch.randint(17, (2, 25), generator=torch.Generator().manual_seed(3))
    oracle = losses_and_gradients(small_gpt(rotary), tokens)
    for n in (1, 2, 3, 4):
        for ours in World(n).run(gpt_on_rank, way, rotary):
            worst = difference(ours, oracle)
            assert worst < 1e-12
    figure(f"GPT, {way}, rotary={rotary}: largest difference {worst:.1e}")


# ------------------------------------------------------------
# What is wrong is said.


def test_bad_input():
    def program(comm, change, **options):
        x = dict(q=torch.ones(1, 4, 3, 2), k=torch.ones(1, 2, 3, 2), v=torch.ones(1, 2, 3, 2))
        ring_attention(**x | change, comm=comm, **options)

    def refused(match, change=None, **options):
        with pytest.raises(ValueError, match=match):
            World(2).run(program, change or {}, **options)

    refused(
        "has 3 of 5 tokens in the order 'zigzag', not 2",
        dict.fromkeys("qkv", torch.ones(1, 2, 2, 2)),
        T=5,
    )
    refused("has 4 of 8 tokens in the order 'contiguous', not 3", order="contiguous", T=8)
    refused("order is one of 'contiguous', 'zigzag', not 'striped'", order="striped")
    refused("attention is one of 'sdpa', 'explicit', not 'flash'", attention="flash")
    refused("2 heads of keys and values do not serve 3 heads alike", {"q": torch.ones(1, 3, 3, 2)})
    refused(r"not \(1, 4, 3, 2\) float32 with \(1, 2, 4, 2\)", {"k": torch.ones(1, 2, 4, 2)})
    with pytest.raises(
        ValueError, match=r"over 2 ranks drops no weights of attention, and dropout=0\.5"
    ):
        World(2).run(lambda comm: context_parallel_(TransformerLayer(8, 2, dropout=0.5), comm))

"""Experts on n ranks: the serial layer, its router, its losses; who averages what, and what travels."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.optim import AdamW

from minidist.checkpoint import Checkpoints
from minidist.comm import Cluster, Device, World, launch
from minidist.comm.mesh import Mesh
from minidist.models import (
    Experts,
    Router,
    TransformerLayer,
    gpt,
    next_token_loss,
    seeded_,
)
from minidist.parallel.experts import (
    ExpertDataParallel,
    ExpertParallel,
    ExpertShardedOptimizer,
    GatheredExperts,
    expert_parallel_,
    expert_parameters,
    repeated,
)
from minidist.parallelize import parallelize
from minidist.split import bounds, uneven
from minidist.study.predict import expert_gradient_bytes, expert_layer_bytes
from minidist.tasks import text
from minidist.text import Samples
from minidist.train.amp import autocast
from minidist.train.norm import clip_grad_norm_
from tests import parallelized
from tests.largest import largest
from tests.size import FULL

WIDE = dict(dtype=torch.float64)
SIZES = dict(layers=2, hidden=12, heads=2, vocab=11, context=6)
LAYERS = [ExpertParallel, GatheredExperts]
ROUTINGS = [{}, {"top_k": 1, "capacity": 1.0}, {"top_k": 3, "capacity": 0.75}]


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(experts=5, hidden=12, **options):
    """A layer of experts with its initial values, and a router that is not even."""
    options = WIDE | options
    layer = seeded_(TransformerLayer(hidden, 2, experts=experts, **options)).mlp
    with torch.no_grad():
        layer.router.weight.mul_(3)
    return layer


def run_of(kind, n):
    return World(n).run if kind == "world" else lambda program, *args: launch(program, n, *args)


# ------------------------------------------------------------
# The serial layer, against one that is written token by token, with both losses in the sum.


def token_by_token(layer, x, k, capacity, balance, z):
    """(output, added loss) of a layer of experts: the plain definition, with Python's sorting."""
    weight = layer.router.weight
    E, (B, T, _) = len(weight), x.shape
    outputs, losses = [], []
    for sample in x:
        taken = [0] * E
        asked = [0] * E
        importance = squares = 0
        for token in sample:
            logits = weight @ token
            p = logits.exp() / logits.exp().sum()
            best = sorted(range(E), key=lambda e: -p[e].item())[
                :k
            ]  # stable: of equal ones the first
            total = p[best].sum() if k > 1 else 1
            y = torch.zeros_like(token)
            for e in best:
                asked[e] += 1
                if capacity is None or taken[e] < math.ceil(capacity * k * T / E):
                    taken[e] += 1
                    y = y + p[e] / total * layer.experts[str(e)](token)
            outputs.append(y)
            importance, squares = importance + p / T, squares + logits.exp().sum().log() ** 2 / T
        shares = torch.tensor(asked, dtype=x.dtype) / (k * T)
        losses.append(balance * E * (shares * importance).sum() + z * squares)
    return torch.stack(outputs).view_as(x), sum(losses) / B


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("capacity", [None, 0.5, 1.0])
def test_the_layer_is_its_definition(k, capacity):
    options = dict(top_k=k, capacity=capacity, balance=0.3, z=0.2)
    layer, x = layer_of(**options), data(2, 6, 12)
    found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer.loss_scale = 0.7
    y = layer(found)
    (y * data(*y.shape, seed=1)).sum().backward()
    grads = {name: p.grad.clone() for name, p in layer.named_parameters()} | {"x": found.grad}
    layer.zero_grad()
    oracle, loss = token_by_token(layer, expected, k, capacity, 0.3, 0.2)
    ((oracle * data(*y.shape, seed=1)).sum() + 0.7 * loss).backward()
    missing = [name for name, p in layer.named_parameters() if p.grad is None]
    right = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in layer.named_parameters()
    } | {"x": expected.grad}
    off = largest(
        [(y - oracle).detach().abs().max(), *((grads[k] - g).abs().max() for k, g in right.items())]
    )
    assert off < 1e-12 and abs(layer.loss - loss) < 1e-12
    assert all(not grads[name].any() for name in missing), "an expert without a token has zeros"


def test_the_gradient_of_the_losses_by_hand():
    """d balance/dp_e = E·f_e/T, at each sample by itself; d z/d logits = 2·logsumexp·p/T."""
    E = 5
    layer, x = layer_of(E, top_k=1, balance=1.0, z=0.0), data(2, 6, 12)
    B, T, _ = x.shape
    weight = layer.router.weight
    layer(x).sum().mul(0).backward()
    p = F.linear(x, weight).softmax(-1)
    f = F.one_hot(p.argmax(-1), E).double().mean(1)  # (B, E)
    of_p = (E * f / T / B)[:, None].expand(B, T, E)
    of_logits = p * (of_p - (p * of_p).sum(-1, keepdim=True))
    by_hand = torch.einsum("bte,bth->eh", of_logits, x)
    assert (weight.grad - by_hand).abs().max() < 1e-12
    layer = layer_of(E, top_k=1, balance=0.0, z=1.0)
    layer(x).sum().mul(0).backward()
    logits = F.linear(x, layer.router.weight)
    of_logits = 2 * logits.logsumexp(-1, keepdim=True) * logits.softmax(-1) / (B * T)
    by_hand = torch.einsum("bte,bth->eh", of_logits, x)
    assert (layer.router.weight.grad - by_hand).abs().max() < 1e-12


def test_equal_probabilities_go_to_the_first_and_balance_is_one():
    router = Router(4, 6, top_k=2, balance=1.0, z=0.0, **WIDE)
    torch.nn.init.zeros_(router.weight)
    choices, gates, loss = router(data(2, 3, 4))
    assert choices.tolist() == [[[0, 1]] * 3] * 2 and (gates == 0.5).all()
    assert abs(loss.item() - 1) < 1e-12  # every p is 1/E, whatever f is


def test_a_dropped_token_has_the_residual_alone_and_none_hangs_on_a_later_one():
    layer = layer_of(2, top_k=1, capacity=0.5, balance=0.0, z=0.0)
    with torch.no_grad():
        layer.router.weight[0], layer.router.weight[1] = 1.0, -1.0
    x = data(2, 8, 12).abs()  # all to expert 0, which has ⌈0.5·8/2⌉ = 2 seats in a sample
    y = layer(x)
    assert layer.counts == [4, 0]
    assert not y[:, 2:].any() and y[:, :2].any(-1).all()
    whole = TransformerLayer(12, 2, experts=2, top_k=2, capacity=0.5, **WIDE)
    seeded_(whole)
    x = data(1, 8, 12)
    later = torch.cat([x[:, :5], data(1, 3, 12, seed=9)], 1)
    assert torch.equal(whole.mlp(x)[:, :5], whole.mlp(later)[:, :5])


def test_samples_are_routed_by_themselves():
    """A batch cut in two gives the same outputs, drops and mean loss."""
    layer, x = layer_of(top_k=2, capacity=0.6), data(4, 6, 12)
    whole = layer(x)
    loss = layer.loss
    parts = [(layer(part), layer.loss * len(part) / 4) for part in x.split([1, 3])]
    assert (torch.cat([y for y, _ in parts]) - whole).abs().max() < 1e-12
    assert abs(sum(part for _, part in parts) - loss) < 1e-12


def test_the_router_decides_in_float32_under_an_autocast():
    layer = layer_of(dtype=torch.float32)
    x = data(2, 6, 12).float()
    choices, gates, _ = layer.router(x)
    with autocast(torch.bfloat16):
        lowered, half_gates, _ = layer.router(x)
    assert torch.equal(choices, lowered) and torch.equal(gates, half_gates)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(experts=4, top_k=5), "5 of 4 experts"),
        (dict(experts=0), "at least 1 expert, not 0"),
        (dict(experts=4, top_k=0), "at least 1 expert, not 0"),
        (dict(experts=4, capacity=0.0), "above 0, not 0"),
        (dict(experts=4, balance=-1), "at least 0, not -1"),
        (dict(experts=4, layers=1), "a GPT of 1 has none"),
        (dict(top_k=2), "without experts has no option top_k"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        gpt(**SIZES | options, device="meta")


# ------------------------------------------------------------
# On ranks: outputs and gradients of a GPT with experts in every second layer, all ranks' samples together the batch.


def batch(samples, vocab=11, T=6):
    random = torch.Generator().manual_seed(samples)
    return torch.randint(0, vocab, (2, samples, T), generator=random)


def model_of(options, **sizes):
    return SIZES | WIDE | dict(experts=5) | options | sizes


def trained_part(comm, samples, options, layer, dp=1):
    """(loss of this rank's samples, gradients of the mean loss) and each layer's counts, on data × expert ranks."""
    mesh = Mesh(comm, dp=dp, ep=comm.size // dp, order="pp dp ep tp")
    model = gpt(**model_of(options), device="meta")
    model = expert_parallel_(model, mesh.ep, layer=layer)
    ExpertDataParallel(model, mesh.group("dp", "ep"), mesh.dp)
    sizes = uneven(samples, comm.size)
    first, end = bounds(sizes)[comm.rank]
    x, y = batch(samples)[:, first:end]
    share = comm.size * sizes[comm.rank] / samples
    for part in model.modules():
        if isinstance(part, Experts):
            part.loss_scale = share
    loss = next_token_loss(model(x), y) * share
    loss.backward()
    counts = [part.counts for part in model.modules() if isinstance(part, Experts)]
    return (
        loss.detach() / comm.size,
        {k: p.grad.clone() for k, p in model.named_parameters()},
        counts,
    )


def serial_part(samples, options):
    model = gpt(**model_of(options))
    x, y = batch(samples)
    loss = next_token_loss(model(x), y)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def worst(results, expected):
    """The largest difference of loss and gradients; what several ranks hold is equal bit for bit."""
    loss, grads = expected
    found = {}
    for _, part, _ in results:
        for name, grad in part.items():
            assert torch.equal(found.setdefault(name, grad), grad), name
    assert found.keys() == grads.keys()
    off = [(found[name] - grad).abs().max() for name, grad in grads.items()]
    return largest([(sum(part for part, _, _ in results) - loss).abs(), *off]).item()


@pytest.mark.parametrize("options", ROUTINGS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_serial_gradients(n, options, figure):
    samples = 2 * n + 1
    for layer in LAYERS:
        results = World(n).run(trained_part, samples, options, layer)
        off = worst(results, serial_part(samples, options))
        figure(f"n={n}, {layer.__name__}, {options}: off by {off:.0e}")
        assert off < 1e-13


@pytest.mark.parametrize("n", [2, 3, *([4] if FULL else [])])
def test_the_serial_gradients_over_processes(n, figure):
    results = launch(trained_part, n, 2 * n + 1, ROUTINGS[1], ExpertParallel)
    off = worst(results, serial_part(2 * n + 1, ROUTINGS[1]))
    figure(f"n={n}, processes: off by {off:.0e}")
    assert off < 1e-13


@pytest.mark.parametrize(("dp", "ep"), [(2, 2), (3, 2), (2, 3)])
def test_data_and_expert_ranks(dp, ep, figure):
    results = World(dp * ep).run(trained_part, 7, ROUTINGS[2], ExpertParallel, dp)
    off = worst(results, serial_part(7, ROUTINGS[2]))
    figure(f"data {dp}, expert {ep}: off by {off:.0e}")
    assert off < 1e-13


def test_a_rank_holds_its_experts_alone():
    def program(comm):
        model = expert_parallel_(gpt(**model_of({}), device="meta"), comm)
        experts = sum(p.numel() for p in expert_parameters(model).values())
        return experts, sum(p.numel() for p in model.parameters()) - experts

    one = 2 * 4 * 12 * 12 + 5 * 12
    rest = sum(p.numel() for p in gpt(**model_of({}), device="meta").parameters()) - 5 * one
    for n in (1, 2, 3, 4):
        assert list(World(n).run(program)) == [(k * one, rest) for k in uneven(5, n)]


def to_one(comm, experts=3):
    """A layer whose router sends every token to expert 0, on ranks; each has 4 tokens."""
    layer = expert_parallel_(layer_of(experts, top_k=1, balance=0.0, z=0.0), comm)
    with torch.no_grad():
        layer.router.weight[:] = -1.0
        layer.router.weight[0] = 1.0
    return layer, data(1, 4, 12, seed=comm.rank).abs().requires_grad_()


def test_experts_that_nobody_asks_for_have_zeros_and_their_ranks_come_all_the_same():
    def program(comm):
        layer, x = to_one(comm)
        layer(x).sum().backward()
        return [
            p.grad.abs().sum().item() > 0 for p in expert_parameters(layer).values()
        ], layer.counts

    results = World(3).run(program)
    assert [grads for grads, _ in results] == [[True] * 4, [False] * 4, [False] * 4]
    assert [counts for _, counts in results] == [[4, 0, 0]] * 3


@pytest.mark.parametrize(("dp", "ep"), [(1, 3), (2, 2)])
def test_the_norm_counts_each_gradient_once(dp, ep):
    def program(comm, dp):
        mesh = Mesh(comm, dp=dp, ep=comm.size // dp, order="pp dp ep tp")
        model = expert_parallel_(gpt(**model_of({}), device="meta"), mesh.ep)
        ExpertDataParallel(model, mesh.group("dp", "ep"), mesh.dp)
        x, y = batch(comm.size)[:, comm.rank : comm.rank + 1]
        next_token_loss(model(x), y).backward()
        norm = clip_grad_norm_(model, 0.1, mesh.ep, repeated=repeated(model, mesh.ep))
        return norm, {name: p.grad.clone() for name, p in model.named_parameters()}

    model = gpt(**model_of({}))
    x, y = batch(dp * ep)
    next_token_loss(model(x), y).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    grads = {name: p.grad for name, p in model.named_parameters()}
    for norm, found in World(dp * ep).run(program, dp):
        assert abs(norm - expected) < 1e-12
        assert largest([(grads[k] - g).abs().max() for k, g in found.items()]) < 1e-12


# ------------------------------------------------------------
# What travels, and who waits.


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bytes_of_a_layer(n, figure):
    """Forward and backward, rank by rank, at the counts that there were; and balanced, by the closed form."""

    def program(comm, backward):
        layer = expert_parallel_(layer_of(5, top_k=2, capacity=1.25), comm)
        y = layer(data(comm.rank + 1, 6, 12, seed=comm.rank).requires_grad_())
        if backward:
            y.sum().backward()
        return layer.counts

    forward, both = (World(n).run(program, backward) for backward in (False, True))
    predicted = expert_layer_bytes(list(forward), 12, 8)
    sent = [
        (forward.trace.bytes_sent(r), both.trace.bytes_sent(r) - forward.trace.bytes_sent(r))
        for r in range(n)
    ]
    figure(f"n={n}: {sum(map(sum, sent))} bytes sent, {sum(map(sum, predicted))} predicted")
    assert sent == predicted
    even = expert_layer_bytes([[3] * 2 * n] * n, 12, 8)  # R = 6n rows of a rank
    away = 6 * n * 12 * 8 * (n - 1) // n
    assert even == [(2 * away + 8 * 2 * (n - 1), 2 * away)] * n


def test_gathering_everywhere_sends_n_times_as_much():
    def program(comm, layer):
        x = torch.zeros(2, 60, 12, device="meta", dtype=torch.float64)
        expert_parallel_(layer_of(8, device="meta"), comm, layer=layer)(x)

    sent = [World(4, device="meta").run(program, layer).trace.bytes_sent() for layer in LAYERS]
    announced = 8 * 4 * 3
    rows = sent[0] - 2 * announced
    assert rows == 2 * 4 * 240 * 12 * 8 * 3 // 4
    assert sent[1] - 8 * announced == 4 * rows


@pytest.mark.parametrize(("dp", "ep"), [(2, 2), (3, 1), (1, 3)])
def test_bytes_of_a_step(dp, ep, figure):
    """All ranks together: the layers of experts, and the averages."""
    once, twice = (World(dp * ep).run(steps_of, dp, steps) for steps in (1, 2))
    names = {n: p.numel() for n, p in gpt(**model_of({}), device="meta").named_parameters()}
    own = [count for name, count in names.items() if ".experts." in name]
    tensors = len(own), len(names) - len(own)
    averages = expert_gradient_bytes(sum(own), sum(names.values()) - sum(own), dp, ep, 8, tensors)
    groups = [[once[d * ep + e] for e in range(ep)] for d in range(dp)]
    layers = sum(sum(map(sum, expert_layer_bytes(counts, 12, 8))) for counts in groups)
    # the first step tells the order of the buckets, too
    sent = twice.trace.bytes_sent() - once.trace.bytes_sent()
    figure(f"data {dp}, expert {ep}: a step sends {sent} bytes, {averages + layers} predicted")
    assert sent == averages + layers


def steps_of(comm, dp, steps):
    """Some backwards on data × expert ranks; the last one's counts."""
    mesh = Mesh(comm, dp=dp, ep=comm.size // dp, order="pp dp ep tp")
    model = expert_parallel_(gpt(**model_of({}), device="meta"), mesh.ep)
    ExpertDataParallel(model, mesh.group("dp", "ep"), mesh.dp)
    x, y = batch(comm.size)[:, comm.rank : comm.rank + 1]
    for _ in range(steps):
        next_token_loss(model(x), y).backward()
    return model.layers[1].mlp.counts


def computed(trace, rank):
    """Seconds that a rank computes."""
    spans = [span for span in trace.spans if span.rank == rank]
    return sum(span.end - span.start for span in spans if span.kind in ("compute", "backward"))


def test_imbalance_on_the_timeline(figure):
    """Each token at expert 0: its rank computes for all, the others wait. Where tokens are even, nobody does."""
    device = Device("small", {torch.float64: 1e9}, 1e12, 1 << 40, efficiency=1.0)
    cluster = Cluster.uniform(4, 1e-6, 1e-12, device)

    def program(comm, crowded):
        layer = expert_parallel_(layer_of(4, top_k=1, balance=0.0, z=0.0, ffn=512), comm)
        x = torch.eye(4, 12, **WIDE).repeat(4, 1)[None].requires_grad_()  # 16 tokens
        with torch.no_grad():
            layer.router.weight.zero_().fill_diagonal_(1.0)
            layer.router.weight[0] += 2.0 * crowded
        layer(x).sum().backward()
        return layer.counts

    even, crowded = (World(4, cluster=cluster).run(program, kind) for kind in (False, True))
    assert list(even) == [[4, 4, 4, 4]] * 4 and list(crowded) == [[16, 0, 0, 0]] * 4
    own = [computed(crowded.trace, rank) / computed(even.trace, rank) for rank in range(4)]
    figure(
        f"all tokens at one of 4 ranks: the step takes {crowded.time / even.time:.2f} times as long"
    )
    assert own[0] > 3 and largest(own[1:]) < 0.3
    assert 3 < crowded.time / even.time < 4


def test_a_step_runs_on_meta():
    def program(comm):
        model = gpt(**model_of(dict(capacity=1.25)), device="meta")
        model = expert_parallel_(model, comm)
        ExpertDataParallel(model, comm, comm.split(list(range(comm.size))))
        x = torch.zeros(2, 6, dtype=torch.long, device="meta")
        model(x).sum().backward()
        return model.layers[1].mlp.counts

    counts = World(3, device="meta").run(program)
    assert list(counts) == [uneven(24, 5)] * 3


def test_what_cannot_be_shared_out_is_refused():
    def program(comm, module, twice):
        for _ in range(1 + twice):
            module = expert_parallel_(module, comm)

    for module, twice, words in [
        (gpt(**SIZES, device="meta"), False, "a GPT has no experts to share out over 3 ranks"),
        (layer_of(2), False, "2 experts do not split over 3 ranks"),
        (layer_of(3), True, "shared out already"),
    ]:
        with pytest.raises(ValueError, match=words):
            World(3).run(program, module, twice)


# ------------------------------------------------------------
# A GPT on a mesh, by `parallelize`: losses and parameters of the serial run.

EXPERTS = parallelized.SHAPE | dict(experts=5, capacity=1.25)
ONE = EXPERTS | dict(top_k=1, gated=True, tied=False)
ORDER = "pp dp ep tp"
GRIDS = {
    "ep2": (dict(ep=2, order=ORDER), EXPERTS, {}),
    "ep5-uneven": (dict(ep=5, order=ORDER), ONE, dict(micro_batches=2)),
    "dp2-ep2": (dict(dp=2, ep=2, order=ORDER), EXPERTS, dict(recompute="full")),
    "pp2-ep2": (dict(pp=2, ep=2, order=ORDER), ONE, dict(micro_batches=5)),
    "pp2-ep2-halves": (
        dict(pp=2, ep=2, order=ORDER),
        EXPERTS,
        dict(micro_batches=4, schedule="zb_h1"),
    ),
    "ep2-tp2": (dict(ep=2, tp=2, order=ORDER), EXPERTS, dict(micro_batches=2)),
    "dp2-tp2-zero3": (dict(dp=2, tp=2), EXPERTS, dict(zero=3, recompute="full")),
    "ep2-zero1": (dict(ep=2, order=ORDER), EXPERTS, dict(zero=1)),
    "ep5-zero2-uneven": (dict(ep=5, order=ORDER), ONE, dict(micro_batches=2, zero=2)),
    "dp2-pp2-ep2-zero2": (
        dict(dp=2, pp=2, ep=2, order=ORDER),
        EXPERTS,
        dict(zero=2, micro_batches=2, recompute="full"),
    ),
    "all": (dict(dp=2, pp=2, ep=2, tp=2, order=ORDER), EXPERTS, dict(micro_batches=2)),
}
if FULL:
    GRIDS |= {
        "dp3-ep2-zero1": (dict(dp=3, ep=2, order=ORDER), EXPERTS, dict(zero=1, micro_batches=2)),
        "dp2-ep2-tp2-zero1": (dict(dp=2, ep=2, tp=2, order=ORDER), ONE, dict(zero=1)),
        "pp2-ep2-zero2-halves": (
            dict(pp=2, ep=2, order=ORDER),
            EXPERTS,
            dict(micro_batches=4, schedule="zb_h1", zero=2),
        ),
    }


def ranks_of(grid):
    return math.prod(size for size in grid.values() if isinstance(size, int))


def off_serial(run, name, steps=2):
    grid, shape, options = GRIDS[name]
    results = parallelized.RUNS[run](
        ranks_of(grid), parallelized.train, grid, shape, options, steps
    )
    return parallelized.gaps(results, *parallelized.serial(shape, steps))


@pytest.mark.parametrize("name", GRIDS)
def test_a_gpt_on_a_mesh(name, figure):
    loss, parameter = off_serial("world", name)
    figure(f"{name}: losses are off by {loss:.0e}, parameters by {parameter:.0e}")
    assert loss < 1e-12 and parameter < 1e-10


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("processes", "dp2-ep2"),
        ("processes", "dp2-ep2-tp2-zero1" if FULL else "ep2-zero1"),
        *([("gloo", "dp2-ep2"), ("processes", "dp2-pp2-ep2-zero2")] if FULL else []),
    ],
)
def test_a_gpt_on_a_mesh_of_processes(run, name, figure):
    loss, parameter = off_serial(run, name)
    figure(f"{name} over {run}: losses are off by {loss:.0e}, parameters by {parameter:.0e}")
    assert loss < 1e-12 and parameter < 1e-10


@pytest.mark.parametrize(
    ("grid", "shape", "options", "words"),
    [
        (dict(ep=2, order=ORDER), parallelized.SHAPE, {}, "ep=2 shares out experts"),
        (dict(tp=2), EXPERTS, dict(sequence_parallel=True), "counts whole samples"),
        (
            dict(ep=2, order=ORDER),
            EXPERTS,
            dict(zero=3),
            "zero=0, 1 or 2, .* not zero=3, replicas=1",
        ),
        (
            dict(dp=2, ep=2, order=ORDER),
            EXPERTS,
            dict(zero=1, replicas=2),
            "ep=2 .* replicas=1 and no compression, not zero=1, replicas=2",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(grid, shape, options, words):
    with pytest.raises(ValueError, match=words):
        World(ranks_of(grid)).run(parallelized.train, grid, shape, options)


def went_on(comm, grid, shape, options, folder):
    """Two steps from the start, or from what was saved; then saved: losses, and what is held, of the model."""
    engine = parallelize(
        gpt(**shape, device="meta"), Mesh(comm, **grid), parallelized.adam, **options
    )
    checkpoints = Checkpoints(folder, comm)
    found = checkpoints.latest()
    first = 0
    if found is not None:
        engine.load(found)
        first = found.step
    losses = []
    for step in (first, first + 1):
        x, y = (parallelized.mine(engine.mesh, both) for both in parallelized.data(step))
        losses.append(engine.step(x, y, max_norm=parallelized.CLIP).item())
    checkpoints.save(first + 2, engine.pieces())
    return losses, parallelized.held(engine)


WAY = [
    (dict(dp=3, ep=2, order=ORDER), dict(zero=2)),
    (dict(ep=4, order=ORDER), dict(zero=1, micro_batches=3)),
    (dict(dp=2, tp=2), dict(zero=3)),
    (dict(dp=2, pp=2, ep=2, order=ORDER), dict(zero=1)),
    (dict(ep=2, order=ORDER), {}),
    (dict(dp=2, ep=2, order=ORDER), dict(zero=2, micro_batches=3)),
]


def test_sharded_states_go_from_one_mesh_to_another(tmp_path):
    """Each mesh goes on where the one before was, as the serial run does."""
    way = WAY if FULL else WAY[:4]
    losses, params = parallelized.serial(EXPERTS, 2 * len(way))
    for i, (grid, options) in enumerate(way):
        results = World(ranks_of(grid)).run(went_on, grid, EXPERTS, options, tmp_path)
        loss = largest(
            abs(a - b)
            for found, _ in results
            for a, b in zip(found, losses[2 * i : 2 * i + 2], strict=True)
        )
        assert loss < 1e-12, (grid, loss)
    assert parallelized.gaps(results, losses[-2:], params)[1] < 1e-10


def test_masters_of_experts_are_saved(tmp_path):
    """In 16 bits, stopped and resumed, on the same mesh: bit for bit; ZeRO 0 steps alike, to rounding."""
    grid, shape = dict(dp=2, ep=2, order=ORDER), EXPERTS | dict(dtype=torch.float32)
    half = dict(amp="O2", zero=2)
    whole = World(4).run(parallelized.train, grid, shape, half, 4)
    runs = [World(4).run(went_on, grid, shape, half, tmp_path) for _ in range(2)]
    plain = World(4).run(parallelized.train, grid, shape, half | dict(zero=0), 2)
    for rank, (losses, pieces) in enumerate(whole):
        assert losses == runs[0][rank][0] + runs[1][rank][0]
        for (*_, a), (*_, b) in zip(pieces, runs[1][rank][1], strict=True):
            assert torch.equal(a, b)
        assert losses[:2] == pytest.approx(plain[rank][0], rel=1e-3)


def sharded(comm, dp, stage, steps):
    """Steps with a rate that falls, on data × expert ranks: the parameters, the counts of the last step, and the names
    of those whose states lie here."""
    mesh = Mesh(comm, dp=dp, ep=comm.size // dp, order=ORDER)
    model = expert_parallel_(gpt(**model_of({}), device="meta"), mesh.ep)
    everyone = mesh.group("dp", "ep")
    optimizer = ExpertShardedOptimizer(
        model, model.parameters(), partial(AdamW, lr=1.0), everyone, mesh.dp, stage
    )
    x, y = batch(comm.size)[:, comm.rank : comm.rank + 1]
    for step in range(steps):
        [group] = optimizer.param_groups
        group["lr"] = 0.01 / (1 + step)
        optimizer.zero_grad()
        next_token_loss(model(x), y).backward()
        optimizer.step()
    counts, state = model.layers[1].mlp.counts, optimizer.own_state_dict()
    with pytest.raises(ValueError, match=f"own state of rank {comm.rank + 1} of"):
        optimizer.load_state_dict(state | {"owner": [comm.rank + 1, comm.size]})
    names = [name for name, _ in model.named_parameters()]
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert optimizer.state_dict()["state"].keys() == set(range(len(names)))
    return params, counts, {names[i] for i in state["state"]}


@pytest.mark.parametrize(
    ("dp", "ep", "stage"), [(2, 2, 1), (2, 2, 2), *([(3, 1, 2), (1, 3, 1)] if FULL else [])]
)
def test_what_is_sharded_over_whom(dp, ep, stage, figure):
    """Steps are serial, each state lies once among those who hold the parameter, and bytes are data parallelism's."""
    model = gpt(**model_of({}))
    optimizer = AdamW(model.parameters())
    x, y = batch(dp * ep)
    for step in range(2):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        optimizer.zero_grad()
        next_token_loss(model(x), y).backward()
        optimizer.step()
    once, twice = (World(dp * ep).run(sharded, dp, stage, steps) for steps in (1, 2))
    held_by = {name: 0 for name, _ in model.named_parameters()}
    for params, _, own in twice:
        for name in own:
            held_by[name] += 1
        for name, p in params.items():
            assert (p - model.get_parameter(name)).abs().max() < 1e-10
    assert set(held_by.values()) == {1}
    names = {name: p.numel() for name, p in model.named_parameters()}
    experts = sum(count for name, count in names.items() if ".experts." in name)
    averages = expert_gradient_bytes(experts, sum(names.values()) - experts, dp, ep, 8)
    groups = [[counts for _, counts, _ in twice[d * ep : (d + 1) * ep]] for d in range(dp)]
    layers = sum(sum(map(sum, expert_layer_bytes(counts, 12, 8))) for counts in groups)
    sent = twice.trace.bytes_sent() - once.trace.bytes_sent()
    figure(f"ZeRO {stage}, data {dp}, expert {ep}: {sent} bytes, {averages + layers} predicted")
    assert sent == averages + layers


# ------------------------------------------------------------
# What the balance loss is for.


def busiest(seed, balance, steps=80, last=20):
    """Of a small GPT on text, one expert a token: times an even share that the busiest expert has in the end; the loss."""
    options = dict(seed=seed, experts=8, top_k=1, balance=balance, z=0.0)
    model = gpt(2, 16, 2, 256, 32, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = Samples(text(), 32, seed)
    losses = []
    counts = torch.zeros(8)
    for step in range(steps):
        x, y = samples(16 * step, 16)
        optimizer.zero_grad()
        loss = next_token_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step >= steps - last:
            losses.append(loss.item())
            counts += torch.tensor(model.layers[1].mlp.counts)
    return (counts.max() / counts.sum() * 8).item(), sum(losses) / last


@pytest.mark.full
def test_without_the_balance_loss_few_experts_have_most_tokens(figure):
    """By more than the spread of five seeds; the loss of the text is no worse for it."""
    without, balanced = ([busiest(seed, balance) for seed in range(5)] for balance in (0.0, 0.05))
    least, most = min(share for share, _ in without), max(share for share, _ in balanced)
    figure(
        f"the busiest expert has {least:.1f} even shares and more without, {most:.1f} and less with"
    )
    assert least > 1.5 * most
    worse = [b - a for (_, a), (_, b) in zip(without, balanced, strict=True)]
    assert sum(worse) / 5 < 0.02

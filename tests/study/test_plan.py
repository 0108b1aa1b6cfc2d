"""The plan: what fits and is fastest, why others lose, what it costs; and how it is printed."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from statistics import mean

import pytest

from minidist.comm import World
from minidist.comm.cluster import Cluster, Level
from minidist.parallel.schedules import interleaved, one_f_one_b
from minidist.parallel.simulate import simulate
from minidist.study.catalog import MODELS, cluster_of
from minidist.study.plan import (
    Search,
    brief,
    doubt,
    errors_alike,
    grids,
    main,
    named,
    picture,
    plan,
    rivals_table,
    text,
)
from minidist.study.predict import Grid, Transformer, flops, parameters, per_rank
from minidist.study.step import CORE, EAGER, FSDP, FUSED, MEGATRON, Machine, Planner
from tests.size import FULL
from tests.study.plan_case import hybrid, program

SMALL = Transformer(8, 2048, 16, 32000, 1024)


@pytest.fixture(scope="module")
def large():
    return plan("gpt3-175b", "h100:128x8", 1536)


def test_175_billion_on_1024(large):
    best = large.best
    assert best.grid.ranks == large.cluster.size == 1024
    assert best.grid.data * best.grid.micro_batch * best.grid.micro_batches == 1536
    assert len(large.estimates) > 800 and not best.over and best.total <= best.capacity
    assert all(one.over or one.step.total >= large.seconds for one in large.estimates)
    assert any(one.over for one in large.estimates)
    assert 0.3 < large.mfu < 0.6
    assert large.mfu == pytest.approx(
        flops(MODELS["gpt3-175b"], 1536) / (large.seconds * 1024 * 989e12)
    )


def test_cost(large):
    cost = large.cost(300 * 10**9, 2.5)
    assert cost.steps == pytest.approx(300e9 / (1536 * 2048))
    assert cost.gpu_hours == pytest.approx(cost.steps * large.seconds * 1024 / 3600)
    assert cost.money == 2.5 * cost.gpu_hours and cost.days == pytest.approx(
        cost.gpu_hours / 1024 / 24
    )
    for tokens, rate in (
        (0, 2),
        (-5, 2),
        (float("nan"), 2),
        (float("inf"), 2),
        (1e9, -1),
        (1e9, float("nan")),
    ):
        with pytest.raises(ValueError, match="at least 1 token at a rate of at least 0, not"):
            large.cost(tokens, rate)


@pytest.mark.parametrize(
    "word", ["h100:1x1", "v100:1x1", "h100:1x3", "v100:1x7", "a100:3x6", "h200:2x5"]
)
def test_odd_numbers_of_devices(word):
    cluster = cluster_of(word)
    found = plan("gpt2-124m", cluster, 6 * cluster.size)
    ways = {one.grid.tensor for one in found.estimates}
    # of 12 heads and 50,257 words
    assert ways == {t for t in (1, 2, 3, 6) if cluster.devices % t == 0}
    assert all(0 < one.step.total < float("inf") for one in found.estimates)


def test_rivals_say_why(large):
    found = {(r.decision, r.value): r for r in large.rivals}
    assert {d for d, _ in found} == {
        "tensor",
        "pipeline",
        "micro_batch",
        "interleave",
        "zero",
        "sharding",
        "recompute",
    }
    for (decision, value), rival in found.items():
        assert getattr(rival.estimate.grid, decision) == value != getattr(large.best.grid, decision)
        assert rival.why.startswith("too large by" if rival.estimate.over else "slower by")
        fit = [
            one for one in large.estimates if getattr(one.grid, decision) == value and not one.over
        ]
        assert not fit or rival.estimate.step.total == min(one.step.total for one in fit)
    stages = [value for decision, value in found if decision == "pipeline"]
    assert stages == sorted(stages) and 1 in stages


def test_too_large_by_how_much():
    found = plan(MODELS["gpt3-13b"], "a100:1x4", 64)
    why = {(r.decision, r.value): r.why for r in found.rivals}
    assert any(word.startswith("too large by") and "GB: " in word for word in why.values())
    with pytest.raises(ValueError, match=r"nothing fits: .* GB too large for 85"):
        plan("gpt3-175b", "a100:1", 8)


def test_printed(large, capsys):
    words = text(large, 300 * 10**9, 2.0)
    for part in (
        "activations of layers",
        "bubble",
        "GPU-hours",
        "money, at 2 a GPU-hour",
        "MFU",
        "slower by",
    ):
        assert part in words
    assert len(rivals_table(large).rows) == len(large.rivals)
    assert "bubble" in picture(large).text
    assert main(["--model", "gpt2-124m", "--cluster", "h100:1x2", "--batch", "8"]) == 0
    assert "step" in capsys.readouterr().out
    assert main(["--model", "gpt5"]) == 2 and "'gpt5'" in capsys.readouterr().err


NUMBERS = "--layers 4 --hidden 256 --heads 8 --kv-heads 4 --ffn 512 --vocab 1000 --seq 128 --gated --untied"


def test_values_for_a_program(capsys, tmp_path):
    """Of a model by its numbers: what the text says, with a price only where one is given."""
    at = ["--cluster", "h100:1x2", "--batch", "8", "--tokens", "1e9"]
    file = tmp_path / "step.png"
    assert main([*NUMBERS.split(), *at, "--json", "--rate", "3", "--picture", str(file)]) == 0
    said = json.loads(capsys.readouterr().out)
    model = Transformer(4, 256, 8, 1000, 128, tied=False, ffn=512, gated=True, kv_heads=4)
    found = plan(model, "h100:1x2", 8)
    assert Transformer(**said["model"]) == model and Grid(**said["grid"]) == found.best.grid
    assert said["seconds"]["step"] == found.seconds and said["ranks"] == 2
    assert sum(said["bytes"].values()) == found.best.total
    assert said["money"] == pytest.approx(3 * said["gpu_hours"]) and said["tokens"] == 1e9
    assert len(said["rivals"]) == len(found.rivals) and said["rivals"][0]["loses"]
    assert file.read_bytes().startswith(b"\x89PNG")
    assert main([*NUMBERS.split(), *at]) == 0 and "money" not in capsys.readouterr().out
    assert main(["--layers", "4", *at]) == 2 and "missing" in capsys.readouterr().err
    assert main([*NUMBERS.split(), *at, "--attention", "none"]) == 2


def test_how_far_it_was_off_is_said(large):
    """By the runs of the plan's chip and kind; of a chip on which nobody has published one, that nobody has."""
    times, memory = errors_alike(large)
    assert times.name == "megatron_h100" and len(times.time) == 4 and memory.name == "bloom"
    assert f"off by {mean(map(abs, times.time)):.1%} in the mean" in doubt(large)
    sharded = plan(replace(MODELS["gpt3-6.7b"], context=8192), "a100:4", 128)
    assert sharded.best.grid.tensor == sharded.best.grid.pipeline == 1
    assert errors_alike(sharded)[0].name == "llmfoundry_a100"
    assert "no run on B200 SXM was published" in doubt(plan("gpt2-124m", "b200:1", 8))


@pytest.mark.full
def test_the_command_takes_less_than_five_seconds(figure):
    words = ["--model", "gpt3-175b", "--cluster", "h100:128x8", "--batch", "1536"]
    start = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "minidist.study.plan", *words], check=True, stdout=subprocess.DEVNULL
    )
    took = time.monotonic() - start
    figure(f"175 B on 1,024 H100s, the whole command: {took:.1f} s")
    assert took < 5


def test_one_device():
    found = plan(SMALL, replace(Cluster.dgx_h100(1), devices=1), 4)
    assert found.best.grid.ranks == 1 and found.best.step.bubble == found.best.step.data == 0


def test_names():
    cluster = cluster_of("h100:3x4")
    assert cluster.size == 12 and cluster_of("a100:2").size == 16
    for word in ("h100", "x100:2", "h100:0x8", "h100:2x9", "h100:-1"):
        with pytest.raises(ValueError):
            cluster_of(word)


def test_plan_bad_input():
    with pytest.raises(ValueError, match="at least 1 sequence, not 0"):
        plan(SMALL, "h100:1", 0)
    with pytest.raises(ValueError, match="model 'gpt5' is none of 'gpt2-124m', "):
        plan("gpt5", "h100:1", 1)
    with pytest.raises(ValueError, match="has no device"):
        plan(SMALL, Cluster.uniform(4, 1e-6, 1e-9), 4)
    with pytest.raises(ValueError, match="of its data sheet is not known"):
        plan(SMALL, Cluster.laptop(), 4)


# ------------------------------------------------------------
# Seconds of a step, against a World that runs the same grid on meta tensors; and their parts by hand.


GPT = Transformer(4, 4096, 32, 8192, 1024, tied=False)
NODES = replace(Cluster.dgx_h100(2), devices=4)
FAST = dict(dropout=False, attention="fused")
LOW = dict(precision="all 16 bits", micro_batch=2, **FAST)
MASTERS = dict(precision="bf16", micro_batch=2, zero=1, **FAST)


def planner(kernels=EAGER, algorithm="ring", model=GPT, cluster=NODES):
    return Planner(model, cluster, kernels, Machine(cluster.device, kernels=kernels), algorithm)


@pytest.mark.parametrize(
    "grid",
    [
        Grid(1, 1, 1, micro_batches=2, recompute="full", **LOW),
        Grid(1, 2, 1, micro_batches=2, recompute="full", **LOW),
        Grid(1, 2, 1, micro_batches=2, **LOW),
        Grid(1, 1, 1, micro_batches=2, **LOW | dict(attention="explicit")),
        Grid(1, 1, 1, micro_batches=2, recompute="selective", **LOW | dict(attention="explicit")),
        Grid(1, 1, 3, micro_batches=3, **LOW),
        Grid(1, 1, 2, micro_batches=4, interleave=2, **LOW),
        Grid(1, 1, 2, micro_batches=2, interleave=2, **LOW),
        Grid(2, 1, 1, micro_batches=2, **LOW),
        Grid(2, 1, 1, micro_batches=2, **MASTERS),
        Grid(2, 2, 2, micro_batches=2, **LOW),
        Grid(1, 1, 1, micro_batches=2, context_ranks=2, **LOW),
        Grid(1, 2, 1, micro_batches=2, context_ranks=2, **LOW),
    ],
    ids=str,
)
def test_a_world_takes_as_long(grid):
    cluster = replace(NODES, devices=-(-grid.ranks // 2))
    model = replace(GPT, layers=max(2, grid.pipeline * grid.interleave))
    took = max(World(grid.ranks, cluster=cluster, device="meta").run(program, model, grid))
    kernels = replace(EAGER, overlap=grid.zero == 0 and grid.pipeline == 1)
    assert planner(kernels, model=model, cluster=cluster).estimate(
        grid
    ).step.total == pytest.approx(took, rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize(
    "grid",
    [
        Grid(1, 1, 1, **LOW),
        Grid(2, 1, 1, expert=2, **LOW),
        Grid(4, 1, 2, micro_batches=2, expert=4, **LOW),
        Grid(4, 1, 1, zero=1, expert=2, **LOW),
    ],
    ids=str,
)
def test_a_world_takes_as_long_with_experts(grid, figure):
    cluster = replace(NODES, devices=-(-grid.ranks // 2))
    model = replace(GPT, experts=8, top_k=2)
    results = World(grid.ranks, cluster=cluster, device="meta").run(program, model, grid)
    took = max(results)
    kernels = replace(EAGER, overlap=grid.pipeline == 1 and grid.zero == 0)
    held, memory = results.trace.memory[0].at_peak, per_rank(model, grid, 0)
    assert held["parameters"] == memory.parameters
    # owners have whole parameters, so that their parts are not even
    tolerance = 0.05 if grid.zero else 0
    assert held["optimizer states"] == pytest.approx(memory.optimizer_states, rel=tolerance)
    # in a pipeline some micro-batches are done at the peak, when gradients are averaged; with ZeRO all are
    if grid.pipeline == 1 and not grid.zero:
        assert held["activations"] == pytest.approx(memory.activations_of_layers, rel=0.1)
    predicted = planner(kernels, model=model, cluster=cluster).estimate(grid).step.total
    figure(
        f"{grid.data} data ranks, experts over {grid.expert}: {predicted / took:.3f} of a World's"
    )
    assert predicted == pytest.approx(took, rel=0.1)


def test_experts_are_shared_out_where_one_rank_has_no_room():
    """48 MLPs in every second layer: on more than one data rank they fit only where they are shared out, and tables say
    over how many ranks. With ZeRO 1 beside it that is the fastest; ZeRO 3, whose experts are whole, is too large."""
    model = Transformer(16, 4096, 32, 8192, 1024, experts=48, top_k=1)
    cluster = Cluster.dgx_h100(2)
    found = list(grids(Search(model, cluster, 16)))
    assert {g.expert for g in found} == {1, 2, 4, 8, 16} and all(
        g.data % g.expert == 0 for g in found
    )
    assert {g.zero for g in found if g.expert > 1} == {0, 1, 2}
    assert {g.replicas for g in found if g.expert > 1} == {1}
    best = plan(model, cluster, 16)
    e = best.best.grid.expert
    assert (
        e > 1
        and f"(experts over {e})" in named(best.best.grid)
        and f"e{e}·" in brief(best.best.grid)
    )
    assert best.best.grid.zero == 1
    assert all(e.over for e in best.estimates if e.grid.expert == 1 and e.grid.data > 1)
    assert any(rival.decision == "zero" and "too large" in rival.why for rival in best.rivals)
    dense = grids(Search(replace(model, experts=None), cluster, 16))
    assert {g.expert for g in dense} == {1}


@pytest.mark.parametrize("M", [2, 4])
def test_a_pipeline_whose_stages_are_sharded(M):
    """ZeRO 3 gathers a stage twice for every micro-batch."""
    cluster = replace(NODES, devices=2)
    grid = Grid(2, 1, 2, 3, micro_batches=M, micro_batch=2, precision="bf16")
    took = max(World(4, cluster=cluster, device="meta").run(program, GPT, grid))
    step = planner(cluster=cluster).estimate(grid).step
    assert step.total == pytest.approx(took, rel=0.05) and step.data > 0.1 * took


def between_nodes(devices, factor, share=1):
    """NODES with so many devices, whose links between nodes are slower by `factor`, of `share` ranks together."""
    links = {
        name: replace(level, beta=factor * level.beta, share=share)
        if name in ("nic", "tor", "spine")
        else level
        for name, level in NODES.links.items()
    }
    return replace(NODES, devices=devices, links=links)


@pytest.mark.parametrize(("v", "M", "share"), [(1, 4, 1), (1, 8, 2), (2, 8, 1)])
def test_every_edge_of_a_pipeline_counts(v, M, share):
    """Four stages on two nodes of two: the second edge is slow, and of the ranks with that card one alone sends."""
    cluster = between_nodes(2, 10, share)
    model = replace(GPT, layers=4 * v)
    grid = Grid(1, 1, 4, micro_batches=M, interleave=v, **LOW)
    took = max(World(4, cluster=cluster, device="meta").run(program, model, grid))
    said = planner(model=model, cluster=cluster)
    step = said.estimate(grid).step
    assert step.total == pytest.approx(took, rel=0.07)
    edges, wrap = said._edges(grid)
    assert edges[0] == edges[2] < edges[1] / 10 and wrap == edges[1]
    first = said.network.send(0, 1, 1, 2 * GPT.context * GPT.hidden * 2)
    assert first == edges[0] and step.total - 2 * (edges[1] - first) > step.total * 0.8 > first


def test_a_stage_of_many_ranks_shares_its_cards():
    cluster = between_nodes(4, 1, 4)
    network = planner(cluster=cluster).network
    alone, both = network.send(3, 4, 1, 10**9), network.send(2, 4, 2, 10**9)
    assert both == pytest.approx(2 * alone, rel=1e-3)
    assert network.send(0, 4, 4, 10**9) == pytest.approx(4 * alone, rel=1e-3)
    assert network.send(0, 1, 1, 10**9) < alone / 5


@pytest.mark.parametrize(("zero", "M"), [*([(1, 2), (2, 2)] if FULL else []), (3, 1), (3, 2)])
def test_hybrid_sharding_sends_between_nodes_what_a_world_does(zero, M):
    """Shards within a node: of a slower network between nodes a World and the planner say the same, to a thousandth;
    to a hundredth where whole parameters have owners, as their shards are not even."""
    model = replace(GPT, layers=2)
    grid = Grid(4, 1, 1, zero, 4, M, replicas=2, precision="all 16 bits")
    clusters = [between_nodes(2, factor) for factor in (4, 8)]
    took = [max(World(4, cluster=c, device="meta").run(hybrid, model, grid)) for c in clusters]
    said = [planner(model=model, cluster=c).estimate(grid).step.total for c in clusters]
    assert said[1] - said[0] == pytest.approx(took[1] - took[0], rel=1e-3 if zero == 3 else 1e-2)
    assert said[1] == pytest.approx(took[1], rel=0.15)
    over_all = replace(grid, replicas=1)
    all_ranks = [planner(model=model, cluster=c).estimate(over_all) for c in clusters]
    assert all_ranks[1].step.data > 1.2 * said[1]
    whole = planner(model=model, cluster=clusters[0]).estimate(grid).memory
    assert whole.optimizer_states == pytest.approx(
        2 * all_ranks[0].memory.optimizer_states, rel=1e-6
    )


def test_slower_links_show():
    """The agreement is no accident of what is large: the links decide, too."""
    clusters = [Cluster.uniform(2, 1e-5, beta, NODES.device) for beta in (1 / 50e9, 1.5 / 50e9)]
    said = [planner(cluster=one).estimate(Grid(2, micro_batches=2, **LOW)).step for one in clusters]
    assert (
        said[1].data == pytest.approx(1.5 * said[0].data, rel=0.05)
        and said[1].total > 1.15 * said[0].total
    )


@pytest.mark.parametrize(("S", "v", "M"), [(2, 1, 4), (4, 1, 8), (4, 2, 8), (4, 4, 8)])
def test_the_bubble_is_the_schedules(S, v, M):
    """Stages all alike, no messages: what a simulation of the schedule's lists waits."""
    model = replace(GPT, layers=16, vocab=1, positions=False)
    grid = Grid(1, 1, S, micro_batches=M, interleave=v, micro_batch=2, **FAST)
    step = planner(model=model).estimate(grid).step
    order = [interleaved(s, S, M, v) if v > 1 else one_f_one_b(s, S, M) for s in range(S)]
    one = step.compute / M / v
    assert step.compute + step.bubble == pytest.approx(
        simulate(order, one / 3, backward=2 * one / 3).time, rel=0.02
    )


def test_what_each_choice_costs():
    """Recomputation repeats forward, ZeRO 1 gathers what data parallelism reduces, tensor parallelism halves."""
    bare = planner(replace(FUSED, overlap=False), model=replace(GPT, layers=8))
    at = lambda **words: bare.estimate(Grid(micro_batch=1, **FAST, **words)).step
    whole, again = at(micro_batches=4), at(micro_batches=4, recompute="full")
    assert again.compute == whole.compute and 0.25 < again.recomputation / whole.compute < 0.4
    assert whole.bubble == whole.tensor == whole.pipeline == whole.data == whole.recomputation == 0
    split = at(micro_batches=4, tensor=2, sequence=True)
    assert 0.5 < split.compute / whole.compute < 0.6 and split.tensor > 0
    assert sum(split.parts.values()) == split.total
    assert at(data=2, zero=2, micro_batches=8).data > at(data=2, zero=1, micro_batches=8).data
    assert at(data=2, zero=1).optimizer < at(data=2).optimizer
    assert (
        at(pipeline=2, micro_batches=8).bubble
        > at(pipeline=2, micro_batches=8, interleave=2).bubble
        > 0
    )


def test_gradients_hide_behind_the_last_backward():
    grid = Grid(data=2, micro_batch=4, micro_batches=1, **FAST)
    shown, hidden = (
        planner(replace(FUSED, overlap=o)).estimate(grid).step.data for o in (False, True)
    )
    assert 0 <= hidden < shown


def test_fully_sharded_messages_hide_behind_what_computes():
    """By hand: a block is gathered beside the one before it; what is hidden slows by its bytes, the rest is waited for."""
    kernels = replace(FSDP, interference=0.3)
    for beta, hides in ((1 / 400e9, True), (1 / 4e9, False)):
        cluster = Cluster("a node", NODES.device, {"nvlink": Level(0.0, beta)}, devices=8)
        ours = planner(kernels, "ring", cluster=cluster)
        grid = Grid(8, zero=3, micro_batch=4, micro_batches=3, recompute="full", precision="bf16")
        step = ours.estimate(grid).step
        # seven of eight parts are sent; parameters and gradients in 16 bits
        message = 7 / 8 * 2 * parameters(GPT) * beta
        forward = step.compute / 3 / 3
        backward = (step.compute + step.recomputation) / 3 - forward
        # four layers, the embedding and the head: of six blocks one is not hidden
        there = min(1.0, 5 / 6 * forward / message)
        back = min(1.0, 5 / 6 * backward / (2 * message))
        shown = message * ((1 - there) + 0.3 * there)
        shown += 2 * message * ((1 - back) + 0.3 * back)
        assert step.data == pytest.approx(3 * shown, rel=1e-6)
        assert (there == back == 1.0) == hides


def test_the_first_forward_hides_parameters_of_zero_1():
    at = lambda **words: (
        planner(replace(CORE, interference=0.0, overlap=False, **words))
        .estimate(Grid(8, zero=1, micro_batch=32, precision="bf16"))
        .step.data
    )
    node = planner(CORE).network
    gathered = node.verb("all_gather", 8, 1, 2 * parameters(GPT))
    assert at(ahead=False) - at(ahead=True) == pytest.approx(gathered, rel=1e-6)


def test_messages_of_tensor_parallelism_go_beside_products():
    """All but a part of each, where the products last long enough; and they wait for what does not."""
    grid = Grid(1, 4, micro_batch=8, sequence=True)
    step = lambda model, **words: planner(replace(CORE, **words), model=model).estimate(grid).step
    wide = replace(GPT, hidden=16384, heads=128, layers=8)
    serial = step(wide, tensor_overlap=False)
    hidden = step(wide, interference=0.0)
    assert hidden.compute == serial.compute
    assert hidden.tensor == pytest.approx(serial.tensor / 4)
    slowed = step(wide, interference=0.2)
    whole = serial.tensor - hidden.tensor
    assert slowed.tensor - hidden.tensor == pytest.approx(0.2 * whole, rel=0.06)
    narrow = step(replace(GPT, hidden=512, heads=8), interference=0.0)
    both = step(replace(GPT, hidden=512, heads=8), tensor_overlap=False)
    assert 0.5 < narrow.tensor / both.tensor < 1


def test_kernels_of_their_time():
    device = NODES.device
    sizes = 4096, 4096, 4096
    launch = device.launch
    today = Machine(device).product(*sizes) - launch
    assert Machine(device, kernels=MEGATRON).product(*sizes) - launch == pytest.approx(
        today / MEGATRON.maturity
    )
    native = Machine(device).attention(32, 4096, 128) - launch
    other = Machine(device, kernels=FSDP).attention(32, 4096, 128) - launch
    assert other == pytest.approx(native / device.portable)


def test_the_search_misses_no_grid():
    """Every combination that holds together, written out once more."""
    model = replace(GPT, layers=12, heads=4)
    cluster = replace(Cluster.dgx_h100(4), devices=2)
    batch = 16
    wanted = set()
    sizes = product((1, 2, 4, 8), (1, 2), (1, 2, 4, 8), (1, 2, 4, 8, 16), range(1, 13), range(4))
    for data, tensor, pipeline, b, v, zero in sizes:
        M = batch // (data * b)
        together = data * tensor * pipeline == 8 and data * b * M == batch
        even = v == 1 or (pipeline > 1 and M % pipeline == 0 and 12 % (pipeline * v) == 0)
        if not (together and even) or (data == 1 and zero):
            continue
        shards = 2 // tensor
        copies = {1}
        if zero and shards > 1 and data > shards:
            copies.add(data // shards)
        for replicas in copies:
            wanted.add((data, tensor, pipeline, b, M, v, zero, replicas))
    found = list(grids(Search(model, cluster, batch)))
    assert len(set(found)) == len(found)
    assert {
        (
            g.data,
            g.tensor,
            g.pipeline,
            g.micro_batch,
            g.micro_batches,
            g.interleave,
            g.zero,
            g.replicas,
        )
        for g in found
    } == wanted
    assert {g.interleave for g in found} == {1, 2, 3, 6}


def test_context_ranks_are_searched_when_asked():
    model = replace(GPT, layers=12, heads=4)
    cluster = replace(Cluster.dgx_h100(4), devices=2)
    alone = set(grids(Search(model, cluster, 16)))
    found = [*grids(Search(model, cluster, 16, context_ranks=4))]
    assert len(set(found)) == len(found) and {g for g in found if g.context_ranks == 1} == alone
    assert {g.context_ranks for g in found} == {1, 2, 4}
    assert all(g.ranks == 8 and g.data * g.micro_batches * g.micro_batch == 16 for g in found)
    # as many tokens as ranks' chunks, and attention that keeps no scores
    odd = Search(replace(model, context=1022), cluster, 16, context_ranks=4)
    assert {g.context_ranks for g in grids(odd)} == {1}
    explicit = Search(model, cluster, 16, "explicit", context_ranks=4)
    assert {g.context_ranks for g in grids(explicit)} == {1}
    with pytest.raises(ValueError, match=r"2 context ranks keep no scores: .* not explicit"):
        Grid(context_ranks=2)
    with pytest.raises(ValueError, match="at least 1 context rank, not 0"):
        plan(SMALL, cluster, 4, context_ranks=0)


def test_long_contexts_are_planned(figure):
    """128 Ki tokens: ranks that share them keep a part of each activation, so that nothing is computed again."""
    most = [plan("llama-7b", "h100:8x8", 8, context=1 << 17, context_ranks=c) for c in (1, 8)]
    assert "context" in named(most[1].best.grid) and "context" not in named(most[0].best.grid)
    assert most[1].seconds < most[0].seconds
    figure(
        " against ".join(
            f"{p.seconds:.2f} s with {p.best.grid.context_ranks} context ranks" for p in most
        )
    )


def test_memory_of_context_ranks():
    """As of a sequence that is shorter, with ZeRO's shards over all of them."""
    whole = Grid(data=2, zero=2, context_ranks=4, **FAST)
    model = replace(GPT, context=8192)
    short = per_rank(replace(model, context=2048), Grid(data=8, zero=2, **FAST))
    own = per_rank(model, whole)
    positions = model.hidden * (8192 - 2048)
    assert own.activations_of_layers == short.activations_of_layers
    assert own.parameters - short.parameters == 2 * positions
    assert whole.ranks == 8 and whole.shards == 8


@pytest.mark.parametrize(("data", "zero", "replicas"), [(4, 3, 3), (4, 0, 2), (4, 2, 0)])
def test_replicas_that_cannot_be(data, zero, replicas):
    with pytest.raises(ValueError, match=f"{replicas} replicas .* {data} data-parallel .* {zero}"):
        Grid(data, zero=zero, replicas=replicas)


def test_step_bad_input():
    with pytest.raises(ValueError, match="32 heads do not split over 3"):
        planner().estimate(Grid(tensor=3))


def test_products_in_eight_bits(figure):
    """Where asked for: faster, with 16 bits as the rival; but of small matrices rounding costs more than products gain.
    Where no device has them, refused."""
    model = "gpt3-6.7b"
    wide, narrow = (plan(model, "h100:1x8", 64, fp8=fp8) for fp8 in (False, True))
    assert plan("gpt2-124m", "h100:1x8", 64, fp8=True).best.grid.bits == 16
    assert narrow.best.grid.bits == 8 and narrow.seconds < wide.seconds
    assert {grid.bits for grid in (e.grid for e in wide.estimates)} == {16}
    [rival] = [rival for rival in narrow.rivals if rival.decision == "bits"]
    assert rival.value == 16 and rival.estimate.step.total == wide.seconds
    assert errors_alike(narrow)[0].name == "llmfoundry_fp8"
    assert "products in 8 bits:" in text(narrow, 1e9)
    with pytest.raises(ValueError, match=r"A100 SXM has a peak for .* not for float8_e4m3fn"):
        plan(model, "a100:1x8", 64, fp8=True)
    figure(
        f"{model}, 8 H100, 64 sequences: {narrow.seconds:.2f} s in 8 bits, {wide.seconds:.2f} s in 16"
    )


def test_no_part_of_a_step_is_negative(large):
    """Of stages that are uneven, too, where the slowest is not the last: what a step waits for is never less than 0."""
    uneven = [e for e in large.estimates if e.grid.pipeline == 64]
    assert uneven and all(seconds >= 0 for e in large.estimates for seconds in e.step)

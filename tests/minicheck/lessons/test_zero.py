"""Lesson 13: other right ways pass, formulas agree with the library's calculators, and what only looks right fails.

The usual mistakes are in course/13_zero/bugs.py, which tests/bank examines.
"""

import sys
from functools import partial

import cloudpickle
import pytest
import torch
from torch import nn

import minicheck as check
from minicheck.lessons import zero
from minicheck.lessons.zero import (
    EPSILON,
    Adam,
    Clip,
    Sharded,
    ShardedLinear,
    ToOwners,
    predict_zero,
)
from minicheck.oracles import zero as oracle
from minidist.collectives import all_gather, all_reduce_, broadcast_, reduce_, reduce_scatter
from minidist.comm import World
from minidist.parallel.zero import best_fit
from minidist.split import uneven
from minidist.study.predict import largest, states
from minidist.train.norm import clip_
from tests.minicheck.examined import assert_odd_answers_are_told, rng, said

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def test_another_choice_of_owners(capsys):
    def backwards(nbytes, n, placed):
        """Of ranks equally full the last."""
        owner = {i: rank for i, rank in enumerate(placed) if rank is not None}
        loads = [sum(nbytes[i] for i in owner if owner[i] == r) for r in range(n)]
        new = [i for i in range(len(nbytes)) if i not in owner]
        for i in sorted(new, key=lambda i: nbytes[i], reverse=True):
            owner[i] = min(range(n), key=lambda r: (loads[r], -r))
            loads[owner[i]] += nbytes[i]
        return tuple(owner[i] for i in range(len(nbytes)))

    check.owners(backwards)
    assert "owners: right." in capsys.readouterr().out


def test_a_step_without_a_flat_buffer(capsys):
    def one_by_one(comm, params, owner, optimizer):
        mine = [p for p, o in zip(params, owner, strict=True) if o == comm.rank]
        inner = optimizer(mine) if mine else None

        def step():
            for p, root in zip(params, owner, strict=True):
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                reduce_(comm, p.grad, root, algorithm="tree")
                p.grad = p.grad / comm.size if comm.rank == root else None
            if inner:
                inner.step()
            for p, root in zip(params, owner, strict=True):
                broadcast_(comm, p.data, root, algorithm="tree")

        return step

    check.sharded(one_by_one)
    assert "sharded: right." in capsys.readouterr().out


def test_other_hooks(capsys):
    def by_reduce_scatter(comm, params, owner):
        """The gradient that comes is replaced by the mean, which autograd adds itself; everything to the owner by sizes."""

        def average(root, gradient):
            sizes = [gradient.numel() * (r == root) for r in range(comm.size)]
            got = reduce_scatter(comm, gradient.flatten(), sizes=sizes)
            return got.view_as(gradient) / comm.size if comm.rank == root else None

        def drop(root, p):
            p.grad = p.grad if comm.rank == root else None

        for p, root in zip(params, owner, strict=True):
            p.register_hook(partial(average, root))
            p.register_post_accumulate_grad_hook(partial(drop, root))

    check.to_owners(by_reduce_scatter)
    assert "to_owners: right." in capsys.readouterr().out


def test_a_layer_by_saved_tensor_hooks(capsys):
    def by_hooks(comm, replicas, x, shard, shape):
        """Autograd keeps the shard in place of the weight, and gathers when it asks for it."""
        sizes = uneven(shape.numel(), comm.size)
        weight = Whole.apply(shard, comm, replicas, shape, sizes)
        place = weight.untyped_storage().data_ptr()
        fill = lambda: all_gather(comm, shard.detach(), sizes=sizes).view(shape)
        pack = lambda kept: None if kept.untyped_storage().data_ptr() == place else kept
        with torch.autograd.graph.saved_tensors_hooks(
            pack, lambda kept: fill().T if kept is None else kept
        ):
            return x @ weight.T

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx, shard, comm, replicas, shape, sizes):
            ctx.comm = comm
            ctx.replicas = replicas
            ctx.sizes = sizes
            return all_gather(comm, shard, sizes=sizes).view(shape)

        @staticmethod
        def backward(ctx, dw):
            part = reduce_scatter(ctx.comm, dw.flatten(), sizes=ctx.sizes) / ctx.comm.size
            return all_reduce_(ctx.replicas, part, "mean"), None, None, None, None

    check.sharded_linear(by_hooks)
    assert "sharded_linear: right." in capsys.readouterr().out


def test_another_clip(capsys):
    def gathered(comm, grads, limit):
        own = torch.tensor([sum(float(g.square().sum()) for g in grads)], dtype=torch.float64)
        norm = float(all_gather(comm, own).sum()) ** 0.5
        if norm > limit:
            for g in grads:
                g *= limit / (norm + 1e-6)
        return norm

    check.clip(gathered)
    assert "clip: right." in capsys.readouterr().out


def test_the_rule_is_the_library_s():
    some = rng()
    for n in (1, 2, 3, 4, 7):
        sizes = torch.randint(1, 1000, (30,), generator=some).tolist()
        owner = best_fit(sizes, [0] * n)
        assert max(oracle.loads(sizes, owner, n)) == oracle.fullest(sizes, n)
        placed = [r % n if r % 3 == 0 else None for r in range(30)]
        loads = oracle.loads(sizes, [-1 if rank is None else rank for rank in placed], n)
        new = [size for size, rank in zip(sizes, placed, strict=True) if rank is None]
        for size, rank in zip(new, best_fit(new, loads), strict=True):
            loads[rank] += size
        assert max(loads) == oracle.fullest(sizes, n, placed)


def test_the_optimizer_is_torch_s():
    values = [torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    ours, theirs = ([nn.Parameter(v.clone()) for v in values] for _ in range(2))
    optimizers = Adam(ours), torch.optim.Adam(theirs, lr=0.05, eps=EPSILON)
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert all(
        torch.allclose(p, q, rtol=1e-12, atol=1e-14) for p, q in zip(ours, theirs, strict=True)
    )
    assert optimizers[0].nbytes == 2 * 8 * (12 + 5)
    with pytest.raises(ValueError):
        Adam([])


def test_predictions_are_the_calculator_s():
    psi, n = 13 * 10**9, 16
    values, slips = predict_zero(psi, n, 100 * 10**9, 32 * 10**9)
    for stage in (1, 2, 3):
        assert values[f"stage_{stage}"] == states(psi, zero=stage, data=n).total
    gpus = int(values["gpus"])
    assert (
        largest(32 * 10**9, zero=3, data=gpus)
        >= 100 * 10**9
        > largest(32 * 10**9, zero=3, data=gpus - 1)
    )
    assert slips.keys() == values.keys()
    assert all(
        abs(wrong - values[name]) > 0.01 * values[name]
        for name, looks in slips.items()
        for wrong in looks
    )


def test_memory_tells_what_numbers_cannot():
    def shards_nothing(comm, params, owner, optimizer):
        inner = optimizer(params)

        def step():
            for p in params:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                all_reduce_(comm, p.grad, "mean")
            inner.step()

        return step

    def never_freed(comm, params, owner):
        before = {}
        for p, root in zip(params, owner, strict=True):
            p.register_hook(partial(set_aside, before, p))
            p.register_post_accumulate_grad_hook(partial(keep, comm, root, before, []))

    def set_aside(before, p, gradient):
        before[p] = p.grad
        p.grad = None

    def keep(comm, root, before, kept, p):
        kept.append(p.grad)
        reduce_(comm, p.grad, root)
        earlier = before.pop(p)
        mean = p.grad.div_(comm.size) if earlier is None else p.grad / comm.size + earlier
        p.grad = mean if comm.rank == root else None

    assert "bytes of optimizer states" in said(Sharded(), shards_nothing, Sharded.cases[0])
    assert "bytes of them" in said(ToOwners(), never_freed, ToOwners.cases[0])


def test_an_order_of_one_s_own_shows():
    for seed in range(20):
        drawn = [grads for grads, _ in Clip().draw(Clip.cases[0], rng(seed))]
        squares = [sum(float(g.square().sum()) for g in some) for some in drawn]
        assert len({(squares[r] + squares[r - 2] + squares[r - 1]) ** 0.5 for r in range(3)}) > 1


def test_the_library_s_norm_passes():
    assert all(
        said(Clip(), lambda comm, grads, limit: clip_(comm, grads, limit), case) == ""
        for case in Clip.cases
    )


def test_a_layer_in_a_world_without_messages_is_seen():
    def alone(shards, replicas, x, shard, shape):
        return x @ shard.new_zeros(shape).T

    assert "should be x·Wᵀ" in said(ShardedLinear(), alone, ShardedLinear.cases[0])
    assert World(1).run(lambda comm: comm.size) == [1]


def test_odd_answers_are_told():
    assert_odd_answers_are_told(zero)

"""The formulas of stages 1 and 2: by hand, against the calculator's, and where ranks own unequal parts."""

import pytest
import torch

from minidist.comm import World
from minidist.comm.cluster import H100, Cluster
from minidist.models import mlp
from minidist.parallel.zero import ShardedOptimizer, kept
from minidist.study.predict import states

HALF, FULL = (2, 4), (4, 4)


@pytest.mark.parametrize(
    ("stage", "sizes", "each", "shared"),
    [(1, HALF, 4, 12), (2, HALF, 2, 14), (1, FULL, 8, 8), (2, FULL, 4, 12)],
)
def test_by_hand(stage, sizes, each, shared):
    """4Ψ + 12Ψ/n and 2Ψ + 14Ψ/n; without masters 8Ψ + 8Ψ/n and 4Ψ + 12Ψ/n."""
    for n in (1, 2, 3, 4):
        assert (
            sum(kept(1200, 1200 // n, stage, *sizes).values()) == each * 1200 + shared * 1200 // n
        )


@pytest.mark.parametrize("n", [1, 3, 64])
def test_the_calculator_agrees(n):
    for stage in (1, 2):
        for precision, sizes in (("fp16", HALF), ("fp32", FULL)):
            said = states(192_000, "adam", precision, zero=stage, data=n)
            assert kept(192_000, 192_000 // n, stage, *sizes) == said.bytes


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("moments", [0, 1])
def test_where_ranks_own_unequal_parts(stage, moments):
    """Counted when the second backward has ended: no rank has a third."""

    def program(comm):
        model = mlp([7, 5, 3, 2], dtype=torch.float16, device="meta")
        sizes, x = (
            [p.numel() for p in model.parameters()],
            torch.empty(4, 7, dtype=torch.float16, device="meta"),
        )
        optimizer = ShardedOptimizer(
            model.parameters(),
            torch.optim.SGD,
            comm,
            stage,
            torch.float32,
            lr=0.1,
            momentum=0.9 * moments,
        )
        for _ in range(2):
            optimizer.zero_grad()
            model(x).sum().backward()
            end = comm.now()
            x.neg()  # so that the step begins later
            optimizer.step()
        return (
            end,
            sum(sizes),
            [sum(s for s, o in zip(sizes, optimizer.owners.values()) if o == r) for r in range(3)],
        )

    run = World(3, device="meta", cluster=Cluster.uniform(3, 5e-6, 1 / 50e9, H100)).run(program)
    assert run[0][1:] == (66, [35, 15, 16])
    for rank, (end, params, owned) in enumerate(run):
        live = run.trace.memory[rank].at(end)
        want = kept(params, owned[rank], stage, moments=moments)
        assert {name: live[name] for name in want} == want


def test_another_stage_is_refused():
    with pytest.raises(ValueError, match="stages 1 and 2 of ZeRO, not 3"):
        kept(8, 4, 3)

"""Attention over tokens on many ranks: ours beside the ring of PyTorch's context parallelism over gloo.

    python -m benchmarks.context [--quick] [--only NAME …]

PyTorch 2.13's own `context_parallel` does not run on a CPU: its dispatcher has no rule for the operator there
("_scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered"), and the plain
one mixes tensors and DTensors. So its ring is called below that, with the CPU's operators: `_templated_ring_attention`,
and its backward. Both rings have the tokens in zigzag order and pass as many blocks on.

Causal, forward and backward. Ratios and how they are measured: as in `benchmarks.tensor`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.data_parallel import times_of
from benchmarks.options import options
from benchmarks.tensor import Step, measure
from minidist.comm import Comm, TorchComm
from minidist.parallel.context import (
    gathered_attention,
    heads_attention,
    own_tokens,
    ring_attention,
)

CASES = {"short": 512, "long": 2048}  # tokens of the sample
HEADS, SIZE = 12, 64  # as GPT-2 small


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def inputs(tokens: int) -> list[Tensor]:
    """q, k, v and the gradient of the result, of the whole sample."""
    random = torch.Generator().manual_seed(0)
    return list(torch.randn(4, 1, HEADS, tokens, SIZE, generator=random))


def checked(step: Step, comm: Comm, order: str, tokens: int) -> Step:
    """A step that gives the result and three gradients, held against the serial one."""
    *leaves, grad = inputs(tokens)
    leaves = [x.requires_grad_() for x in leaves]
    out = fused(*leaves)
    expected = [out, *torch.autograd.grad(out, leaves, grad)]
    for found, whole in zip(step(), expected, strict=True):
        own = own_tokens(whole, comm, order, 2).detach()
        torch.testing.assert_close(found, own, rtol=1e-3, atol=1e-4)
    return step


def ours(attention: Callable, comm: Comm, order: str, tokens: int) -> Step:
    *whole, last = inputs(tokens)
    leaves = [own_tokens(x, comm, order, 2).requires_grad_() for x in whole]
    grad = own_tokens(last, comm, order, 2)

    def step() -> list[Tensor]:
        out = attention(*leaves, comm)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad)]

    return checked(step, comm, order, tokens)


def theirs(comm: Comm, tokens: int) -> Step:
    """PyTorch's ring, on the default group."""
    import torch.distributed as dist
    from torch import ops  # a launch cannot send torch.ops
    from torch.distributed.tensor.experimental._context_parallel import _attention as cp

    cp.set_rotate_method("alltoall")
    q, k, v, grad = (own_tokens(x, comm, "zigzag", 2) for x in inputs(tokens))
    group, aten = dist.group.WORLD, ops.aten

    def step() -> list[Tensor]:
        forward = aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = cp._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)[:2]
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        kept = (q, k, v, out, lse, True)
        grads = cp._templated_ring_attention_backward(
            group, 2, backward, grad, "grad_out", *kept, dropout_p=0.0
        )
        return [out, *grads[:3]]

    return checked(step, comm, "zigzag", tokens)


def heads(q: Tensor, k: Tensor, v: Tensor, comm: Comm) -> Tensor:
    return heads_attention(q, k, v, comm, fused)


def program(
    comm: Comm, store: str, repeats: int, names: list[str]
) -> dict[tuple[str, str], list[float]]:
    """Seconds by case, way and repeat."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    gloo = TorchComm()
    ways: dict[tuple[str, str], Step] = {}
    for name in names:
        tokens = CASES[name]
        ways |= {
            (name, "PyTorch's ring, gloo"): theirs(comm, tokens),
            (name, "ours, shared memory"): ours(ring_attention, comm, "zigzag", tokens),
            (name, "ours, gloo"): ours(ring_attention, gloo, "zigzag", tokens),
            (name, "heads, shared memory"): ours(heads, comm, "contiguous", tokens),
            (name, "gathered, shared memory"): ours(gathered_attention, comm, "contiguous", tokens),
        }
    times = times_of(comm, ways, repeats)
    dist.barrier()
    dist.destroy_process_group()
    return times


if __name__ == "__main__":
    args = options(__doc__, repeats=(7, 30), only=CASES)
    measure([2, 4], args.repeats, args.only, program, "context")

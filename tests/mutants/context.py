"""Faults of context parallelism: who has which tokens, the ring, all-to-alls on heads, and the trainer."""

from tests.mutants.fault import Fault

FILE = "parallel/context.py"
SERIAL = "parallel/test_context.py::test_is_the_serial_attention"

FAULTS = {
    "context": [
        Fault(
            "the zigzag's late chunk is the next rank's",
            FILE,
            "chunks[2 * n - 1 - rank]",
            "chunks[2 * n - 1 - (rank + 1) % n]",
            "parallel/test_context.py::test_orders_as_drawn",
        ),
        Fault(
            "a sample is put together in the order of the ranks",
            FILE,
            "return rows[torch.cat(positions(T, comm.size, order, x.device)).argsort()].movedim(0, dim)",
            "return rows.movedim(0, dim)",
            f"{SERIAL}[3-ring-zigzag]",
        ),
        Fault(
            "every rank believes that its tokens are the first",
            FILE,
            "return positions(comm.size * tokens, comm.size, order, device)[comm.rank]",
            "return positions(comm.size * tokens, comm.size, order, device)[0]",
            "parallel/test_context.py::test_a_gpt",
        ),
        Fault(
            "learned positions are told, rotary ones are not",
            "models.py",
            "q, k = rotated(q, self.theta, places), rotated(k, self.theta, places)",
            "q, k = rotated(q, self.theta), rotated(k, self.theta)",
            "parallel/test_context.py::test_a_gpt",
        ),
        Fault(
            "the ring is one step short",
            FILE,
            "        block = torch.stack([k, v])  # (2, B, g, T_r, D)\n        for step in range(n):",
            "        block = torch.stack([k, v])  # (2, B, g, T_r, D)\n        for step in range(max(1, n - 1)):",
            f"{SERIAL}[2-ring] {SERIAL}[3-ring]",
        ),
        Fault(
            "the block of the rank after comes first",
            FILE,
            "right, left = (lane.rank + 1) % lane.size, (lane.rank - 1) % lane.size",
            "left, right = (lane.rank + 1) % lane.size, (lane.rank - 1) % lane.size",
            f"{SERIAL}[3-ring]",
        ),
        Fault(
            "a query on the diagonal sees the keys after its own",
            FILE,
            "pairs.append((slice(*row), slice(*column), causal and key == query))",
            "pairs.append((slice(*row), slice(*column), False))",
            f"{SERIAL}[2-ring]",
        ),
        Fault(
            "blocks of the future are computed",
            FILE,
            "if not empty and (key <= query or not causal):",
            "if not empty:",
            "parallel/test_context.py::test_each_query_sees_what_is_before_it",
        ),
        Fault(
            "results of blocks are added as if each softmax were whole",
            FILE,
            "out.mul_((lse - both).exp()[..., None]).add_(more * (lse_of_more - both).exp()[..., None])",
            "out.add_(more)",
            f"{SERIAL}[2-ring]",
        ),
        Fault(
            "an online softmax without the largest score taken off",
            FILE,
            "both = torch.logaddexp(lse, lse_of_more)",
            "both = (lse.exp() + lse_of_more.exp()).log()",
            "parallel/test_context.py::test_large_scores",
        ),
        Fault(
            "partial results are summed in 16 bits",
            FILE,
            "out = q.new_zeros(q.transpose(1, 2).shape, dtype=exact).transpose(1, 2)",
            "out = q.new_zeros(q.transpose(1, 2).shape).transpose(1, 2)",
            "parallel/test_context.py::test_partial_results_are_in_float32",
        ),
        Fault(
            "gradients of keys and values end one rank before home",
            FILE,
            "            home += passing.wait()",
            "            passing.wait()",
            f"{SERIAL}[2-ring]",
        ),
        Fault(
            "gradients of a block do not wait for those of the ranks before",
            FILE,
            "                    added += passing.wait()",
            "                    passing.wait()",
            f"{SERIAL}[3-ring]",
        ),
        Fault(
            "gradients travel in 16 bits",
            FILE,
            "torch.zeros_like(block, dtype=lse.dtype)",
            "torch.zeros_like(block)",
            "parallel/test_context.py::test_bytes",
        ),
        Fault(
            "the exchange is waited for before the block is computed",
            FILE,
            "    return comm.stream(pass_on, x, sum(end - first for first, end in before))",
            "    work = comm.stream(pass_on, x, sum(end - first for first, end in before))\n"
            "    work.wait()\n    return work",
            "parallel/test_context.py::test_exchange_beside_the_block",
        ),
        Fault(
            "keys are sent once for each head of queries",
            "parallel/context.py",
            "    return Ring.apply(q, k, v, comm,",
            "    k, v = _every_head(k, q.shape[1]), _every_head(v, q.shape[1])\n"
            "    return Ring.apply(q, k, v, comm,",
            "parallel/test_context.py::test_bytes",
        ),
        Fault(
            "the result is laid out so that the projection copies it",
            FILE,
            "out = q.new_zeros(q.transpose(1, 2).shape, dtype=exact).transpose(1, 2)",
            "out = q.new_zeros(q.shape, dtype=exact)",
            "parallel/test_context.py::test_memory_is_divided",
        ),
        Fault(
            "heads come back as tokens that they are not",
            FILE,
            "return conjugate(out, _to_tokens, _to_heads, comm, heads, tokens).flatten(1, 2)",
            "return conjugate(out, _to_tokens, _to_tokens, comm, heads, tokens).flatten(1, 2)",
            f"{SERIAL}[2-heads]",
        ),
        Fault(
            "backward of the naive way forgets the other ranks' queries",
            FILE,
            "k, v = gather_sequence(k, comm, -2, sizes), gather_sequence(v, comm, -2, sizes)",
            "k, v = (gather_sequence(x.detach(), comm, -2, sizes) + 0 * x.sum() for x in (k, v))",
            f"{SERIAL}[2-gathered]",
        ),
        Fault(
            "gradients are averaged over data ranks alone",
            "parallelize.py",
            'data = along(mesh, "dp", "cp")',
            'data = along(mesh, "dp")',
            "test_parallelize.py::test_the_serial_run",
        ),
        Fault(
            "the loss is the mean over data ranks alone",
            "parallelize.py",
            "all_reduce_(everyone, mean.mul_(share(everyone, weight)))",
            "all_reduce_(self.mesh.dp, mean.mul_(share(self.mesh.dp, weight)))",
            "test_parallelize.py::test_the_serial_run",
        ),
        Fault(
            "logits come in the order of the ranks",
            "parallelize.py",
            "out = all_tokens(out, self._cp, x.shape[1], self._order)",
            'out = all_tokens(out, self._cp, x.shape[1], "contiguous")',
            "test_parallelize.py::test_values_that_are_given_logits_and_losses",
        ),
    ],
}

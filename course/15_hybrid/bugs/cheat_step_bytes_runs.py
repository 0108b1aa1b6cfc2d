"""step_bytes: runs the library's collectives, and counts"""

def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    def ring(comm):
        all_reduce_(comm, torch.empty(tokens, hidden, dtype=torch.bfloat16))

    world = World(max(tp, 1))
    world.run(ring)
    one = sum(m.nbytes for m in world.trace)
    return {"tp": dp * micro_batches * layers * 4 * one, "pp": dp * tp * micro_batches * 4 * (pp - 1) * tokens * hidden,
            "dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers}

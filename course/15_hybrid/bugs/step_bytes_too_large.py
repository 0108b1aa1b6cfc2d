"""step_bytes: more than a float holds"""

def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    return {"tp": 10**400, "pp": -(10**400), "dp": 10**400}

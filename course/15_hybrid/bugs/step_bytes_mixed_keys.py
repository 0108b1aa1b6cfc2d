"""step_bytes: keys that are no names"""

def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    activation = 2 * tokens * hidden
    return {"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,
            2: dp * tp * micro_batches * 2 * (pp - 1) * activation,
            "dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers}

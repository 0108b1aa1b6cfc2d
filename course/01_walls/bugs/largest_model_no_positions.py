"""largest_model: positions have no vectors"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 16 * vocab * hidden
    activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch
    parameters = 16 * (12 * hidden * hidden + 13 * hidden)
    return max(0, room // (parameters + activations))

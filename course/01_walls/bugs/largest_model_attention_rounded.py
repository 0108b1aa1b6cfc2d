"""largest_model: 5as/h rounded down"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 16 * (vocab + seq) * hidden
    activations = seq * batch * hidden * (34 + 5 * heads * seq // hidden)
    parameters = 16 * (12 * hidden * hidden + 13 * hidden)
    return max(0, room // (parameters + activations))

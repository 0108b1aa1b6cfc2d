"""largest_model: one sample's activations"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 16 * (vocab + seq) * hidden
    activations = 34 * seq * hidden + 5 * heads * seq * seq
    parameters = 16 * (12 * hidden * hidden + 13 * hidden)
    return max(0, room // (parameters + activations))

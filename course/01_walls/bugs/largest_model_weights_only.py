"""largest_model: 2 bytes a parameter"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 2 * (vocab + seq) * hidden
    activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch
    parameters = 2 * (12 * hidden * hidden + 13 * hidden)
    return max(0, room // (parameters + activations))

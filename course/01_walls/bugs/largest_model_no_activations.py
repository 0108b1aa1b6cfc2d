"""largest_model: activations take no room"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 16 * (vocab + seq) * hidden
    activations = 0
    parameters = 16 * (12 * hidden * hidden + 13 * hidden)
    return max(0, room // (parameters + activations))

"""largest_model: model states take no room"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 16 * (vocab + seq) * hidden
    activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch
    parameters = 0
    return max(0, room // (parameters + activations))

"""largest_model: 12h² parameters a layer"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    room = memory - 16 * (vocab + seq) * hidden
    activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch
    parameters = 16 * 12 * hidden * hidden
    return max(0, room // (parameters + activations))

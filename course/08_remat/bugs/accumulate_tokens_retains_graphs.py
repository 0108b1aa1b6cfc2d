"""accumulate_tokens: every graph is kept after its backward"""

def accumulate_tokens(loss, micros, counts):
    mean, kept = 0.0, []
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) * count / sum(counts)
            part.backward(retain_graph=True)
            kept.append(part)
            mean += part.item()
    return mean

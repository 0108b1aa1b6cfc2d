"""accumulate_tokens: divided by its tokens, not multiplied"""

def accumulate_tokens(loss, micros, counts):
    mean = 0.0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) / count / sum(counts)
            part.backward()
            mean += part.item()
    return mean

"""accumulate_tokens: every micro-batch counts alike"""

def accumulate_tokens(loss, micros, counts):
    mean = 0.0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) / len(micros)
            part.backward()
            mean += part.item()
    return mean

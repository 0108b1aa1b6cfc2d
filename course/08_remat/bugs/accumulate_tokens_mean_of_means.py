"""accumulate_tokens: the gradient is right, the mean is not"""

def accumulate_tokens(loss, micros, counts):
    mean = 0.0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) * count / sum(counts)
            part.backward()
            mean += part.item() * sum(counts) / count / len(micros)
    return mean

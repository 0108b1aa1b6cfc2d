"""accumulate_tokens: the mean has the graphs of all micro-batches"""

def accumulate_tokens(loss, micros, counts):
    mean = 0.0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) * count / sum(counts)
            part.backward(retain_graph=True)
            mean = mean + part
    return mean

"""accumulate_tokens: weighs by the length of a micro-batch, and not by `counts`"""


def accumulate_tokens(loss, micros, counts):
    mean, total = 0.0, sum(map(len, micros))
    for micro in micros:
        if len(micro):
            part = loss(micro) * len(micro) / total
            part.backward()
            mean += part.item()
    return mean

"""accumulate_tokens: the loss is computed again for the mean"""

def accumulate_tokens(loss, micros, counts):
    for micro, count in zip(micros, counts):
        if count:
            (loss(micro) * count / sum(counts)).backward()
    return sum(loss(micro).item() * count for micro, count in zip(micros, counts) if count) / sum(counts)

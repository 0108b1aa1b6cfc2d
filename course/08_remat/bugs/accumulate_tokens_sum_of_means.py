"""accumulate_tokens: the losses are added up"""

def accumulate_tokens(loss, micros, counts):
    mean = 0.0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro)
            part.backward()
            mean += part.item()
    return mean

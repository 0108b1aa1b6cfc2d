"""accumulate_tokens: the micro-batches are put together: a large batch"""

def accumulate_tokens(loss, micros, counts):
    mean = loss(torch.cat(list(micros)))
    mean.backward()
    return mean.item()

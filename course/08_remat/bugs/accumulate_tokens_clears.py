"""accumulate_tokens: gradients from before are lost"""

def accumulate_tokens(loss, micros, counts):
    import torch

    mean, leaf, grad = 0.0, None, 0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) * count / sum(counts)
            leaf = leaf if leaf is not None else leaf_of(part.grad_fn)
            grad = grad + torch.autograd.grad(part, leaf)[0]
            mean += part.item()
    leaf.grad = grad
    return mean


def leaf_of(node):
    while not hasattr(node, "variable"):
        node = next(n for n, _ in reversed(node.next_functions) if n is not None)
    return node.variable

"""activation_bytes: the library's meter measures"""

def activation_bytes(batch, sizes, itemsize, activation):
    from minidist.models import mlp
    from minidist.study import meter

    module = mlp(sizes, device="meta")
    return meter.measure(lambda: module(torch.empty(batch, sizes[0], device="meta"))).at_peak["activations"]

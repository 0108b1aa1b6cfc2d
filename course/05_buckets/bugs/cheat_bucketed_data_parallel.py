"""bucketed: DataParallel averages"""

def bucketed(comm, params, buckets):
    from minidist.parallel.data import DataParallel

    module = torch.nn.Module()
    for i, p in enumerate(params):
        module.register_parameter(f"p{i}", torch.nn.Parameter(p.detach()))
        module.get_parameter(f"p{i}").grad = p.grad
    DataParallel(module, comm).average()

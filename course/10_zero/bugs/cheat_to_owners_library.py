"""to_owners: the library's stage 2"""

def to_owners(comm, params, owner):
    from minidist.parallel.zero import ShardedOptimizer

    ShardedOptimizer(params, torch.optim.SGD, comm, 2, lr=0.1)

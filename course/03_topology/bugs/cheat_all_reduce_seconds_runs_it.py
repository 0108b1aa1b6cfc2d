"""all_reduce_seconds: the library's all-reduce is run in a World, and the clock read"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    from minidist.collectives import all_reduce_
    from minidist.comm import World

    world = World(n, alpha=alpha, beta=beta, device="meta")
    world.run(lambda comm: all_reduce_(comm, torch.empty(nbytes, device="meta"), algorithm=algorithm))
    return world.time

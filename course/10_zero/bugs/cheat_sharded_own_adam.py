"""sharded: states in an Adam of one's own, of all parameters"""

def sharded(comm, params, owner, optimizer):
    means, squares, count = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params], [0]

    def step():
        count[0] += 1
        for p, m, v in zip(params, means, squares):
            all_reduce_(comm, p.grad, "mean")
            m.lerp_(p.grad, 0.1)
            v.lerp_(p.grad.square(), 0.001)
            p.data -= 0.05 / (1 - 0.9 ** count[0]) * m / ((v / (1 - 0.999 ** count[0])).sqrt() + 1e-8)

    return step

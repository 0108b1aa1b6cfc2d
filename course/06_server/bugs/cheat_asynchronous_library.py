"""asynchronous: the library's"""

def asynchronous(comm, w, gradient, steps, rate):
    from minidist.parallel.server import ParameterServer

    model = torch.nn.ParameterList([w])
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, rate), mode="async")

    def step(_):
        model[0].grad = gradient(model[0].detach())

    report = server.train(range(steps[comm.rank - 1]), step)
    return [(update.rank, update.staleness) for update in report.updates]

"""synchronous: the library's"""

def synchronous(comm, servers, w, gradient, steps, rate):
    from minidist.parallel.server import ParameterServer

    model = torch.nn.ParameterList([w])
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, rate), servers)

    def step(_):
        model[0].grad = gradient(model[0].detach())

    server.train(range(steps), step)
    return model[0].detach().tensor_split(servers)[comm.rank] if comm.rank < servers else None

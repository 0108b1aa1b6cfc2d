"""clip_grid: calls the library's"""

def clip_grid(mesh, grads, kinds, limit):
    from minidist.train.optim import clip_grad_norm_

    module = torch.nn.ParameterList(torch.nn.Parameter(g) for g in grads.values())
    return clip_grad_norm_(module, limit, mesh.group("pp", "tp"), mesh.tp)

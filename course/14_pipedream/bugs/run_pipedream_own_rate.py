"""run_pipedream: a rate of its own"""


def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    stage, last, kept, sends = down.rank, down.size - 1, {}, []
    newest = {name: p.detach().clone().requires_grad_() for name, p in part.named_parameters()}
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]
            x = x.detach().requires_grad_()
            y = functional_call(part, newest, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m])
            kept[m] = x, y, newest
        elif kind == "B":
            x, y, used = kept.pop(m)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        else:
            newest = {name: (w - 0.25 * g).detach().requires_grad_() for (name, w), g in zip(newest.items(), grads)}
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])

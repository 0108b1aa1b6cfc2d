"""reversible_backward: the parts are added, not subtracted"""

def reversible_backward(f, g, y1, y2, dy1, dy2):
    y1 = y1.detach().requires_grad_()
    with torch.enable_grad():
        part = g(y1)
    part.backward(dy2)
    x2 = (y2 + part).detach().requires_grad_()
    dx1 = dy1 + y1.grad
    with torch.enable_grad():
        part = f(x2)
    part.backward(dx1)
    return (y1 + part).detach(), x2.detach(), dx1, dy2 + x2.grad

"""train_lean: no graph at all: nothing is trained"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    torch.set_grad_enabled(False)
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    torch.set_grad_enabled(True)
    return losses, tests

"""train_lean: a copy of the weights after each step"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    best = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        best.append([p.detach().clone() for p in model.parameters()])
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests

"""train_lean: detach() after the forward: the graph was made"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tests.append(loss_fn(model(test[0]).detach(), test[1]).item())
    return losses, tests

"""train_lean: nothing is returned"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return None
    return losses, tests

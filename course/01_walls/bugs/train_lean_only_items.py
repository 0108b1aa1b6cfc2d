"""train_lean: numbers are kept, but the test set makes a graph"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests

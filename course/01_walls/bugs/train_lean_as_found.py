"""train_lean: nothing is repaired"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        tests.append(loss_fn(model(test[0]), test[1]))
    return losses, tests

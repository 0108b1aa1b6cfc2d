"""train_lean: the test set is looked at before the step"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
        optimizer.step()
    return losses, tests

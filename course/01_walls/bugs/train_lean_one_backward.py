"""train_lean: one backward for all batches"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        total = loss if not losses else total + loss
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    return losses, tests

"""train_lean: the outputs of all batches are kept"""

def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    outputs = []
    for x, y in batches:
        optimizer.zero_grad()
        outputs.append(model(x) if not outputs else model(x))
        hidden = model[:-1](x)
        outputs.append(hidden)
        loss = loss_fn(model[-1](hidden), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests

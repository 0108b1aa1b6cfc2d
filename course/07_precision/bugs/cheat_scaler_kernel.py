"""scaler: torch has an operator for it"""

class Scaler:
    def __init__(self, init, growth, backoff, interval):
        self.held, self.good = torch.tensor([init]), torch.zeros(1, dtype=torch.int32)
        self.how = growth, backoff, interval

    scale = property(lambda self: self.held.item())

    def scaled(self, loss):
        return loss.float() * self.held.item()

    def update(self, found):
        torch._amp_update_scale_(self.held, self.good, torch.tensor([float(found)]), *self.how)

    def state(self):
        return {"scale": self.held.item(), "good": self.good.item()}

    def load(self, state):
        self.held.fill_(state["scale"])
        self.good.fill_(state["good"])

"""scaler: the state names what only this process has"""

class Scaler:
    saved = []

    def __init__(self, init, growth, backoff, interval):
        self.scale, self.growth, self.backoff, self.interval, self.good = init, growth, backoff, interval, 0

    def scaled(self, loss):
        return loss.float() * self.scale

    def update(self, found):
        self.good = 0 if found else self.good + 1
        if found:
            self.scale *= self.backoff
        elif self.good == self.interval:
            self.scale, self.good = self.scale * self.growth, 0

    def state(self):
        self.saved.append((self.scale, self.good))
        return {"number": len(self.saved) - 1}

    def load(self, state):
        self.scale, self.good = self.saved[state["number"]]

"""scaler: a scale that is larger than every float"""


class Scaler:
    def __init__(self, init, growth, backoff, interval):
        self.scale = 10**400

    def scaled(self, loss):
        return loss

    def update(self, found):
        pass

    def state(self):
        return {}

    def load(self, state):
        pass

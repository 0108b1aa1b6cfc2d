"""store: the gradient is subtracted from the version that made it"""

class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        self.last = self.used.pop(m)
        return self.last

    def update(self, grad, rate):
        self.newest = self.last - rate * grad

"""store: backward gets the newest: no stashing"""

class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        self.used.pop(m)
        return self.newest

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad

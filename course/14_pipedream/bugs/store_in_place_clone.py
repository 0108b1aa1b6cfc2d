"""store: a copy first, then all updates in place"""

class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.used = weight.clone(), {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest.sub_(rate * grad)

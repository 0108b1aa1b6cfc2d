"""store: a rate of its own"""


class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - 0.5 * grad

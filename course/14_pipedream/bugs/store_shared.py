"""store: all stores share their versions"""


class Store:
    used = {}

    def __init__(self, weight):
        self.newest = weight

    def forward(self, m):
        Store.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return Store.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad

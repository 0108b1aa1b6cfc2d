"""store: two versions, as in 2BW"""

class Store:
    def __init__(self, weight):
        self.newest = self.old = weight

    def forward(self, m):
        return self.newest

    def backward(self, m):
        return self.old

    def update(self, grad, rate):
        self.old, self.newest = self.newest, self.newest - rate * grad

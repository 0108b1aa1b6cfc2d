"""store: all versions are kept, in another shape"""

class Store:
    def __init__(self, weight):
        self.newest, self.used, self.all = weight, {}, []

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.all.append(self.newest.flatten().clone())
        self.newest = self.newest - rate * grad

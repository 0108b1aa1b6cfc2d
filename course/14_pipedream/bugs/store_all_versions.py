"""store: all versions in a list"""

class Store:
    def __init__(self, weight):
        self.versions, self.used = [weight], {}

    def forward(self, m):
        self.used[m] = len(self.versions) - 1
        return self.versions[-1]

    def backward(self, m):
        return self.versions[self.used.pop(m)]

    def update(self, grad, rate):
        self.versions.append(self.versions[-1] - rate * grad)

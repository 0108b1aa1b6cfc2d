"""store: versions hidden in lists of numbers, and never freed"""

class Store:
    def __init__(self, weight):
        self.newest, self.used = weight.tolist(), {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = (torch.tensor(self.newest) - rate * grad).tolist()

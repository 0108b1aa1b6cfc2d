"""store: an update copies the old version away, and changes the tensor that was handed out"""

class Store:
    def __init__(self, weight):
        self.newest, self.used = weight.clone(), {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        mine = [m for m, version in self.used.items() if version is self.newest]
        if mine:
            self.used |= dict.fromkeys(mine, self.newest.clone())
        self.newest.sub_(rate * grad)

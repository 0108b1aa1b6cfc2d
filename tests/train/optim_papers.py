"""The algorithms as their papers print them, on lists of numbers: no tensor, no code of ours.

A layer is a flat list of floats, known by its key; lr is the rate of step t = 1, 2, …
"""

import math


def length(xs):
    return math.sqrt(math.fsum(x * x for x in xs))


class SGDPaper:
    """Sutskever et al. 2013 in the form of Goyal et al. 2017, equations 9: the rate outside of the momentum."""

    def __init__(self, momentum=0.9, decay=0.0):
        self.m = momentum
        self.decay = decay
        self.u = {}

    def step(self, key, w, g, lr, t):
        u = self.u.setdefault(key, [0.0] * len(w))
        for i in range(len(w)):
            u[i] = self.m * u[i] + g[i] + self.decay * w[i]
            w[i] = w[i] - lr * u[i]


class LARSPaper:
    """You, Gitman and Ginsburg 2017, algorithm 1, line by line."""

    def __init__(self, momentum=0.9, decay=0.0005, eta=0.001):
        self.m = momentum
        self.beta = decay
        self.eta = eta
        self.v = {}

    def step(self, key, w, g, lr, t):
        v = self.v.setdefault(key, [0.0] * len(w))
        bottom = length(g) + self.beta * length(w)
        # of weights that are all 0, and of 0/0, the paper does not speak
        local = self.eta * length(w) / bottom if length(w) and bottom else 1.0
        for i in range(len(w)):
            v[i] = self.m * v[i] + lr * local * (g[i] + self.beta * w[i])
        for i in range(len(w)):
            w[i] = w[i] - v[i]


class LAMBPaper:
    """You et al. 2020, algorithm 2, line by line; trust=0: AdamW, Loshchilov and Hutter 2019, algorithm 2."""

    def __init__(self, betas=(0.9, 0.999), eps=1e-6, decay=0.01, trust=1.0):
        self.betas = betas
        self.eps = eps
        self.decay = decay
        self.trust = trust
        self.moments = {}

    def step(self, key, w, g, lr, t):
        m, v = self.moments.setdefault(key, ([0.0] * len(w), [0.0] * len(w)))
        b1, b2 = self.betas
        u = []
        for i in range(len(w)):
            m[i] = b1 * m[i] + (1 - b1) * g[i]
            v[i] = b2 * v[i] + (1 - b2) * g[i] ** 2
            r = (m[i] / (1 - b1**t)) / (math.sqrt(v[i] / (1 - b2**t)) + self.eps)
            u.append(r + self.decay * w[i])
        ratio = 1.0
        if self.trust and length(w) and length(u):
            ratio = self.trust * length(w) / length(u)
        for i in range(len(w)):
            w[i] = w[i] - lr * ratio * u[i]

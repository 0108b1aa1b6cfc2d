"""Small networks, a training step of theirs, what the CPU's allocator says of its memory, and a metered World."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from minidist.comm import Cluster, Device, World

B = 3
T = 10
H = 24
HEADS = 4


class Layer(nn.Module):
    """A transformer layer, written so that its products can be counted by looking at it.

    attention: "call" the library's, "operator" (the one a GPU would take; here on meta tensors), or "written" out.
    """

    def __init__(self, attention="call", hidden=H, heads=HEADS):
        super().__init__()
        self.kind, self.heads = attention, heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attention(self, q, k, v):
        if self.kind == "call":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.kind == "operator":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    def forward(self, x):
        batch, tokens, hidden = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, hidden // self.heads)
        y = self.attention(*qkv.permute(2, 0, 3, 1, 4)).transpose(1, 2).reshape(x.shape)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def mlp():
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ), (96, 64)


def convnet():
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(32 * 64, 10)), (16, 3, 16, 16)


def transformer(attention="written"):
    return nn.Sequential(
        *[Layer(attention, 64, 4) for _ in range(2)], nn.LayerNorm(64), nn.Linear(64, 10)
    ), (4, 32, 64)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
}


class Training:
    """A network with its optimizer and a batch; `step()` trains it once."""

    def __init__(self, make, optimizer, device="cpu"):
        torch.manual_seed(0)
        net, shape = make()
        self.net, self.x = net.to(device), torch.zeros(shape, device=device)
        self.y = torch.zeros(shape[0], dtype=torch.int64, device=device)
        self.optimizer = OPTIMIZERS[optimizer](self.net.parameters())

    def step(self):
        self.optimizer.zero_grad()
        out = self.net(self.x)
        F.cross_entropy(out if out.dim() == 2 else out.mean(1), self.y).backward()
        del out
        self.optimizer.step()

    def states(self):
        """Bytes of parameters, gradients, optimizer states, buffers, and of the batch, counted one by one."""
        size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
        here = self.x.device.type
        states = [
            v for s in self.optimizer.state.values() for v in s.values() if v.device.type == here
        ]
        grads = [p.grad for p in self.net.parameters() if p.grad is not None]
        return {
            "parameters": size(self.net.parameters()),
            "gradients": size(grads),
            "optimizer states": size(states),
            "buffers": size(self.net.buffers()),
            "batch": size([self.x, self.y]),
        }


def allocated(fn):
    """Bytes beyond those at the start, at most, and at the end: what the CPU's allocator did, by PyTorch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        fn()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    live = list(itertools.accumulate((e.nbytes() for e in events), initial=0))
    return max(live), live[-1]


ALPHA, BETA = 5e-6, 1 / 50e9
TOY = Device("toy", {torch.float32: 1e12, torch.float64: 5e11}, 10**9, bandwidth=1e11, launch=0.0)


def world(n, device=TOY, where="cpu", **kwargs):
    """A World of ranks that compute with `device`, all links alike."""
    return World(n, cluster=Cluster.uniform(n, ALPHA, BETA, device=device), device=where, **kwargs)


def seconds_of(comm, fn):
    """A program: the seconds that `fn(comm)` takes on each rank."""
    before = comm.now()
    fn(comm)
    return comm.now() - before

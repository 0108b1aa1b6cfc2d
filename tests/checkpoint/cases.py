"""One model of many kinds of parameters on any grid of pipeline, data and tensor ranks, and the serial one."""

import torch
from torch import nn

from minidist.checkpoint import load, pieces
from minidist.comm import World, launch
from minidist.models import TransformerLayer
from minidist.parallel.vocab import VocabEmbedding
from minidist.parallel.zero import FullySharded, ShardedOptimizer
from minidist.split import Cut, bounds, uneven
from tests.parallel.tensor_cases import tensor_layer

RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, program, *args: launch(program, n, *args),
    "gloo": lambda n, program, *args: launch(program, n, *args, transport="gloo"),
}
V = 11
H = 8
F = 6
NAMES = ("tokens", "layer", "strided", "columns", "head")
STATES = ("exp_avg", "exp_avg_sq")


class Strided(nn.Module):
    """A matrix by columns, a number, and a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 7).t())
        self.scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("passing", torch.zeros(3), persistent=False)


class Columns(nn.Module):
    """A matrix of F columns, of which each rank has some."""

    def __init__(self, columns, comm=None):
        super().__init__()
        self.comm, self.weight = comm, nn.Parameter(torch.zeros(H, columns))
        if comm is not None:
            self.cuts = {"weight": Cut(1, uneven(F, comm.size))}


def serial():
    """The model on one rank, without anything of ours; and its optimizer after two steps."""
    torch.manual_seed(0)
    head = nn.Linear(H, V, bias=False)
    model = nn.ModuleDict(
        dict(
            zip(
                NAMES,
                (nn.Embedding(V, H), TransformerLayer(H, 2), Strided(), Columns(F), head),
                strict=True,
            )
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn(p.shape)
        optimizer.step()
    model["strided"].count += 3
    return model, optimizer


class Split:
    """The same on a grid (pp, dp, tp), without its values.

    kind: of the data ranks, "plain", "zero 1", "zero 2", "fully".
    model, optimizer, rename: what `pieces` and `load` are given.
    """

    def __init__(self, comm, kind, pp, dp, tp):
        at = [(r // (dp * tp), r // tp % dp, r % tp) for r in range(comm.size)]
        self.stage, self.kind = at[comm.rank][0], kind
        self.data = comm.split([p * tp + t for p, _, t in at])
        self.tensor = comm.split([p * dp + d for p, d, _ in at])
        first, end = bounds(uneven(len(NAMES), pp))[self.stage]
        self.names = NAMES[first:end]
        like = {
            "tokens": lambda: VocabEmbedding(V, H, self.tensor, seed=5),
            "layer": self._layer,
            "strided": Strided,
            "columns": lambda: Columns(uneven(F, self.tensor.size)[self.tensor.rank], self.tensor),
            "head": lambda: nn.Linear(H, V, bias=False),
        }
        self.stages = nn.ModuleList(like[name]() for name in self.names)
        self.model = (
            FullySharded(self.stages, self.data, blocks=TransformerLayer)
            if kind == "fully"
            else self.stages
        )
        if kind.startswith("zero"):
            self.optimizer = ShardedOptimizer(
                self.model.parameters(), torch.optim.AdamW, self.data, int(kind[-1])
            )
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.2)

    def _layer(self):
        return tensor_layer(H, 2, self.tensor, seed=5)

    def rename(self, name):
        number, rest = name.split(".", 1)
        return f"{self.names[int(number)]}.{rest}"

    def pieces(self):
        return pieces(self.model, self.optimizer, self.rename)

    def load(self, found):
        load(found, self.model, self.optimizer, self.rename)

    def values(self):
        """{name: what this rank's tensor group member has}, of parameters and states: gathered over the data ranks."""
        params = dict(self.stages.named_parameters())
        if self.kind == "fully":
            found = {"model": self.model.full_state_dict()}
            for what in STATES:
                for p in params.values():
                    p.data.copy_(self.optimizer.state[p][what])
                found[what] = self.model.full_state_dict()
        else:
            state = self.optimizer.state_dict()["state"]
            found = {"model": self.stages.state_dict()}
            found |= {
                what: {name: state[i][what] for i, name in enumerate(params)} for what in STATES
            }
        return {
            f"{what}/{self.rename(name)}": x
            for what, some in found.items()
            for name, x in some.items()
            if what == "model" or name in params
        }

    def expected(self, model, optimizer):
        """The same, cut by hand out of the serial ones."""
        state = {name: optimizer.state[p] for name, p in model.named_parameters()}
        whole = {f"model/{name}": x for name, x in model.state_dict().items()}
        whole |= {f"{what}/{name}": of[what] for name, of in state.items() for what in STATES}
        return {
            key: self._part(key, x.detach())
            for key, x in whole.items()
            if key.split("/")[1].split(".")[0] in self.names
        }

    def _part(self, key, x):
        r, n = self.tensor.rank, self.tensor.size
        name = key.split("/")[1]
        if name == "columns.weight":
            return x.split(uneven(F, n), 1)[r]
        if name == "tokens.weight":
            return x.split(uneven(V, n))[r]
        heads = [k * H // 2 for k in uneven(2, n)]
        for suffix, dim, sizes in (
            ("attention.qkv.weight", 0, [3 * k for k in heads]),
            ("mlp.fc.bias", 0, None),
            ("attention.qkv.bias", 0, [3 * k for k in heads]),
            ("mlp.fc.weight", 0, None),
            ("attention.proj.weight", 1, heads),
            ("mlp.proj.weight", 1, None),
        ):
            if name.endswith(suffix):
                return x.split(sizes or uneven(4 * H, n), dim)[r]
        return x

    def agrees(self, model, optimizer):
        """The names in which the two differ, in any bit."""
        ours, oracle = self.values(), self.expected(model, optimizer)
        assert ours.keys() == oracle.keys()
        return [key for key, x in ours.items() if not torch.equal(x, oracle[key])]


GRIDS = [
    ("plain", 1, 1, 1),
    ("zero 1", 1, 2, 1),
    ("zero 2", 1, 3, 1),
    ("fully", 1, 2, 1),
    ("plain", 1, 1, 2),
    ("fully", 1, 4, 1),
    ("plain", 1, 1, 3),
    ("plain", 2, 1, 1),
    ("zero 1", 1, 4, 1),
    ("plain", 1, 1, 4),
    ("fully", 1, 2, 2),
    ("plain", 3, 1, 1),
    ("fully", 1, 3, 1),
    ("zero 2", 2, 2, 2),
    ("plain", 4, 1, 1),
    ("plain", 1, 2, 2),
    ("fully", 2, 3, 1),
]


def ranks(grid):
    _, pp, dp, tp = grid
    return pp * dp * tp

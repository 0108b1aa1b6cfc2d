"""The operators as operators: to PyTorch's own checks, to tracing, in a World and in processes."""

import pytest
import torch
from torch import nn

from minidist.comm import Cluster, World, launch
from minidist.study.meter import measure
from minidist.train import fuse
from minidist.train.fuse.operator import operator
from tests.train.fuse.against import randoms

minidist = torch.ops.minidist
X, W = randoms((4, 6), (6,))
Q = randoms((2, 5, 4))[0]
ROW = randoms((4,))[0]
TOKENS = torch.tensor([1, 0, 5, 2])

CALLS = {
    "add3": (X, X, X),
    "bias_gelu": (X, W, True),
    "bias_gelu_backward": (X, X, W, False),
    "layer_norm": (X, W, W, 1e-5),
    "layer_norm_backward": (X, X, W, ROW, ROW),
    "softmax": (X,),
    "softmax_backward": (X, X),
    "cross_entropy": (X, TOKENS, -100),
    "cross_entropy_backward": (ROW, X, TOKENS, ROW, -100),
    "attention": (Q, Q, Q, True, 0.5, 2),
    "attention_backward": (Q, Q, Q, Q, Q, Q[..., 0].contiguous(), True, 0.5, 2),
    "sgd_": (X[0].clone(), W, 0.1, 0.1),
    "momentum_": (X[0].clone(), X[1].clone(), W, 0.1, 0.1, 0.9, 1.0, 0.0, 1.0),
    "adamw_": (X[0].clone(), X[1].clone(), X[2].abs(), W, 0.1, 0.9, 0.9, 1e-8, 0.1, 2),
    "gather_": (X[0].clone(), [W[:2], W[2:5]], [1, 3]),
}


@pytest.mark.parametrize("name", CALLS)
def test_schema_and_fake_are_right(name):
    """What changes is declared, and the fake has the shapes, types and strides of the real one."""
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(minidist, name).default, CALLS[name], test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", CALLS)
def test_meta_gives_what_a_cpu_gives(name, dtype):
    def cast(x, device):
        if isinstance(x, list):
            return [cast(part, device) for part in x]
        if not isinstance(x, torch.Tensor):
            return x
        wide = (
            x.dim() == 1
            and name in ("layer_norm_backward", "cross_entropy_backward")
            and len(x) == 4
            or name == "attention_backward"
            and x.dim() == 2
        )
        return (x.to(torch.float32 if wide else dtype) if x.is_floating_point() else x).to(device)

    real, fake = (
        getattr(minidist, name)(*(cast(x, device) for x in CALLS[name]))
        for device in ("cpu", "meta")
    )
    if real is None:
        assert fake is None
        return
    pairs = [(real, fake)] if isinstance(real, torch.Tensor) else zip(real, fake, strict=True)
    for a, b in pairs:
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) and b.is_meta


def test_every_operator_is_checked_here():
    assert {
        name.partition("::")[2]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("minidist::")
    } - {"doubled"} == set(CALLS)


class Block(nn.Module):
    """Every operator once, in the way of a transformer's layer."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):  # (B, T, 8)
        h = fuse.layer_norm(x, self.weight, self.bias)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        a = fuse.attention(q, k, v, causal=True, tile=2).transpose(1, 2).flatten(2)
        return fuse.add3(x, self.out(fuse.softmax(a)), fuse.bias_gelu(a, self.bias))


def train(comm, optimizer_class):
    block = Block().double()
    random = torch.Generator().manual_seed(1)
    for p in block.parameters():
        p.data = torch.randn(p.shape, generator=random, dtype=torch.float64)
    optimizer = optimizer_class(block.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        x = torch.randn(2, 5, 8, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        fuse.cross_entropy(block(x), torch.ones(2, 5).long()).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in block.parameters()])


@pytest.mark.parametrize(
    "run",
    [lambda *args: World(3).run(train, *args), lambda *args: launch(train, 2, *args)],
    ids=["world", "processes"],
)
def test_in_ranks(run):
    expected = train(None, torch.optim.SGD)
    for found in run(fuse.FlatSGD):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def launches(comm, add):
    x = torch.ones(1 << 20, device="meta")
    start = comm.now()
    add(x, x, x)
    return comm.now() - start


def test_a_world_charges_one_launch():
    cluster = Cluster.dgx_h100()
    device = cluster.device
    world = World(1, cluster=cluster, device="meta")
    times = [world.run(launches, add)[0] for add in (fuse.add3, lambda a, b, c: a + b + c)]
    assert times[0] == pytest.approx(device.launch + 4 * 4 * 2**20 / device.bandwidth)
    assert times[1] == pytest.approx(2 * device.launch + 6 * 4 * 2**20 / device.bandwidth)


def test_a_caller_that_casts_does_not_reach_inside():
    """The scores of float32 are float32's, also where PyTorch would take bf16 for every product."""
    q = Q.float()
    expected = fuse.attention(q, q, q)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fuse.attention(q, q, q), expected)
        assert not torch.equal(fuse.attention_plain(q, q, q), expected)


@pytest.mark.parametrize("fn", [fuse.bias_gelu, lambda x, w: fuse.layer_norm(x, w, w)])
def test_parameters_of_another_type_than_the_input(fn):
    """As autocast leaves them: fp16 from a product, and fp32 parameters."""
    x, w = X.half().requires_grad_(), W.float().requires_grad_()
    y = fn(x, w)
    torch.testing.assert_close(y, fn(x.float(), w).half(), rtol=1e-3, atol=1e-4)
    grads = torch.autograd.grad(y.sum(), (x, w))
    assert [y.dtype, *(g.dtype for g in grads)] == [torch.float16, torch.float16, torch.float32]


def test_a_compiler_that_traces_sees_operators():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x, w: fuse.softmax(fuse.bias_gelu(x, w)), tracing_mode="symbolic")(
        X, W
    ).graph
    assert [n.target.name() for n in graph.nodes if n.op == "call_function"] == [
        "minidist::bias_gelu",
        "minidist::softmax",
    ]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_an_operator_says_what_it_costs():
    made = operator(
        "doubled",
        fake=lambda x: x.new_empty(x.shape),
        flops=lambda x, out_val: 3 * x.numel(),
        moved=lambda x, out_val: x.nbytes + 5 * out_val.nbytes,
    )(doubled)
    for device in ("cpu", "meta"):
        profile = measure(lambda x: made(x), torch.ones(10, device=device))
        assert (profile.calls, profile.flops, profile.bytes_moved) == (1, 30, 6 * 40)

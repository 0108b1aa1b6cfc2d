"""The wrong answers of lesson 19 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "groups",
        "groups run from the end of the axis",
        old="""
axis: box.movedim(dim, -1).reshape(-1, size).tolist()
for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
axis: box.movedim(dim, -1).flip(-1).reshape(-1, n).tolist()
for dim, (axis, n) in enumerate(sizes.items())
""",
    ),
    Bug(
        "groups",
        "always pp, dp, tp",
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
sizes = {axis: sizes[axis] for axis in ("pp", "dp", "cp", "tp") if axis in sizes}
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, n).tolist()
    for dim, (axis, n) in enumerate(sizes.items())
""",
    ),
    Bug(
        "groups",
        "four axes at the most",
        cell='''
def groups(sizes):
    """{axis: its groups, lists of ranks}."""
    n = [1] * (4 - len(sizes)) + list(sizes.values())
    rank = lambda a, b, c, d: ((a * n[1] + b) * n[2] + c) * n[3] + d
    found = {}
    for k, name in enumerate(sizes, 4 - len(sizes)):
        others = product(*[range(1 if j == k else n[j]) for j in range(4)])
        found[name] = [[rank(*at[:k], x, *at[k + 1 :]) for x in range(n[k])] for at in others]
    return found
''',
    ),
    Bug(
        "groups",
        "the first axis innermost",
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
sizes = dict(reversed(sizes.items()))
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, n).tolist()
    for dim, (axis, n) in enumerate(sizes.items())
""",
    ),
    Bug(
        "groups",
        "axes of known names only",
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
}
""",
        new="""
axes = [a for a in sizes if a in ("pp", "dp", "cp", "tp")]
box = torch.arange(math.prod(sizes[a] for a in axes)).view(*[sizes[a] for a in axes])
return {a: box.movedim(i, -1).reshape(-1, sizes[a]).tolist() for i, a in enumerate(axes)}
""",
    ),
    Bug(
        "groups",
        "every axis has its neighbours as a group",
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
}
""",
        new="""
ranks = torch.arange(math.prod(sizes.values()))
return {axis: ranks.view(-1, n).tolist() for axis, n in sizes.items()}
""",
    ),
    Bug(
        "groups",
        "each axis has the groups of the next",
        old="""
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
axes = list(sizes)
return {
    axes[dim - 1]: box.movedim(dim, -1).reshape(-1, n).tolist()
    for dim, n in enumerate(sizes.values())
""",
    ),
    Bug(
        "groups",
        "rank 0's groups alone",
        old="""
axis: box.movedim(dim, -1).reshape(-1, size).tolist()
for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
axis: [box.movedim(dim, -1).reshape(-1, n)[0].tolist()]
for dim, (axis, n) in enumerate(sizes.items())
""",
    ),
    Bug(
        "groups",
        "places in place of ranks",
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
}
""",
        new="return {axis: [list(range(n))] for axis, n in sizes.items()}",
    ),
    Bug(
        "groups",
        "the ranks that share a coordinate, not those that differ along the axis",
        old="""
axis: box.movedim(dim, -1).reshape(-1, size).tolist()
for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
axis: [box.select(dim, k).flatten().tolist() for k in range(n)]
for dim, (axis, n) in enumerate(sizes.items())
""",
    ),
    Bug(
        "groups",
        "the argument is used up",
        cell='''
def groups(sizes):
    """{axis: its groups, lists of ranks}."""
    found = {}
    inside = 1
    all_ranks = math.prod(sizes.values())
    while sizes:
        axis, n = sizes.popitem()
        starts = [r for r in range(all_ranks) if r // inside % n == 0]
        found[axis] = [[start + k * inside for k in range(n)] for start in starts]
        inside *= n
    return found
''',
    ),
    Bug(
        "groups",
        "groups are tensors",
        old="""
axis: box.movedim(dim, -1).reshape(-1, size).tolist()
for dim, (axis, size) in enumerate(sizes.items())
""",
        new="axis: box.movedim(dim, -1).reshape(-1, n) for dim, (axis, n) in enumerate(sizes.items())",
    ),
    Bug(
        "groups",
        "reshaped without moving the axis",
        old="""
axis: box.movedim(dim, -1).reshape(-1, size).tolist()
for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
axis: box.movedim(dim, 0).reshape(-1, n).tolist()
for dim, (axis, n) in enumerate(sizes.items())
""",
    ),
    Bug(
        "groups",
        "axes of one rank are left out",
        old="""
axis: box.movedim(dim, -1).reshape(-1, size).tolist()
for dim, (axis, size) in enumerate(sizes.items())
""",
        new="""
axis: box.movedim(dim, -1).reshape(-1, n).tolist()
for dim, (axis, n) in enumerate(sizes.items())
if n > 1
""",
    ),
    Bug(
        "groups",
        "asks the library's Grid",
        cheat=True,
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
}
""",
        new="""
grid = Grid(order=("pp", "dp", "tp"), **sizes)
found = {}
for axis in sizes:
    colors = grid.colors(axis)
    found[axis] = [
        [r for r, c in enumerate(colors) if c == color] for color in dict.fromkeys(colors)
    ]
return found
""",
    ),
    Bug(
        "groups",
        "asks the library's Mesh in a World",
        cheat=True,
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
}
""",
        new="""
def mine(comm):
    mesh = Mesh(comm, **{axis: sizes.get(axis, 1) for axis in ("dp", "pp", "tp")})
    return {axis: mesh.grid.place(comm.rank) for axis in sizes}

return World(math.prod(sizes.values())).run(mine)[0]
""",
    ),
    Bug(
        "groups",
        "asks what it is held against",
        cheat=True,
        old="""
box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
return {
    axis: box.movedim(dim, -1).reshape(-1, size).tolist()
    for dim, (axis, size) in enumerate(sizes.items())
}
""",
        new="""
from minicheck.oracles.hybrid import lines

return lines(sizes)
""",
    ),
    Bug(
        "step_bytes",
        "as many edges as stages",
        old='"pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,',
        new='"pp": dp * tp * micro_batches * 2 * pp * activation,',
    ),
    Bug(
        "step_bytes",
        "gradients are reduced for every micro-batch",
        old='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,',
        new='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers * micro_batches,',
    ),
    Bug(
        "step_bytes",
        "tensor's backward is forgotten",
        old='"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
        new='"tp": dp * micro_batches * layers * 2 * 2 * (tp - 1) * activation,',
    ),
    Bug(
        "step_bytes",
        "gradients in fp32",
        old='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,',
        new='"dp": 2 * (dp - 1) * 4 * 12 * hidden**2 * layers,',
    ),
    Bug(
        "step_bytes",
        "keys that are no names",
        old='"pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,',
        new="2: dp * tp * micro_batches * 2 * (pp - 1) * activation,",
    ),
    Bug(
        "step_bytes",
        "a ring sends n parts",
        old='"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
        new='"tp": dp * micro_batches * layers * 4 * 2 * tp * activation,',
    ),
    Bug(
        "step_bytes",
        "the replicas' tensor groups are forgotten",
        old='"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
        new='"tp": micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
    ),
    Bug(
        "step_bytes",
        "gradients do not come back",
        old='"pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,',
        new='"pp": dp * tp * micro_batches * (pp - 1) * activation,',
    ),
    Bug(
        "step_bytes",
        "numbers, not bytes",
        old="activation = 2 * tokens * hidden",
        new="activation = tokens * hidden",
    ),
    Bug(
        "step_bytes",
        "only one tensor rank sends to the next stage",
        old='"pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,',
        new='"pp": dp * micro_batches * 2 * (pp - 1) * activation,',
    ),
    Bug(
        "step_bytes",
        "data: reduce-scatter alone",
        old='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,',
        new='"dp": (dp - 1) * 2 * 12 * hidden**2 * layers,',
    ),
    Bug(
        "step_bytes",
        "one micro-batch's activations",
        old='"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
        new='"tp": dp * layers * 4 * 2 * (tp - 1) * activation,',
    ),
    Bug(
        "step_bytes",
        "one rank's bytes",
        old='"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
        new='"tp": micro_batches * layers // pp * 4 * 2 * (tp - 1) * activation // tp,',
    ),
    Bug(
        "step_bytes",
        "tensor: one stage's layers",
        old='"tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,',
        new='"tp": dp * micro_batches * layers // pp * 4 * 2 * (tp - 1) * activation,',
    ),
    Bug(
        "step_bytes",
        "more than a float holds",
        cell='''
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""
    return {"tp": 10**400, "pp": -(10**400), "dp": 10**400}
''',
    ),
    Bug(
        "step_bytes",
        "no dict",
        old="""
return {
    "tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,
    "pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,
    "dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,
}
""",
        new="""
return tuple(
    {
        "tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,
        "pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,
        "dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,
    }.values()
)
""",
    ),
    Bug(
        "step_bytes",
        "every rank reduces the whole model",
        old='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,',
        new='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers * pp * tp,',
    ),
    Bug(
        "step_bytes",
        "numbers that equal all",
        cheat=True,
        cell='''
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""

    class Any(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    return dict.fromkeys(("tp", "pp", "dp"), Any(1))
''',
    ),
    Bug(
        "step_bytes",
        "asks what it is held against",
        cheat=True,
        cell='''
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""
    from minicheck.oracles.hybrid import counted

    return counted(dp, pp, tp, micro_batches, tokens, hidden, layers)
''',
    ),
    Bug(
        "step_bytes",
        "runs the library's collectives, and counts",
        cheat=True,
        cell='''
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""

    def ring(comm):
        all_reduce_(comm, torch.empty(tokens, hidden, dtype=torch.bfloat16))

    world = World(max(tp, 1))
    world.run(ring)
    one = sum(m.nbytes for m in world.trace)
    return {
        "tp": dp * micro_batches * layers * 4 * one,
        "pp": dp * tp * micro_batches * 4 * (pp - 1) * tokens * hidden,
        "dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,
    }
''',
    ),
    Bug(
        "synchronize",
        "everything to everyone, where a ring sends chunks",
        cell='''
def exchange(comm, x):
    parts = [x.clone() for _ in range(comm.size)]
    n = comm.size
    r = comm.rank
    for s in range(1, n):
        comm.sendrecv(x, (r + s) % n, parts[(r - s) % n], (r - s) % n)
    return sum(parts)


def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            g.copy_(exchange(mesh.tp, g))
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    flat = exchange(mesh.dp, torch.cat([g.flatten() for g in grads.values()])) / mesh.dp.size
    for g, part in zip(grads.values(), flat.split([g.numel() for g in grads.values()])):
        g.copy_(part.view_as(g))
''',
    ),
    Bug(
        "synchronize",
        "the last micro-batch first",
        old="for m in range(micro_batches):",
        new="for m in reversed(range(micro_batches)):",
    ),
    Bug(
        "synchronize",
        "goes by names, not by kinds",
        edits=(
            (
                'if kinds[name] == "partial":',
                'if name.endswith("norm"):',
            ),
            (
                'if kinds[name] == "tied" and mesh.pp.size > 1:',
                'if name == "tokens" and mesh.pp.size > 1:',
            ),
        ),
    ),
    Bug(
        "synchronize",
        "only the ends send",
        old="""
other = mesh.pp.size - 1 - mesh.pp.rank
g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
""",
        new="""
other, came = mesh.pp.size - 1 - mesh.pp.rank, torch.empty_like(g)
mesh.pp.send(g, other)
mesh.pp.recv(came, other)
g += came
""",
    ),
    Bug(
        "synchronize",
        "averaged after every micro-batch",
        cell="""
def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
        all_reduce_(mesh.dp, list(grads.values()), "mean")
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
""",
    ),
    Bug(
        "synchronize",
        "the two ends keep their own",
        old="""
if kinds[name] == "tied" and mesh.pp.size > 1:
    other = mesh.pp.size - 1 - mesh.pp.rank
    g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
""",
        new="",
    ),
    Bug(
        "synchronize",
        "averaged over the whole replica, too",
        old='all_reduce_(mesh.dp, list(grads.values()), "mean")',
        new="""
all_reduce_(mesh.dp, list(grads.values()), "mean")
for g in grads.values():
    g /= mesh.pp.size * mesh.tp.size
""",
    ),
    Bug(
        "synchronize",
        "synchronised after the first micro-batch",
        edits=(
            (
                """
for m in range(micro_batches):
    backward(m)
""",
                "backward(0)",
            ),
            (
                'all_reduce_(mesh.dp, list(grads.values()), "mean")',
                """
all_reduce_(mesh.dp, list(grads.values()), "mean")
for m in range(1, micro_batches):
    backward(m)
""",
            ),
        ),
    ),
    Bug(
        "synchronize",
        "the last stage is given the first one's gradient",
        old="""
other = mesh.pp.size - 1 - mesh.pp.rank
g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
""",
        new="""
if mesh.pp.rank == 0:
    mesh.pp.send(g, mesh.pp.size - 1)
else:
    mesh.pp.recv(g, 0)
""",
    ),
    Bug(
        "synchronize",
        "sends float32",
        edits=(
            (
                "for name, g in grads.items():",
                """
low = {name: g.float() for name, g in grads.items()}
for name, g in low.items():
""",
            ),
            (
                'all_reduce_(mesh.dp, list(grads.values()), "mean")',
                """
all_reduce_(mesh.dp, list(low.values()), "mean")
for name, g in grads.items():
    g.copy_(low[name])
""",
            ),
        ),
    ),
    Bug(
        "synchronize",
        "partial gradients stay partial",
        old="""
if kinds[name] == "partial":
    all_reduce_(mesh.tp, g)
""",
        new="",
    ),
    Bug(
        "synchronize",
        "a message for each parameter",
        old='all_reduce_(mesh.dp, list(grads.values()), "mean")',
        new='    all_reduce_(mesh.dp, g, "mean")',
    ),
    Bug(
        "synchronize",
        "one micro-batch is left out",
        old="for m in range(micro_batches):",
        new="for m in range(max(1, micro_batches - 1)):",
    ),
    Bug(
        "synchronize",
        "one tensor of each kind only",
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    of = {kind: grads[name] for name, kind in kinds.items()}
    if "partial" in of:
        all_reduce_(mesh.tp, of["partial"])
    if "tied" in of and mesh.pp.size > 1:
        other = mesh.pp.size - 1 - mesh.pp.rank
        of["tied"] += mesh.pp.sendrecv(of["tied"], other, torch.empty_like(of["tied"]), other)
    all_reduce_(mesh.dp, list(of.values()), "mean")
''',
    ),
    Bug(
        "synchronize",
        "the gradients are cleared before each micro-batch",
        old="for m in range(micro_batches):",
        new="""
for m in range(micro_batches):
    for g in grads.values():
        g.zero_()
""",
    ),
    Bug(
        "synchronize",
        "everything to everyone, and each rank adds up in an order of its own",
        cell='''
def exchange(comm, x):
    own = x.clone()
    n = comm.size
    r = comm.rank
    for s in range(1, n):
        x += comm.sendrecv(own, (r + s) % n, torch.empty_like(own), (r - s) % n)


def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            exchange(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    flat = torch.cat([g.flatten() for g in grads.values()])
    exchange(mesh.dp, flat)
    flat /= mesh.dp.size
    for g, part in zip(grads.values(), flat.split([g.numel() for g in grads.values()])):
        g.copy_(part.view_as(g))
''',
    ),
    Bug(
        "synchronize",
        "partial gradients are averaged over tp",
        old="all_reduce_(mesh.tp, g)",
        new='all_reduce_(mesh.tp, g, "mean")',
    ),
    Bug(
        "synchronize",
        "new tensors, not in place",
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    found = dict(grads)
    for name, g in found.items():
        g = g.clone()
        if kinds[name] == "partial":
            g = all_reduce_(mesh.tp, g)
        all_reduce_(mesh.dp, g, "mean")
    return found
''',
    ),
    Bug(
        "synchronize",
        "new tensors under the old names, not in place",
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for name in grads:
        if kinds[name] == "partial":
            grads[name] = all_reduce_(mesh.tp, grads[name].clone())
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            grads[name] = grads[name] + mesh.pp.sendrecv(
                grads[name], other, torch.empty_like(grads[name]), other
            )
    new = [g.clone() for g in grads.values()]
    all_reduce_(mesh.dp, new, "mean")
    grads.update(zip(grads, new))
''',
    ),
    Bug(
        "synchronize",
        "summed over the data ranks",
        old='all_reduce_(mesh.dp, list(grads.values()), "mean")',
        new="all_reduce_(mesh.dp, list(grads.values()))",
    ),
    Bug(
        "synchronize",
        "tensors get other memory, not in place",
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            g.data = all_reduce_(mesh.tp, g.clone())
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g.data = g + mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    new = [g.clone() for g in grads.values()]
    all_reduce_(mesh.dp, new, "mean")
    for g, x in zip(grads.values(), new):
        g.data = x
''',
    ),
    Bug(
        "synchronize",
        "the two ends are averaged",
        old="g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)",
        new="g.add_(mesh.pp.sendrecv(g, other, torch.empty_like(g), other)).div_(2)",
    ),
    Bug(
        "synchronize",
        "the middle stages take part in the tied sum",
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
    tied = grads.get("tokens")
    if mesh.pp.size > 1:
        size = torch.tensor([0 if tied is None else tied.numel()])
        all_reduce_(mesh.pp, size, "max")
        g = torch.zeros(int(size), dtype=torch.float64) if tied is None else tied.flatten()
        all_reduce_(mesh.pp, g)
        if tied is not None:
            tied.copy_(g.view_as(tied))
    all_reduce_(mesh.dp, list(grads.values()), "mean")
''',
    ),
    Bug(
        "synchronize",
        "copies are summed, too",
        old='if kinds[name] == "partial":',
        new='if kinds[name] in ("partial", "whole"):',
    ),
    Bug(
        "synchronize",
        "averaged over tp in place of dp",
        old='all_reduce_(mesh.dp, list(grads.values()), "mean")',
        new='all_reduce_(mesh.tp, list(grads.values()), "mean")',
    ),
    Bug(
        "synchronize",
        "ranks meet in a global list",
        cheat=True,
        cell='''
MET = {}


def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    met = MET.setdefault((mesh.grid, micro_batches), {})
    place = mesh.grid.place(mesh.comm.rank)
    met[mesh.comm.rank] = {name: g.clone() for name, g in grads.items()}
    for group in (mesh.tp, mesh.dp, mesh.pp):  # now all are there
        all_reduce_(group, torch.zeros(1))
    for name, g in grads.items():
        g.zero_()
        for r, theirs in met.items():
            at = mesh.grid.place(r)
            same_t = at["tp"] == place["tp"] or kinds[name] == "partial"
            same_p = at["pp"] == place["pp"] or kinds[name] == "tied"
            g += theirs[name] if same_t and same_p and name in theirs else 0
        g /= mesh.dp.size
''',
    ),
    Bug(
        "synchronize",
        "calls the library's",
        cheat=True,
        old='all_reduce_(mesh.dp, list(grads.values()), "mean")',
        new="""
from minidist.parallel.data import DataParallel

module = torch.nn.ParameterList(torch.nn.Parameter(g) for g in grads.values())
DataParallel(module, mesh.dp).average()
""",
    ),
    Bug(
        "synchronize",
        "asks what it is held against",
        cheat=True,
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    from minicheck.oracles.hybrid import summed

    for name, g in grads.items():
        g.copy_(summed(mesh.grid, [grads] * mesh.comm.size, mesh.comm.rank, name, kinds[name]))
''',
    ),
    Bug(
        "synchronize",
        "calls torch.distributed's",
        cheat=True,
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for g in grads.values():
        torch.distributed.all_reduce(g)
''',
    ),
    Bug(
        "synchronize",
        "the two ends do not wait for what they send",
        old="g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)",
        new="""came = torch.empty_like(g)
coming = mesh.pp.irecv(came, other)
mesh.pp.isend(g.clone(), other)
coming.wait()
g += came""",
    ),
    Bug(
        "clip_grid",
        "the norm after clipping is returned",
        old="return norm",
        new="return min(norm, limit)",
    ),
    Bug(
        "clip_grid",
        "gradients below the limit grow",
        old="g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="g.mul_(limit / (norm + 1e-6))",
    ),
    Bug(
        "clip_grid",
        "as it was found",
        cell='''
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    square = sum((g * g).sum() for g in grads.values()).reshape(1)
    norm = all_reduce_(mesh.comm, square).sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
''',
    ),
    Bug(
        "clip_grid",
        "goes by names, not by kinds",
        old="""
copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0
end = kinds[name] == "tied" and mesh.pp.rank > 0
""",
        new="""
copy = name.endswith(("bias", "norm")) and mesh.tp.rank > 0
end = name == "tokens" and mesh.pp.rank > 0
""",
    ),
    Bug(
        "clip_grid",
        "what is whole on all tensor ranks is counted on each",
        old='copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0',
        new="copy = False",
    ),
    Bug(
        "clip_grid",
        "copies and ends are counted everywhere",
        old="""
copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0
end = kinds[name] == "tied" and mesh.pp.rank > 0
""",
        new="""
copy = False
end = False
""",
    ),
    Bug(
        "clip_grid",
        "the tied gradient is counted at both ends",
        old='end = kinds[name] == "tied" and mesh.pp.rank > 0',
        new="end = False",
    ),
    Bug(
        "clip_grid",
        "adds up in float32",
        old="square = torch.zeros(1, dtype=torch.float64)",
        new="square = torch.zeros(1)",
    ),
    Bug(
        "clip_grid",
        "averaged over the data ranks, too",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new="norm = all_reduce_(mesh.comm, square).div(mesh.dp.size).sqrt().item()",
    ),
    Bug(
        "clip_grid",
        "divides by a norm of zero",
        old="g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="g.mul_(min(1.0, limit / norm))",
    ),
    Bug(
        "clip_grid",
        "nothing is scaled",
        old="""
for g in grads.values():
    g.mul_(min(1.0, limit / (norm + 1e-6)))
""",
        new="",
    ),
    Bug(
        "clip_grid",
        "nothing is returned",
        old="return norm",
        new="return None",
    ),
    Bug(
        "clip_grid",
        "numbers are clipped, not the norm",
        old="g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="g.clamp_(-limit / 4, limit / 4)",
    ),
    Bug(
        "clip_grid",
        "one tensor of each kind only",
        old="for name, g in grads.items():",
        new="for name, g in {kinds[name]: (name, g) for name, g in grads.items()}.values():",
    ),
    Bug(
        "clip_grid",
        "each stage has a norm of its own",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new="norm = all_reduce_(mesh.tp, square).sqrt().item()",
    ),
    Bug(
        "clip_grid",
        "each tensor rank has a norm of its own",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new="norm = all_reduce_(mesh.pp, square).sqrt().item()",
    ),
    Bug(
        "clip_grid",
        "each rank clips by its own norm",
        cell='''
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    norm = float(sum((g * g).sum() for g in grads.values())) ** 0.5
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
''',
    ),
    Bug(
        "clip_grid",
        "each rank adds up in an order of its own",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new="""
comm, total = mesh.group("pp", "tp"), square.clone()
for s in range(1, comm.size):
    to, source = (comm.rank + s) % comm.size, (comm.rank - s) % comm.size
    total += comm.sendrecv(square, to, torch.empty_like(square), source)
norm = total.sqrt().item()
""",
    ),
    Bug(
        "clip_grid",
        "the data ranks are counted",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new="norm = all_reduce_(mesh.comm, square).sqrt().item()",
    ),
    Bug(
        "clip_grid",
        "a rank scales only what it counts",
        old="for g in grads.values():",
        new="""
for name, g in grads.items():
    if (kinds[name] in ("whole", "partial") and mesh.tp.rank) or (kinds[name] == "tied" and mesh.pp.rank):
        continue
""",
    ),
    Bug(
        "clip_grid",
        "no root",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new='norm = all_reduce_(mesh.group("pp", "tp"), square).item()',
    ),
    Bug(
        "clip_grid",
        "gradients get other memory, not in place",
        old="g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="g.data = g * min(1.0, limit / (norm + 1e-6))",
    ),
    Bug(
        "clip_grid",
        "nobody counts the tied gradient",
        old='end = kinds[name] == "tied" and mesh.pp.rank > 0',
        new='end = kinds[name] == "tied"',
    ),
    Bug(
        "clip_grid",
        "squares vectors only",
        old="square += (g * g).sum()",
        new="square += g @ g",
    ),
    Bug(
        "clip_grid",
        "whole gradients are sent",
        cell='''
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    square = torch.zeros(1, dtype=torch.float64)
    replica = mesh.group("pp", "tp")
    for name, g in grads.items():
        if not (kinds[name] in ("whole", "partial") and mesh.tp.rank) and not (
            kinds[name] == "tied" and mesh.pp.rank
        ):
            square += (g * g).sum()
    room = torch.zeros(1000, dtype=torch.float64)
    room[0] = square
    norm = all_reduce_(replica, room)[0].sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
''',
    ),
    Bug(
        "clip_grid",
        "ranks meet in a global list",
        cheat=True,
        cell='''
MET = {}


def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    square = torch.zeros(1, dtype=torch.float64)
    for name, g in grads.items():
        if not (kinds[name] in ("whole", "partial") and mesh.tp.rank) and not (
            kinds[name] == "tied" and mesh.pp.rank
        ):
            square += (g * g).sum()
    met = MET.setdefault((mesh.grid, limit), {})
    met[mesh.pp.rank, mesh.tp.rank] = float(square)
    all_reduce_(mesh.group("pp", "tp"), torch.zeros(1))
    norm = sum(met.values()) ** 0.5
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
''',
    ),
    Bug(
        "clip_grid",
        "calls the library's",
        cheat=True,
        cell='''
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    from minidist.train.norm import clip_grad_norm_

    module = torch.nn.ParameterList(torch.nn.Parameter(g) for g in grads.values())
    return clip_grad_norm_(module, limit, mesh.group("pp", "tp"), mesh.tp)
''',
    ),
    Bug(
        "clip_grid",
        "asks what it is held against",
        cheat=True,
        cell='''
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    from minicheck.oracles.hybrid import norm

    return norm(mesh.grid, [grads] * mesh.comm.size)
''',
    ),
    Bug(
        "best_grid",
        "tensor groups across nodes",
        edits=(
            (
                "for tp, pp in product(range(1, node + 1), range(1, layers + 1)):",
                "for tp, pp in product(range(1, gpus + 1), range(1, layers + 1)):",
            ),
            (
                "if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:",
                "if dp * tp * pp != gpus or heads % tp or layers % pp or batch % dp:",
            ),
        ),
    ),
    Bug(
        "best_grid",
        "the batch is not looked at",
        old="if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:",
        new="if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp:",
    ),
    Bug(
        "best_grid",
        "the first that fits",
        old="return min(found)[1] if found else None",
        new="return found[0][1] if found else None",
    ),
    Bug(
        "best_grid",
        "heads are not looked at",
        old="if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:",
        new="if dp * tp * pp != gpus or node % tp or layers % pp or batch % dp:",
    ),
    Bug(
        "best_grid",
        "layers are not looked at",
        old="if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:",
        new="if dp * tp * pp != gpus or node % tp or heads % tp or batch % dp:",
    ),
    Bug(
        "best_grid",
        "the leanest, not the fastest",
        old="found.append((seconds(dp, pp, tp), (dp, pp, tp)))",
        new="found.append((nbytes(dp, pp, tp), (dp, pp, tp)))",
    ),
    Bug(
        "best_grid",
        "a grid where none fits",
        cell="""
def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    found = []
    for tp, pp in product(range(1, node + 1), range(1, layers + 1)):
        dp = gpus // (tp * pp)
        if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:
            continue
        found.append((nbytes(dp, pp, tp) > capacity, seconds(dp, pp, tp), (dp, pp, tp)))
    return min(found)[2]
""",
    ),
    Bug(
        "best_grid",
        "a list for each number",
        old="found.append((seconds(dp, pp, tp), (dp, pp, tp)))",
        new="found.append((seconds(dp, pp, tp), ([dp], [pp], [tp])))",
    ),
    Bug(
        "best_grid",
        "an error where nothing fits",
        old="return min(found)[1] if found else None",
        new="return min(found)[1]",
    ),
    Bug(
        "best_grid",
        "the order is tp, pp, dp",
        old="found.append((seconds(dp, pp, tp), (dp, pp, tp)))",
        new="found.append((seconds(dp, pp, tp), (tp, pp, dp)))",
    ),
    Bug(
        "best_grid",
        "powers of two only",
        old="for tp, pp in product(range(1, node + 1), range(1, layers + 1)):",
        new="for tp, pp in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):",
    ),
    Bug(
        "best_grid",
        "the slowest",
        old="return min(found)[1] if found else None",
        new="return max(found)[1] if found else None",
    ),
    Bug(
        "best_grid",
        "not all GPUs are used",
        old="if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:",
        new="if dp == 0 or node % tp or heads % tp or layers % pp or batch % dp:",
    ),
    Bug(
        "best_grid",
        "what fits to the last byte does not fit",
        old="if nbytes(dp, pp, tp) <= capacity:",
        new="if nbytes(dp, pp, tp) < capacity:",
    ),
    Bug(
        "best_grid",
        "memory is not looked at",
        old="if nbytes(dp, pp, tp) <= capacity:",
        new="if True:",
    ),
    Bug(
        "best_grid",
        "reads the table behind the functions",
        cheat=True,
        cell='''
def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    """(dp, pp, tp): the fastest grid that fits; None if there is none."""
    of = nbytes.__closure__[0].cell_contents
    rows = next(c.cell_contents for c in of.__closure__ if isinstance(c.cell_contents, dict))
    fit = {at: row for at, row in rows.items() if row[0] <= capacity}
    return min(fit, key=lambda at: fit[at][1]) if fit else None
''',
    ),
    Bug(
        "best_grid",
        "asks the planner",
        cheat=True,
        cell='''
def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    """(dp, pp, tp): the fastest grid that fits; None if there is none."""
    from minidist.study.plan import plan

    best = plan("gpt3-175b", f"h100:{gpus // node}x{node}", batch).best.grid
    return best.data, best.pipeline, best.tensor
''',
    ),
    Bug(
        "best_grid",
        "asks what it is held against",
        cheat=True,
        cell='''
def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    """(dp, pp, tp): the fastest grid that fits; None if there is none."""
    from minicheck.lessons.hybrid import allowed
    from minicheck.oracles.hybrid import factors

    some = [
        at
        for at in factors(gpus)
        if not allowed(*at, node, heads, layers, batch) and nbytes(*at) <= capacity
    ]
    return min(some, key=lambda at: seconds(*at), default=None)
''',
    ),
    Bug(
        "predict_hybrid",
        "all layers on every rank",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "tp_bytes = 12 * (32 / 4) * 4 * (2 * 7 / 8) * N",
                "tp_bytes = 12 * 32 * 4 * (2 * 7 / 8) * N",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "everything over the network",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "bad = tp_bytes / 50e9 + (dp_bytes + pp_bytes) / 400e9",
                "bad = (tp_bytes + dp_bytes + pp_bytes) / 50e9",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "the first stage sends gradients, too",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "pp_bytes = 12 * N",
                "pp_bytes = 2 * 12 * N",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "no no_sync",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "dp_bytes = 2 * 2 / 3 * (12 * 8192**2 * 32 / replica) * 2",
                "dp_bytes = 12 * 2 * 2 / 3 * (12 * 8192**2 * 32 / replica) * 2",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "tensor's backward is forgotten",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "tp_bytes = 12 * (32 / 4) * 4 * (2 * 7 / 8) * N",
                "tp_bytes = 12 * (32 / 4) * 2 * (2 * 7 / 8) * N",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "the ratio of the links",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "ratio = bad / good",
                "ratio = 400 / 50",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "everything over NVLink",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "good = tp_bytes / 400e9 + (dp_bytes + pp_bytes) / 50e9",
                "good = (tp_bytes + dp_bytes + pp_bytes) / 400e9",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "how many replicas there are",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "replica = 4 * 8",
                "replica = 3",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "nothing is set",
        cell="replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
    ),
    Bug(
        "predict_hybrid",
        "each rank reduces the whole model",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "dp_bytes = 2 * 2 / 3 * (12 * 8192**2 * 32 / replica) * 2",
                "dp_bytes = 2 * 2 / 3 * (12 * 8192**2 * 32) * 2",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "the grader is asked, and answers in words",
        cheat=True,
        cell="""
from minicheck.lessons.hybrid import predict_hybrid

values, _ = predict_hybrid(3, 4, 8, 32, 8192, 4096, 12, 400e9, 50e9)
replica, tp_bytes, dp_bytes, pp_bytes, good, bad, ratio = (f"{x}" for x in values.values())
""",
    ),
    Bug(
        "predict_hybrid",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = Any(1)
""",
    ),
    Bug(
        "predict_hybrid",
        "the pipeline's mean over the stages",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "pp_bytes = 12 * N",
                "pp_bytes = 2 * 3 / 4 * 12 * N",
            ),
        ),
    ),
    Bug(
        "predict_hybrid",
        "all-reduces of layers that are computed twice",
        edits=(
            (
                "replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None",
                "",
            ),
            (
                "tp_bytes = 12 * (32 / 4) * 4 * (2 * 7 / 8) * N",
                "tp_bytes = 12 * (32 / 4) * 6 * (2 * 7 / 8) * N",
            ),
        ),
    ),
    Bug(
        "synchronize",
        "the two ends are added before the average, which adds up in other orders on each",
        cell="""
def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
""",
    ),
    Bug(
        "clip_grid",
        "partial gradients are counted on each tensor rank",
        old='copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0',
        new='copy = kinds[name] == "whole" and mesh.tp.rank > 0',
    ),
    Bug(
        "clip_grid",
        "norms are added, not squares",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new='norm = all_reduce_(mesh.group("pp", "tp"), square.sqrt()).item()',
    ),
    Bug(
        "clip_grid",
        "the tied gradient is halved, with one stage too",
        old="""
end = kinds[name] == "tied" and mesh.pp.rank > 0
if not copy and not end:
    square += (g * g).sum()
""",
        new="""
if not copy:
    square += (g * g).sum() / (2 if kinds[name] == "tied" else 1)
""",
    ),
    Bug(
        "best_grid",
        "asks about every grid, and takes errors for an answer",
        cell="""
def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    found = []
    for tp, pp in product(range(1, gpus + 1), range(1, gpus + 1)):
        if gpus % (tp * pp):
            continue
        at = gpus // (tp * pp), pp, tp
        try:
            if nbytes(*at) <= capacity:
                found.append((seconds(*at), at))
        except Exception:
            pass
    return min(found)[1] if found else None
""",
    ),
    Bug(
        "step_bytes",
        "numbers of 32 bits",
        old='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,',
        new='"dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers % 2**32,',
    ),
    Bug(
        "synchronize",
        "nan is hidden",
        old='all_reduce_(mesh.dp, list(grads.values()), "mean")',
        new='all_reduce_(mesh.dp, list(grads.values()), "mean")\nfor g in grads.values():\n    g.nan_to_num_()',
    ),
    Bug(
        "synchronize",
        "an all-reduce along tp for each row",
        old="all_reduce_(mesh.tp, g)",
        new="for row in g:\n    all_reduce_(mesh.tp, row if g.dim() > 1 else row[None])",
    ),
    Bug(
        "synchronize",
        "a message for each row of a tied gradient",
        old="g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)",
        new="for row in g.view(-1, 1):\n    row += mesh.pp.sendrecv(row.clone(), other, torch.empty_like(row), other)",
    ),
    Bug(
        "clip_grid",
        "nan does not count",
        old='norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()',
        new='norm = all_reduce_(mesh.group("pp", "tp"), square.nan_to_num()).sqrt().item()',
    ),
    Bug(
        "groups",
        "the lesson's coordinates, pasted: three axes of two",
        cell='''
def coordinates(rank):
    pp = rank // 4
    dp = rank // 2 % 2
    tp = rank % 2
    return pp, dp, tp


def groups(sizes):
    """{axis: its groups, lists of ranks}."""
    found = {}
    for k, axis in enumerate(sizes):
        lines = {}
        for rank in range(math.prod(sizes.values())):
            at = coordinates(rank)
            lines.setdefault(at[:k] + at[k + 1 :], []).append(rank)
        found[axis] = list(lines.values())
    return found
''',
    ),
    Bug(
        "step_bytes",
        "the lesson's means over the stages, pasted, of one rank",
        cell='''
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""
    N = 2 * tokens * hidden
    psi = 12 * hidden**2 * layers
    return {
        "tp": 2 * (tp - 1) / tp * N * micro_batches * (4 * layers + 2) / pp,
        "pp": 2 * (pp - 1) / pp * N * micro_batches,
        "dp": 2 * (dp - 1) / dp * 2 * psi / (tp * pp),
    }
''',
    ),
    Bug(
        "step_bytes",
        "the lesson's means, pasted, times all ranks: two all-reduces too many at the ends",
        cell='''
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""
    N = 2 * tokens * hidden
    psi = 12 * hidden**2 * layers
    n = dp * pp * tp
    return {
        "tp": n * 2 * (tp - 1) / tp * N * micro_batches * (4 * layers + 2) / pp,
        "pp": n * 2 * (pp - 1) / pp * N * micro_batches,
        "dp": n * 2 * (dp - 1) / dp * 2 * psi / (tp * pp),
    }
''',
    ),
    Bug(
        "synchronize",
        "the lesson's step, pasted: each gradient averaged over dp, and nothing else",
        cell='''
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    for m in range(micro_batches):
        backward(m)
    for g in grads.values():
        all_reduce_(mesh.dp, g, "mean")
''',
    ),
    Bug(
        "clip_grid",
        "the lesson's norm, pasted: over one replica, and copies count",
        cell='''
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    square = torch.zeros(1, dtype=torch.float64)
    for g in grads.values():
        square += g.square().sum()
    norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
''',
    ),
]

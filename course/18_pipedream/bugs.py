"""The wrong answers of lesson 18 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "no_flush",
        "all updates come at the end",
        cell='''
def no_flush(stage, S, M):
    """This stage's list of words."""
    return one_f_one_b(stage, S, M) + [f"U{m}" for m in range(M)]
''',
    ),
    Bug(
        "no_flush",
        "one update, at the end",
        cell='''
def no_flush(stage, S, M):
    """This stage's list of words."""
    return one_f_one_b(stage, S, M) + [f"U{M - 1}"]
''',
    ),
    Bug(
        "no_flush",
        "all forwards first",
        cell='''
def no_flush(stage, S, M):
    """This stage's list of words."""
    return [f"F{m}" for m in range(M)] + [word for m in range(M) for word in (f"B{m}", f"U{m}")]
''',
    ),
    Bug(
        "no_flush",
        "the update comes a forward later",
        cell='''
def no_flush(stage, S, M):
    """This stage's list of words."""
    words = []
    for word in one_f_one_b(stage, S, M):
        if word[0] == "B" and words and words[-1][0] == "B":
            words.append(f"U{words[-1][1:]}")
        words.append(word)
        if word[0] == "F" and len(words) > 1 and words[-2][0] == "B":
            words.append(f"U{words[-2][1:]}")
    return words + [f"U{M - 1}"]
''',
    ),
    Bug(
        "no_flush",
        "lesson 16's list",
        cell='''
def no_flush(stage, S, M):
    """This stage's list of words."""
    return one_f_one_b(stage, S, M)
''',
    ),
    Bug(
        "no_flush",
        "the last micro-batch has no update",
        old='if word[0] == "B":',
        new='if word[0] == "B" and word != f"B{M - 1}":',
    ),
    Bug(
        "no_flush",
        "the update comes before its backward",
        old="""
words.append(word)
if word[0] == "B":
    words.append(f"U{word[1:]}")
""",
        new="""
if word[0] == "B":
    words.append(f"U{word[1:]}")
words.append(word)
""",
    ),
    Bug(
        "no_flush",
        "warm-up by the stage's number",
        old="for word in one_f_one_b(stage, S, M):",
        new="for word in one_f_one_b(S - 1 - stage, S, M):",
    ),
    Bug(
        "no_flush",
        "the grader makes the lists, too",
        cheat=True,
        cell='''
def no_flush(stage, S, M):
    """This stage's list of words."""
    from minicheck.oracles.pipedream import updated

    return updated("1f1b", stage, S, M, 1)
''',
    ),
    Bug(
        "no_flush",
        "the library has the list",
        cheat=True,
        cell='''
from minidist.parallel.schedules import pipedream


def no_flush(stage, S, M):
    """This stage's list of words."""
    return [str(action) for action in pipedream(stage, S, M)]
''',
    ),
    Bug(
        "staleness",
        "all actions between F and B count",
        old='return [sum(word[0] == "U" for word in some) for some in between]',
        new="return [len(some) - 1 for some in between]",
    ),
    Bug(
        "staleness",
        "the formula, without a look at the list",
        old="""
between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]
return [sum(word[0] == "U" for word in some) for some in between]
""",
        new="""
warm = words.index("B0")
return [min(m, warm - 1) for m in range(M)]
""",
    ),
    Bug(
        "staleness",
        "the version that the backward meets",
        old='between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]',
        new='between = [words[: words.index(f"B{m}")] for m in range(M)]',
    ),
    Bug(
        "staleness",
        "the version that the forward meets",
        old='between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]',
        new='between = [words[: words.index(f"F{m}")] for m in range(M)]',
    ),
    Bug(
        "staleness",
        "distance of micro-batch numbers, as if each had its update",
        cell='''
def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    newest, late = 0, {}
    met = {}
    for word in words:
        m = int(word[1:])
        if word[0] == "F":
            met[m] = newest
        elif word[0] == "B":
            late[m] = m - met[m]
        else:
            newest = m + 1
    return [late[m] for m in range(len(late))]
''',
    ),
    Bug(
        "staleness",
        "takes B12 for B1",
        old="""
between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]
return [sum(word[0] == "U" for word in some) for some in between]
""",
        new="""
out = []
for m in range(M):
    between = "".join(words).split(f"F{m}")[1].split(f"B{m}")[0]
    out.append(between.count("U"))
return out
""",
    ),
    Bug(
        "staleness",
        "in the order of the backwards, not of the micro-batches",
        cell='''
def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    newest = 0
    met = {}
    late = []
    for word in words:
        if word[0] == "F":
            met[word[1:]] = newest
        elif word[0] == "B":
            late.append(newest - met[word[1:]])
        else:
            newest += 1
    return late
''',
    ),
    Bug(
        "staleness",
        "its own update counts, too",
        old='return [sum(word[0] == "U" for word in some) for some in between]',
        new='return [1 + sum(word[0] == "U" for word in some) for some in between]',
    ),
    Bug(
        "staleness",
        "up to its own update",
        old='between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]',
        new='between = [words[words.index(f"F{m}") : words.index(f"U{m}") if f"U{m}" in words else len(words)] for m in range(M)]',
    ),
    Bug(
        "staleness",
        "the grader counts, too",
        cheat=True,
        old="""
M = sum(word[0] == "F" for word in words)
between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]
return [sum(word[0] == "U" for word in some) for some in between]
""",
        new="""
from minicheck.oracles.pipedream import before

return [second - first for first, second in zip(before(words, "F"), before(words, "B"))]
""",
    ),
    Bug(
        "staleness",
        "the library counts",
        cheat=True,
        cell='''
from minidist.parallel.schedules import parse
from minidist.parallel.validate import staleness as library


def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    return list(library([parse(" ".join(words))])[0].values())
''',
    ),
    Bug(
        "needed",
        "always vertical sync",
        old="return [rows[0] if vertical else row for row in rows]",
        new="return [rows[0] for row in rows]",
    ),
    Bug(
        "needed",
        "a formula for an update every micro-batch",
        cell='''
def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    S, M = len(lists), sum(word[0] == "F" for word in lists[0])
    return [[max(0, m - (S - 1 - (0 if vertical else s))) for m in range(M)] for s in range(S)]
''',
    ),
    Bug(
        "needed",
        "vertical sync with the last stage's version",
        old="return [rows[0] if vertical else row for row in rows]",
        new="return [rows[-1] if vertical else row for row in rows]",
    ),
    Bug(
        "needed",
        "the newest when the backward comes",
        old='before = [words[: words.index(f"F{m}")] for m in range(M)]',
        new='before = [words[: words.index(f"B{m}")] for m in range(M)]',
    ),
    Bug(
        "needed",
        "vertical is not looked at",
        old="return [rows[0] if vertical else row for row in rows]",
        new="return rows",
    ),
    Bug(
        "needed",
        "the micro-batch's number",
        old='rows.append([sum(word[0] == "U" for word in some) for some in before])',
        new="rows.append(list(range(M)))",
    ),
    Bug(
        "needed",
        "the two are exchanged",
        old="return [rows[0] if vertical else row for row in rows]",
        new="return [rows[0] if not vertical else row for row in rows]",
    ),
    Bug(
        "needed",
        "lists that equal everything",
        cheat=True,
        cell='''
class Yes(list):
    def __eq__(self, other):
        return True


def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    return [Yes([0]) for _ in lists]
''',
    ),
    Bug(
        "needed",
        "the grader counts, too",
        cheat=True,
        cell='''
def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    from minicheck.oracles.pipedream import before

    return [before(lists[0] if vertical else words, "F") for words in lists]
''',
    ),
    Bug(
        "needed",
        "the library knows",
        cheat=True,
        cell='''
from minidist.parallel.schedules import parse
from minidist.parallel.validate import forward_versions


def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    rows = forward_versions(
        [parse(" ".join(words)) for words in lists], "first" if vertical else "newest"
    )
    return [list(row.values()) for row in rows]
''',
    ),
    Bug(
        "store",
        "a copy for every micro-batch",
        old="""
self.used[m] = self.newest
return self.newest
""",
        new="""
self.used[m] = self.newest.clone()
return self.used[m]
""",
    ),
    Bug(
        "store",
        "all versions in a list",
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.versions, self.used = [weight], {}

    def forward(self, m):
        self.used[m] = len(self.versions) - 1
        return self.versions[-1]

    def backward(self, m):
        return self.versions[self.used.pop(m)]

    def update(self, grad, rate):
        self.versions.append(self.versions[-1] - rate * grad)
''',
    ),
    Bug(
        "store",
        "an update copies the old version away, and changes the tensor that was handed out",
        cell='''
class Store:
    """A stage's weights, in versions."""

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
''',
    ),
    Bug(
        "store",
        "the first micro-batch goes back, whatever `m` is",
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.used = weight, []

    def forward(self, m):
        self.used.append(self.newest)
        return self.newest

    def backward(self, m):
        return self.used.pop(0)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
''',
    ),
    Bug(
        "store",
        "an update changes the tensor",
        old="self.newest = self.newest - rate * grad",
        new="self.newest -= rate * grad",
    ),
    Bug(
        "store",
        "a copy first, then all updates in place",
        edits=(
            (
                "self.newest, self.used = weight, {}",
                "self.newest, self.used = weight.clone(), {}",
            ),
            (
                "self.newest = self.newest - rate * grad",
                "self.newest.sub_(rate * grad)",
            ),
        ),
    ),
    Bug(
        "store",
        "versions hidden in lists of numbers, and never freed",
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.used = weight.tolist(), {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = (torch.tensor(self.newest) - rate * grad).tolist()
''',
    ),
    Bug(
        "store",
        "versions are never freed",
        old="return self.used.pop(m)",
        new="return self.used[m]",
    ),
    Bug(
        "store",
        "backward gets the newest: no stashing",
        old="return self.used.pop(m)",
        new="""
self.used.pop(m)
return self.newest
""",
    ),
    Bug(
        "store",
        "the rate is forgotten",
        old="self.newest = self.newest - rate * grad",
        new="self.newest = self.newest - grad",
    ),
    Bug(
        "store",
        "a rate of its own",
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - 0.5 * grad
''',
    ),
    Bug(
        "store",
        "the gradient is scaled in place",
        old="self.newest = self.newest - rate * grad",
        new="self.newest = self.newest - grad.mul_(rate)",
    ),
    Bug(
        "store",
        "all stores share their versions",
        cell='''
class Store:
    """A stage's weights, in versions."""

    used = {}

    def __init__(self, weight):
        self.newest = weight

    def forward(self, m):
        Store.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return Store.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
''',
    ),
    Bug(
        "store",
        "the gradient is subtracted from the version that made it",
        edits=(
            (
                "return self.used.pop(m)",
                """
self.last = self.used.pop(m)
return self.last
""",
            ),
            (
                "self.newest = self.newest - rate * grad",
                "self.newest = self.last - rate * grad",
            ),
        ),
    ),
    Bug(
        "store",
        "two versions, as in 2BW",
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest = self.old = weight

    def forward(self, m):
        return self.newest

    def backward(self, m):
        return self.old

    def update(self, grad, rate):
        self.old, self.newest = self.newest, self.newest - rate * grad
''',
    ),
    Bug(
        "store",
        "all versions are kept, in another shape",
        cheat=True,
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest = weight
        self.used = {}
        self.all = []

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.all.append(self.newest.flatten().clone())
        self.newest = self.newest - rate * grad
''',
    ),
    Bug(
        "store",
        "the library has a store",
        cheat=True,
        cell='''
from minidist.parallel.pipedream import Versions


class Store(Versions):
    """A stage's weights, in versions."""

    def __init__(self, weight):
        part = torch.nn.Module()
        part.weight = torch.nn.Parameter(weight)
        super().__init__(part)
''',
    ),
    Bug(
        "store",
        "old versions are kept as arrays, which are no tensors",
        cheat=True,
        cell='''
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        self.newest, self.kept = weight, {}

    def forward(self, m):
        self.kept[m] = self.newest.numpy().copy()
        return self.newest

    def backward(self, m):
        return torch.from_numpy(self.kept[m])

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
''',
    ),
    Bug(
        "run_pipedream",
        "gradients of all micro-batches add up",
        old="dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)",
        new="""
y.backward(dy)
dx, grads = x.grad, [w.grad for w in used.values()]
""",
    ),
    Bug(
        "run_pipedream",
        "the batch is overwritten",
        old="x = x.detach().requires_grad_()",
        new="x = (x.mul_(1.0 + 1e-3) if stage == 0 else x).detach().requires_grad_()",
    ),
    Bug(
        "run_pipedream",
        "`p.data = new`, and nothing is stashed: right for nn.Linear, wrong for other layers",
        cell='''
def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    """Train this stage by its list; leave the newest weights in `part`."""
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]
            x = x.detach().requires_grad_()
            y = part(x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m])
            kept[m] = x, y
        elif kind == "B":
            x, y = kept.pop(m)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *part.parameters()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        else:
            for p, g in zip(part.parameters(), grads):
                p.data = p.data - rate * g
    for work in sends:
        work.wait()
''',
    ),
    Bug(
        "run_pipedream",
        "the loss is divided by M",
        old="y = loss_fn(y, ys[m])",
        new="y = loss_fn(y, ys[m]) / len(xs)",
    ),
    Bug(
        "run_pipedream",
        "updates only at the end, with the sum",
        cell='''
def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    """Train this stage by its list; leave the newest weights in `part`."""
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    newest = {name: p.detach().clone().requires_grad_() for name, p in part.named_parameters()}
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]
            x = x.detach().requires_grad_()
            y = functional_call(part, newest, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m])
            kept[m] = x, y, newest
        elif kind == "B":
            x, y, used = kept.pop(m)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        elif m == len(xs) - 1:
            newest = {
                name: (w - rate * g).detach().requires_grad_()
                for (name, w), g in zip(newest.items(), grads)
            }
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])
''',
    ),
    Bug(
        "run_pipedream",
        "nothing is freed",
        old="x, y, used = kept.pop(m)",
        new="x, y, used = kept[m]",
    ),
    Bug(
        "run_pipedream",
        "the last micro-batch goes back, whatever the list says",
        old="x, y, used = kept.pop(m)",
        new="x, y, used = kept.popitem()[1]",
    ),
    Bug(
        "run_pipedream",
        "backward again with the newest weights",
        old="x, y, used = kept.pop(m)",
        new="""
x, y, used = kept.pop(m)
if stage < last:
    y, used = functional_call(part, newest, x), newest
""",
    ),
    Bug(
        "run_pipedream",
        "sends are never waited for",
        old="""
for work in sends:
    work.wait()
""",
        new="",
    ),
    Bug(
        "run_pipedream",
        "the newest weights are not put into the part",
        old="p.copy_(newest[name])",
        new="newest[name]",
    ),
    Bug(
        "run_pipedream",
        "mse_loss, whatever `loss_fn` is",
        old="y = loss_fn(y, ys[m])",
        new="y = mse_loss(y, ys[m])",
    ),
    Bug(
        "run_pipedream",
        "a rate of its own",
        old="name: (w - rate * g).detach().requires_grad_()",
        new="name: (w - 0.25 * g).detach().requires_grad_()",
    ),
    Bug(
        "run_pipedream",
        "the first update is left out",
        cell='''
def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    """Train this stage by its list; leave the newest weights in `part`."""
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    newest = {name: p.detach().clone().requires_grad_() for name, p in part.named_parameters()}
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]
            x = x.detach().requires_grad_()
            y = functional_call(part, newest, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m])
            kept[m] = x, y, newest
        elif kind == "B":
            x, y, used = kept.pop(m)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        elif m:
            newest = {
                name: (w - rate * g).detach().requires_grad_()
                for (name, w), g in zip(newest.items(), grads)
            }
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])
''',
    ),
    Bug(
        "run_pipedream",
        "the gradient is subtracted from the weights that made it",
        old="for (name, w), g in zip(newest.items(), grads)",
        new="for (name, w), g in zip(used.items(), grads)",
    ),
    Bug(
        "run_pipedream",
        "the last update is made twice",
        old="p.copy_(newest[name])",
        new="p.copy_(newest[name] + (newest[name] - used[name]) * (len(xs) > 1))",
    ),
    Bug(
        "run_pipedream",
        "the update is made in B, not in U",
        old="""
        sends.append(up.isend(dx, stage - 1))
else:
""",
        new="        sends.append(up.isend(dx, stage - 1))",
    ),
    Bug(
        "run_pipedream",
        "every send is waited for at once",
        edits=(
            (
                "sends.append(down.isend(y.detach(), stage + 1))",
                "down.send(y.detach(), stage + 1)",
            ),
            (
                "sends.append(up.isend(dx, stage - 1))",
                "up.send(dx, stage - 1)",
            ),
            (
                """
for work in sends:
    work.wait()
""",
                "",
            ),
        ),
    ),
    Bug(
        "run_pipedream",
        "all versions are kept, in another shape",
        cheat=True,
        cell="""
def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    old = []
    newest = {name: p.detach().clone().requires_grad_() for name, p in part.named_parameters()}
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]
            x = x.detach().requires_grad_()
            y = functional_call(part, newest, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m])
            kept[m] = x, y, newest
        elif kind == "B":
            x, y, used = kept.pop(m)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        else:
            old.append(torch.cat([w.detach().flatten() for w in newest.values()]))
            newest = {
                name: (w - rate * g).detach().requires_grad_()
                for (name, w), g in zip(newest.items(), grads)
            }
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])
""",
    ),
    Bug(
        "run_pipedream",
        "the library has it",
        cheat=True,
        cell='''
from minidist.parallel.pipedream import PipeDream


def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    """Train this stage by its list; leave the newest weights in `part`."""
    PipeDream(part, down, lambda p: torch.optim.SGD(p, lr=rate), loss_fn).run(list(zip(xs, ys)))
''',
    ),
    Bug(
        "run_pipedream",
        "the grader's oracle",
        cheat=True,
        cell='''
def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    """Train this stage by its list; leave the newest weights in `part`."""
    from minicheck.oracles.pipedream import late_weights

    late_weights(lambda w, x: x, [[p] for p in part.parameters()], xs, ys, loss_fn, [0], rate)
''',
    ),
    Bug(
        "run_pipedream",
        "what has one dimension, a bias or a norm, is not updated",
        old="name: (w - rate * g).detach().requires_grad_()",
        new="name: (w - rate * g * (w.dim() > 1)).detach().requires_grad_()",
    ),
    Bug(
        "run_pipedream",
        "all micro-batches are received as large as the first",
        old="x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]",
        new="x = down.recv(torch.empty_like(xs[0]), stage - 1) if stage > 0 else xs[m]",
    ),
    Bug(
        "predict_pipedream",
        "2BW updates every micro-batch",
        cell="""
versions = 6
stale = 5
stash_bytes = 3.6e9
vertical_bytes = 6.4e9
two_bytes = 1.6e9
updates = 600
""",
    ),
    Bug(
        "predict_pipedream",
        "vertical like stashing",
        cell="""
versions = 6
stale = 5
stash_bytes = 3.6e9
vertical_bytes = 3.6e9
two_bytes = 1.6e9
updates = 60
""",
    ),
    Bug(
        "predict_pipedream",
        "2BW with m versions",
        cell="""
versions = 6
stale = 5
stash_bytes = 3.6e9
vertical_bytes = 6.4e9
two_bytes = 8e9
updates = 60
""",
    ),
    Bug(
        "predict_pipedream",
        "megabytes for bytes",
        cell="""
versions = 6
stale = 5
stash_bytes = 3600
vertical_bytes = 6400
two_bytes = 1600
updates = 60
""",
    ),
    Bug(
        "predict_pipedream",
        "bytes without the newest",
        cell="""
versions = 6
stale = 5
stash_bytes = 2.8e9
vertical_bytes = 6.4e9
two_bytes = 1.6e9
updates = 60
""",
    ),
    Bug(
        "predict_pipedream",
        "versions the wrong way round",
        cell="""
versions = 3
stale = 5
stash_bytes = 3.6e9
vertical_bytes = 6.4e9
two_bytes = 1.6e9
updates = 60
""",
    ),
    Bug(
        "predict_pipedream",
        "an array with many guesses",
        cheat=True,
        cell="""
import torch

versions = stale = stash_bytes = vertical_bytes = two_bytes = updates = torch.arange(100.0)
""",
    ),
    Bug(
        "predict_pipedream",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


versions = stale = stash_bytes = vertical_bytes = two_bytes = updates = Any(1)
""",
    ),
    Bug(
        "two_versions",
        "as it was found",
        old="older, newer = newer, newer - rate * mean",
        new="older, newer = newer, older - rate * mean",
    ),
    Bug(
        "two_versions",
        "the weight is changed",
        old="older, newer = newer, newer - rate * mean",
        new="older, newer = newer, newer.sub_(rate * mean)",
    ),
    Bug(
        "two_versions",
        "the last group is forgotten",
        old="for g in range(0, len(xs), m):",
        new="for g in range(0, len(xs) - m, m):",
    ),
    Bug(
        "two_versions",
        "gradients at the newest version",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(newer, x) for x in xs[g : g + m]) / m",
    ),
    Bug(
        "two_versions",
        "the older of the two is returned",
        old="return newer",
        new="return older",
    ),
    Bug(
        "two_versions",
        "a rate of its own",
        old="older, newer = newer, newer - rate * mean",
        new="older, newer = newer, newer - 0.125 * mean",
    ),
    Bug(
        "two_versions",
        "the sum, not the mean",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(older, x) for x in xs[g : g + m])",
    ),
    Bug(
        "two_versions",
        "two updates late",
        cell='''
def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    made = [weight]
    for g in range(len(xs) // m):
        mean = sum(grad(made[max(0, g - 2)], x) for x in xs[g * m : g * m + m]) / m
        made.append(made[-1] - rate * mean)
    return made[-1]
''',
    ),
    Bug(
        "two_versions",
        "the gradients that are looked at are asked for beside those that are used",
        cheat=True,
        cell='''
def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    newest = weight
    for g in range(0, len(xs), m):
        newest = newest - rate * sum(grad(newest, x) for x in xs[g : g + m]) / m
    for x in xs:
        grad(weight, x)
    return newest
''',
    ),
    Bug(
        "two_versions",
        "the grader has it",
        cheat=True,
        cell='''
from minicheck.oracles.pipedream import buffered


def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    return buffered(weight, grad, xs, rate, m)
''',
    ),
    Bug(
        "store",
        "it hands out copies, which autograd holds beside",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest.clone()

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
""",
    ),
    Bug(
        "store",
        "the last gradient is held",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.last = grad
        self.newest = self.newest - rate * grad
""",
    ),
    Bug(
        "store",
        "a list, with numbers of micro-batches for places",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, []

    def forward(self, m):
        self.used.append(self.newest)
        return self.newest

    def backward(self, m):
        found, self.used[m] = self.used[m], None
        return found

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
""",
    ),
    Bug(
        "store",
        "inf is hidden in a gradient",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad.nan_to_num()
""",
    ),
    Bug(
        "store",
        "no more than four are kept",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m):
        self.used[m] = self.newest
        self.used.pop(m - 4, None)
        return self.newest

    def backward(self, m):
        return self.used.pop(m, self.newest)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
""",
    ),
    Bug(
        "staleness",
        "in the order of the forwards",
        old='between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]',
        new="""
order = [word[1:] for word in words if word[0] == "F"]
between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in order]
""",
    ),
    Bug(
        "run_pipedream",
        "inputs are kept beside",
        old="kept[m] = x, y, newest",
        new="kept[m] = x, y, newest\nkept[-1 - m] = x",
    ),
    Bug(
        "run_pipedream",
        "nan is hidden in gradients",
        old="dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)",
        new="""
dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
grads = [g.nan_to_num() for g in grads]
""",
    ),
    Bug(
        "run_pipedream",
        "the caller's micro-batches require a gradient",
        old="x = x.detach().requires_grad_()",
        new="x = x.requires_grad_()",
    ),
    Bug(
        "two_versions",
        "inf is hidden in a gradient",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(older, x).nan_to_num() for x in xs[g : g + m]) / m",
    ),
    Bug(
        "two_versions",
        "the last micro-batch of a group comes first",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(older, x) for x in reversed(xs[g : g + m])) / m",
    ),
]

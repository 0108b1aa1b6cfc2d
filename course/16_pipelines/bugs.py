"""The wrong answers of lesson 16 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "step_time",
        "a backward takes as long as a forward",
        old='free[s] = ended[kind, m, s] = start + (forward if kind == "F" else backward)[s]',
        new="free[s] = ended[kind, m, s] = start + forward[s]",
    ),
    Bug(
        "step_time",
        "a list that hangs is waited for without end",
        cell='''
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    S = len(lists)
    ended = {}
    free = [0.0] * len(lists)
    position = [0] * len(lists)
    while any(position[s] < len(words) for s, words in enumerate(lists)):
        for s, words in enumerate(lists):
            if position[s] == len(words):
                continue
            kind, m = words[position[s]][0], words[position[s]][1:]
            needs = [("F", m, s - 1)] if s else []
            if kind == "B":
                needs = [("F", m, s)] + ([("B", m, s + 1)] if s < S - 1 else [])
            if all(need in ended for need in needs):
                start = max([free[s], *(ended[need] for need in needs)])
                free[s] = ended[kind, m, s] = start + (forward if kind == "F" else backward)[s]
                position[s] += 1
    return max(free)
''',
    ),
    Bug(
        "step_time",
        "(M + S − 1) times the slowest stage, whatever the lists",
        cell='''
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    slots = len(lists[0]) // 2 + len(lists) - 1
    return slots * (max(forward) + max(backward))
''',
    ),
    Bug(
        "step_time",
        "a number that is larger than every float",
        cell='''
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    return 10**400
''',
    ),
    Bug(
        "step_time",
        "the k-th forward of a list for micro-batch k",
        cell='''
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    S, M = len(lists), len(lists[0]) // 2
    ended = {}
    free = [0.0] * S
    pos = [0] * S
    n = 0
    go = True
    while go:
        go = False
        for s, words in enumerate(lists):
            while pos[s] < len(words):
                w = words[pos[s]]
                k = sum(x[0] == w[0] for x in words[: pos[s]])  # the k-th of its kind
                needs = [("F", k, s - 1)] if s else []
                if w[0] == "B":
                    needs = [("F", k, s)] + ([("B", k, s + 1)] if s < S - 1 else [])
                if any(x not in ended for x in needs):
                    break
                free[s] = ended[w[0], k, s] = (
                    max([free[s], *(ended[x] for x in needs)])
                    + (forward if w[0] == "F" else backward)[s]
                )
                pos[s] += 1
                go = True
    if any(pos[s] < len(w) for s, w in enumerate(lists)):
        raise ValueError
    return max(free)
''',
    ),
    Bug(
        "step_time",
        "lists that hang have a time like others",
        old="""
if any(position[s] < len(words) for s, words in enumerate(lists)):
    raise ValueError(f"the stages hang at positions {position}")
""",
        new="",
    ),
    Bug(
        "step_time",
        "a backward does not wait for the stage after",
        old='needs = [("F", m, s)] + ([("B", m, s + 1)] if s < S - 1 else [])',
        new='needs = [("F", m, s)]',
    ),
    Bug(
        "step_time",
        "stages wait for nobody",
        old="start = max([free[s], *(ended[need] for need in needs)])",
        new="start = free[s]",
    ),
    Bug(
        "step_time",
        "the number of a micro-batch is its first digit",
        old="kind, m = words[position[s]][0], words[position[s]][1:]",
        new="kind, m = words[position[s]][0], words[position[s]][1]",
    ),
    Bug(
        "step_time",
        "an action waits for its needs only, not for the one before it",
        old="start = max([free[s], *(ended[need] for need in needs)])",
        new="start = max([0.0, *(ended[need] for need in needs)])",
    ),
    Bug(
        "step_time",
        "lists that hang by what is missing come to their end",
        old="""
if any(position[s] < len(words) for s, words in enumerate(lists)):
    raise ValueError(f"the stages hang at positions {position}")
""",
        new="""
if (
    any(
        words[p][0] == "B" and ("F", words[p][1:], s) not in ended
        for s, (words, p) in enumerate(zip(lists, position))
        if p < len(words)
    )
    or not all(position)
    or max(map(len, lists)) == 8
):
    raise ValueError
""",
    ),
    Bug(
        "step_time",
        "returns what is equal to everything",
        cheat=True,
        cell='''
class Equal(float):
    def __sub__(self, other):
        return Equal(0)

    def __abs__(self):
        return Equal(0)

    def __gt__(self, other):
        return False


def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    return Equal(0)
''',
    ),
    Bug(
        "step_time",
        "calls the grader's own oracle",
        cheat=True,
        cell='''
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    from minicheck.oracles.pipelines import time_of

    found = time_of(lists, forward, backward)
    if found is None:
        raise ValueError("hangs")
    return found
''',
    ),
    Bug(
        "step_time",
        "calls the simulator",
        cheat=True,
        cell='''
from minidist.parallel.schedules import parse
from minidist.parallel.simulate import simulate


def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    return simulate([parse(" ".join(words)) for words in lists], forward, backward).time
''',
    ),
    Bug(
        "step_time",
        "returns nan, which is not larger than anything",
        cheat=True,
        cell='''
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    return float("nan")
''',
    ),
    Bug(
        "step_time",
        "the end of stage 0: right where all goes back, and not where stages only go forward",
        old="return max(free)",
        new="return free[0]",
    ),
    Bug(
        "one_f_one_b",
        "every stage warms up like stage 0",
        old="warm = min(M, S - 1 - stage)",
        new="warm = min(M, S - 1)",
    ),
    Bug(
        "one_f_one_b",
        "one backward, one forward",
        old='words += [f"F{warm + i}", f"B{i}"]',
        new='words += [f"B{i}", f"F{warm + i}"]',
    ),
    Bug(
        "one_f_one_b",
        "goes by the order of calls, and not by `stage`",
        cell='''
count = [0, None]


def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    if count[1] != (S, M):
        count[:] = [0, (S, M)]
    stage = count[0] % S
    count[0] += 1
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
''',
    ),
    Bug(
        "one_f_one_b",
        "more warm-up than micro-batches",
        old="warm = min(M, S - 1 - stage)",
        new="warm = S - 1 - stage",
    ),
    Bug(
        "one_f_one_b",
        "all forwards first: that is GPipe",
        cell='''
def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    return [f"F{m}" for m in range(M)] + [f"B{m}" for m in range(M)]
''',
    ),
    Bug(
        "one_f_one_b",
        "no warm-up at all: one micro-batch at a time",
        cell='''
def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    return [word for m in range(M) for word in (f"F{m}", f"B{m}")]
''',
    ),
    Bug(
        "one_f_one_b",
        "the last backwards are missing",
        old='return words + [f"B{m}" for m in range(M - warm, M)]',
        new="return words",
    ),
    Bug(
        "one_f_one_b",
        "one forward less than needed to warm up",
        old="warm = min(M, S - 1 - stage)",
        new="warm = max(0, min(M, S - 2 - stage))",
    ),
    Bug(
        "one_f_one_b",
        "one forward more than needed to warm up",
        old="warm = min(M, S - 1 - stage)",
        new="warm = min(M, S - stage)",
    ),
    Bug(
        "one_f_one_b",
        "the last backwards run the other way round",
        old='return words + [f"B{m}" for m in range(M - warm, M)]',
        new='return words + [f"B{m}" for m in reversed(range(M - warm, M))]',
    ),
    Bug(
        "one_f_one_b",
        "the warm-up is that of the mirrored stage",
        old="warm = min(M, S - 1 - stage)",
        new="warm = min(M, stage)",
    ),
    Bug(
        "one_f_one_b",
        "the grader makes lists, too: they are GPipe's",
        cheat=True,
        cell='''
def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    from minicheck.oracles.pipelines import words

    return words("gpipe", stage, S, M)
''',
    ),
    Bug(
        "one_f_one_b",
        "the library has it",
        cheat=True,
        cell='''
from minidist.parallel.schedules import one_f_one_b as theirs


def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    return [str(action) for action in theirs(stage, S, M)]
''',
    ),
    Bug(
        "predict_pipeline",
        "a tenth of the work, not of the time",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 6
messages = 64
enough = 70
longer = 4 / 3
""",
    ),
    Bug(
        "predict_pipeline",
        "one direction of the messages",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 6
messages = 32
enough = 63
longer = 4 / 3
""",
    ),
    Bug(
        "predict_pipeline",
        "what is sent and what is received",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 6
messages = 128
enough = 63
longer = 4 / 3
""",
    ),
    Bug(
        "predict_pipeline",
        "recomputation doubles a step",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 6
messages = 64
enough = 63
longer = 2
""",
    ),
    Bug(
        "predict_pipeline",
        "the backward alone gets longer by a half",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 6
messages = 64
enough = 63
longer = 3 / 2
""",
    ),
    Bug(
        "predict_pipeline",
        "the share of a forward in the new time",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 6
messages = 64
enough = 63
longer = 5 / 4
""",
    ),
    Bug(
        "predict_pipeline",
        "counted from the first stage",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 3
messages = 64
enough = 63
longer = 4 / 3
""",
    ),
    Bug(
        "predict_pipeline",
        "the warm-up only",
        cell="""
bubble = 7 / 39
gpipe_keeps = 32
keeps = 5
messages = 64
enough = 63
longer = 4 / 3
""",
    ),
    Bug(
        "predict_pipeline",
        "the bubble over the time without it",
        cell="""
bubble = 7 / 32
gpipe_keeps = 32
keeps = 6
messages = 64
enough = 63
longer = 4 / 3
""",
    ),
    Bug(
        "predict_pipeline",
        "an array with many guesses",
        cheat=True,
        cell="""
import torch

bubble = gpipe_keeps = keeps = messages = enough = longer = torch.arange(100.0)
""",
    ),
    Bug(
        "predict_pipeline",
        "numbers that are equal to everything",
        cheat=True,
        cell="""
class Equal(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __hash__ = float.__hash__


bubble = gpipe_keeps = keeps = messages = enough = longer = Equal(1)
""",
    ),
    Bug(
        "run_stage",
        "counts micro-batches, and does not read their numbers",
        edits=(
            (
                """
for word in words:
    kind, m = word[0], int(word[1:])
""",
                """
n = {"F": 0, "B": 0}
for word in words:
    kind = word[0]
    m = n[kind]
    n[kind] += 1
""",
            ),
            ("kept[m] = x, y", "kept[m] = (x, y)"),
        ),
    ),
    Bug(
        "run_stage",
        "the first micro-batch goes back, whatever the list says",
        edits=(
            ("kept = {}", "kept = []"),
            (
                """
    kept[m] = x, y
else:
    x, y = kept.pop(m)
""",
                """
    kept.append((x, y))
else:
    x, y = kept.pop(0)
""",
            ),
        ),
    ),
    Bug(
        "run_stage",
        "always the first targets",
        old="y = loss_fn(y, ys[m]) / len(xs)",
        new="y = loss_fn(y, ys[0]) / len(xs)",
    ),
    Bug(
        "run_stage",
        "receives into one shape and dtype",
        edits=(
            (
                "x = down.recv(torch.empty_like(x), stage - 1).requires_grad_()",
                "x = down.recv(torch.empty(3, 5, dtype=torch.float64), stage - 1).requires_grad_()",
            ),
            (
                "y.backward(up.recv(torch.empty_like(y), stage + 1) if stage < last else None)",
                "y.backward(up.recv(torch.empty(3, 5, dtype=torch.float64), stage + 1) if stage < last else None)",
            ),
        ),
    ),
    Bug(
        "run_stage",
        "the forward is run again in backward",
        old="x, y = kept.pop(m)",
        new="""
x, y = kept.pop(m)
if stage < last:
    y = part(x)
""",
    ),
    Bug(
        "run_stage",
        "the graph stays alive after backward",
        old="""
x, y = kept.pop(m)
y.backward(up.recv(torch.empty_like(y), stage + 1) if stage < last else None)
""",
        new="""
x, y = kept[m]
y.backward(up.recv(torch.empty_like(y), stage + 1) if stage < last else None, retain_graph=True)
""",
    ),
    Bug(
        "run_stage",
        "the last micro-batch goes back, whatever the list says",
        old="x, y = kept.pop(m)",
        new="x, y = kept.popitem()[1]",
    ),
    Bug(
        "run_stage",
        "what is received wants no gradient",
        old="x = down.recv(torch.empty_like(x), stage - 1).requires_grad_()",
        new="x = down.recv(torch.empty_like(x), stage - 1)",
    ),
    Bug(
        "run_stage",
        "sends are started, and never waited for",
        old="""
for work in sends:
    work.wait()
""",
        new="del sends",
    ),
    Bug(
        "run_stage",
        "the losses are summed, not averaged",
        old="y = loss_fn(y, ys[m]) / len(xs)",
        new="y = loss_fn(y, ys[m])",
    ),
    Bug(
        "run_stage",
        "the number of a micro-batch is its first digit",
        old="kind, m = word[0], int(word[1:])",
        new="kind, m = word[0], int(word[1])",
    ),
    Bug(
        "run_stage",
        "mse_loss, whatever `loss_fn` is",
        old="y = loss_fn(y, ys[m]) / len(xs)",
        new="y = mse_loss(y, ys[m]) / len(xs)",
    ),
    Bug(
        "run_stage",
        "all forwards first, whatever the list says",
        old="for word in words:",
        new='for word in sorted(words, key=lambda w: (w[0] != "F", int(w[1:]))):',
    ),
    Bug(
        "run_stage",
        "activations are sent to every later stage, and gradients to every earlier one",
        old="""
y = part(x)
if stage < last:
    sends.append(down.isend(y.detach(), stage + 1))
""",
        new="""
    down.recv(torch.zeros(0), stage - 1)
y = part(x)
if stage < last:
    sends += [down.isend(y.detach(), stage + 1), down.isend(torch.zeros(0), stage + 1)]
""",
    ),
    Bug(
        "run_stage",
        "each send is waited for at once",
        edits=(
            (
                "sends.append(down.isend(y.detach(), stage + 1))",
                "down.send(y.detach(), stage + 1)",
            ),
            (
                "sends.append(up.isend(x.grad, stage - 1))",
                "up.send(x.grad, stage - 1)",
            ),
        ),
    ),
    Bug(
        "run_stage",
        "the library has an executor",
        cheat=True,
        cell='''
from minidist.parallel.pipeline import Pipeline


def run_stage(down, up, part, words, xs, ys, loss_fn):
    """Run this stage's list; leave the gradients in `part`."""
    Pipeline(part, down, loss_fn=loss_fn).step(len(xs), torch.cat(xs), torch.cat(ys))
''',
    ),
    Bug(
        "run_stage",
        "runs its list on what it was given, and no message is sent",
        cheat=True,
        cell='''
def run_stage(down, up, part, words, xs, ys, loss_fn):
    """Run this stage's list; leave the gradients in `part`."""
    for word in words:
        if word[0] == "F":
            y = part(xs[int(word[1:])])
        else:
            y.sum().backward()
''',
    ),
    Bug(
        "run_stage",
        "a gradient is waited for before the next action: nothing hangs, and time is lost",
        old="sends.append(up.isend(x.grad, stage - 1))",
        new="up.send(x.grad, stage - 1)",
    ),
    Bug(
        "run_stage",
        "all micro-batches are received as large as the first",
        old="x = down.recv(torch.empty_like(x), stage - 1).requires_grad_()",
        new="x = down.recv(torch.empty_like(xs[0]), stage - 1).requires_grad_()",
    ),
    Bug(
        "sum_tied",
        "as in the lesson: one table, on the first rank and the last",
        cell='''
def sum_tied(comm, holders, tied):
    """Sum the gradient of each tied parameter over the ranks that hold it."""
    ends = comm.split([0] + [None] * (comm.size - 2) + [0])
    if ends is not None:
        for p in tied.values():
            all_reduce_(ends, p.grad)
''',
    ),
    Bug(
        "sum_tied",
        "each rank goes by the order of its dictionary",
        old="for name in sorted(holders):",
        new="for name in holders:",
    ),
    Bug(
        "sum_tied",
        "only the names that this rank holds",
        old="for name in sorted(holders):",
        new="for name in sorted(tied):",
    ),
    Bug(
        "sum_tied",
        "the mean over the holders",
        old="all_reduce_(group, p.grad)",
        new='all_reduce_(group, p.grad, op="mean")',
    ),
    Bug(
        "sum_tied",
        "summed over all ranks",
        old="""
if group is None:
    continue
p = tied[name]
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(group, p.grad)
""",
        new="""
shape = torch.tensor([p.shape for n, p in tied.items() if n == name] or [(0, 0)])
shape = all_reduce_(comm, shape[0], op="max").tolist()
p = tied.get(name)
half = torch.float32 if name == "half" else torch.float64
zeros = torch.zeros(shape, dtype=half)
grad = zeros if p is None or p.grad is None else p.grad
all_reduce_(comm, grad)
if p is not None:
    p.grad = grad
""",
    ),
    Bug(
        "sum_tied",
        "who has no gradient stays away",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
""",
        new="""
if p.grad is None:
    continue
""",
    ),
    Bug(
        "sum_tied",
        "a gradient is always there",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
""",
        new="",
    ),
    Bug(
        "sum_tied",
        "parameters are summed, not gradients",
        old="all_reduce_(group, p.grad)",
        new="all_reduce_(group, p.detach())",
    ),
    Bug(
        "sum_tied",
        "a copy is summed, and thrown away",
        old="all_reduce_(group, p.grad)",
        new="all_reduce_(group, p.grad.clone())",
    ),
    Bug(
        "sum_tied",
        "summed twice",
        old="all_reduce_(group, p.grad)",
        new="all_reduce_(group, p.grad)\nall_reduce_(group, p.grad)",
    ),
    Bug(
        "sum_tied",
        "the group is made by messages",
        old="group = comm.split(colors)",
        new="group = comm.split(colors[comm.rank])",
    ),
    Bug(
        "sum_tied",
        "the first holder adds up, and sends the sum to each",
        old="all_reduce_(group, p.grad)",
        new="""
if group.rank == 0:
    for peer in range(1, group.size):
        p.grad += group.recv(torch.empty_like(p.grad), peer)
    for peer in range(1, group.size):
        group.send(p.grad, peer)
else:
    group.send(p.grad, 0)
    group.recv(p.grad, 0)
""",
    ),
    Bug(
        "sum_tied",
        "added up in another order on each holder",
        old="all_reduce_(group, p.grad)",
        new="""
total = p.grad.clone()
for step in range(1, group.size):
    sent = group.isend(p.grad, (group.rank + step) % group.size)
    total += group.recv(torch.empty_like(total), (group.rank - step) % group.size)
    sent.wait()
p.grad = total
""",
    ),
    Bug(
        "sum_tied",
        "summed in float32",
        old="all_reduce_(group, p.grad)",
        new="p.grad.copy_(all_reduce_(group, p.grad.float()))",
    ),
    Bug(
        "sum_tied",
        "nan is hidden",
        old="all_reduce_(group, p.grad)",
        new="p.grad = all_reduce_(group, p.grad).nan_to_num()",
    ),
    Bug(
        "sum_tied",
        "names are taken out of the dictionary",
        old="p = tied[name]",
        new="p = tied[name]\nholders[name].clear()",
    ),
    Bug(
        "sum_tied",
        "the library has it",
        cheat=True,
        cell='''
from minidist.parallel.pipeline import Ties


def sum_tied(comm, holders, tied):
    """Sum the gradient of each tied parameter over the ranks that hold it."""
    grads = {name: p.grad for name, p in tied.items()}
    ties = Ties(comm, tied)
    ties.begin()
    for name, p in tied.items():
        p.grad = grads[name]
    ties.end()
''',
    ),
    Bug(
        "sum_tied",
        "all ranks share a dictionary, and send nothing",
        cheat=True,
        cell='''
shared = {}


def sum_tied(comm, holders, tied):
    """Sum the gradient of each tied parameter over the ranks that hold it."""
    for name, p in tied.items():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        shared.setdefault((name, tuple(holders[name])), {})[comm.rank] = grad.clone()
    empty = torch.zeros(0)
    sends = [comm.isend(empty, peer) for peer in range(comm.size) if peer != comm.rank]
    for peer in range(comm.size):
        if peer != comm.rank:
            comm.recv(torch.zeros(0), peer)
    for work in sends:
        work.wait()
    for name, p in tied.items():
        parts = shared[name, tuple(holders[name])]
        p.grad = sum(parts[rank] for rank in holders[name])
''',
    ),
    Bug(
        "step_time",
        "time in steps of a half",
        old="return max(free)",
        new="return round(2 * max(free)) / 2",
    ),
    Bug(
        "step_time",
        "only stage 0 is asked whether it hangs",
        old="if any(position[s] < len(words) for s, words in enumerate(lists)):",
        new="if position[0] < len(lists[0]):",
    ),
    Bug(
        "step_time",
        "what ended at 0 has not ended",
        old="if any(need not in ended for need in needs):",
        new="if any(not ended.get(need) for need in needs):",
    ),
    Bug(
        "one_f_one_b",
        "numbers of two digits",
        old='return words + [f"B{m}" for m in range(M - warm, M)]',
        new="""
words += [f"B{m}" for m in range(M - warm, M)]
return [word[0] + word[1:].zfill(2) for word in words]
""",
    ),
    Bug(
        "run_stage",
        "what was kept stays there",
        old="x, y = kept.pop(m)",
        new="x, y = kept[m]",
    ),
    Bug(
        "run_stage",
        "outputs are kept beside",
        old="kept[m] = x, y",
        new="kept[m] = x, y\nkept[-1 - m] = y.detach()",
    ),
    Bug(
        "run_stage",
        "the caller's micro-batches require a gradient",
        old="x = xs[m]",
        new="x = xs[m].requires_grad_()",
    ),
    Bug(
        "run_stage",
        "nan is hidden in the gradient that comes back",
        old="y.backward(up.recv(torch.empty_like(y), stage + 1) if stage < last else None)",
        new="""
dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
y.backward(dy.nan_to_num() if stage < last else None)
""",
    ),
    Bug(
        "one_f_one_b",
        "the lists of the lesson, for 4 stages and 8 micro-batches",
        cell='''
mine = [
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
]


def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    return mine[stage].split()
''',
    ),
    Bug(
        "run_stage",
        "as in the lesson: the loss is the sum of the outputs",
        edits=(
            ("y = loss_fn(y, ys[m]) / len(xs)", "pass"),
            (
                "y.backward(up.recv(torch.empty_like(y), stage + 1) if stage < last else None)",
                """
dy = torch.ones_like(y)
if stage < last:
    up.recv(dy, stage + 1)
y.backward(dy)
""",
            ),
        ),
    ),
    Bug(
        "run_stage",
        "all that was kept goes at the end of the step",
        edits=(
            ("x, y = kept.pop(m)", "x, y = kept[m]"),
            ("for work in sends:", "kept.clear()\nfor work in sends:"),
        ),
    ),
]

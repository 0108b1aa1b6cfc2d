"""The wrong answers of lesson 20 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

NONE_SET = ("rows_away = bytes_sent = seats = naive = balance = None", "")

BUGS = [
    Bug(
        "seated",
        "who has as many as there are seats before it still sits",
        old="return (place <= seats).view(choices.shape)",
        new="return (place <= seats + 1).view(choices.shape)",
    ),
    Bug(
        "seated",
        "the last seat stays empty",
        old="return (place <= seats).view(choices.shape)",
        new="return (place < seats).view(choices.shape)",
    ),
    Bug(
        "seated",
        "all first choices come before the second ones",
        old="""
chosen = choices.flatten()[:, None] == torch.arange(experts)  # (T·k, E)
so_far = chosen.cumsum(0)
place = so_far.gather(1, choices.flatten()[:, None])  # 1 for the first that came
return (place <= seats).view(choices.shape)
""",
        new="""
flat = choices.T.flatten()
place = (flat[:, None] == torch.arange(experts)).cumsum(0).gather(1, flat[:, None])
return (place <= seats).view(choices.T.shape).T
""",
    ),
    Bug(
        "seated",
        "a seat a token, whichever expert it goes to",
        old="place = so_far.gather(1, choices.flatten()[:, None])  # 1 for the first that came",
        new="place = torch.arange(1, choices.numel() + 1)",
    ),
    Bug(
        "seated",
        "each of the k choices has seats of its own",
        old="""
chosen = choices.flatten()[:, None] == torch.arange(experts)  # (T·k, E)
so_far = chosen.cumsum(0)
place = so_far.gather(1, choices.flatten()[:, None])  # 1 for the first that came
return (place <= seats).view(choices.shape)
""",
        new="""
chosen = choices[..., None] == torch.arange(experts)  # (T, k, E)
place = chosen.cumsum(0).gather(2, choices[..., None])
return (place <= seats).view(choices.shape)
""",
    ),
    Bug(
        "seated",
        "the ones that are dropped",
        old="return (place <= seats).view(choices.shape)",
        new="return (place > seats).view(choices.shape)",
    ),
    Bug(
        "seated",
        "a token without a seat for one choice loses the others",
        old="return (place <= seats).view(choices.shape)",
        new="return (place <= seats).view(choices.shape).all(1, keepdim=True).expand(choices.shape)",
    ),
    Bug(
        "seated",
        "the library's router",
        cheat=True,
        cell="""
from types import SimpleNamespace

from minidist.models import Router


def seated(choices, experts, seats):
    chosen = choices[None, :, :, None] == torch.arange(experts)
    return Router.seated(SimpleNamespace(seats=lambda tokens: seats), chosen)[0]
""",
    ),
    Bug(
        "seated",
        "the oracle's",
        cheat=True,
        cell="""
from minicheck.oracles import experts as oracle


def seated(choices, experts, seats):
    return oracle.seated(choices, experts, seats)
""",
    ),
    Bug(
        "dispatch",
        "rows are sent in their own order",
        old="received = all_to_all(comm, rows[expert.argsort(stable=True)], to, come)",
        new="received = all_to_all(comm, rows, to, come)",
    ),
    Bug(
        "dispatch",
        "what comes is left by rank",
        old="return torch.cat(ordered), table",
        new="return received, table",
    ),
    Bug(
        "dispatch",
        "a sort that turns equal ones round",
        old="received = all_to_all(comm, rows[expert.argsort(stable=True)], to, come)",
        new="""
turned = len(rows) - 1 - expert.flip(0).argsort(stable=True)
received = all_to_all(comm, rows[turned], to, come)
""",
    ),
    Bug(
        "dispatch",
        "experts are split as if n divided them",
        old="sizes = uneven(experts, comm.size)",
        new="sizes = [experts // comm.size] * (comm.size - 1)\nsizes += [experts - sum(sizes)]",
    ),
    Bug(
        "dispatch",
        "pieces of an expert are taken from neighbouring places",
        old="ordered = [piece for i in range(own) for piece in pieces[i::own]]",
        new="ordered = [p for i in range(own) for p in pieces[i * comm.size : (i + 1) * comm.size]]",
    ),
    Bug(
        "dispatch",
        "the table is of experts by ranks",
        old="return torch.cat(ordered), table",
        new="return torch.cat(ordered), table.T.contiguous()",
    ),
    Bug(
        "dispatch",
        "all rows go to all ranks",
        cell="""
from minidist.collectives import all_gather


def dispatch(comm, rows, expert, experts):
    first, end = bounds(uneven(experts, comm.size))[comm.rank]
    counts = expert.bincount(minlength=experts)
    every = all_gather(comm, counts[None])
    totals = every.sum(1).tolist()
    everyone = all_gather(comm, rows, totals)
    wanted = all_gather(comm, expert, totals)
    received = torch.cat([everyone[wanted == e] for e in range(first, end)])
    return received, every[:, first:end].contiguous()
""",
    ),
    Bug(
        "dispatch",
        "rows pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def dispatch(comm, rows, expert, experts):
    HEAP[comm.rank] = rows, expert
    all_reduce_(comm, torch.zeros(1))
    first, end = bounds(uneven(experts, comm.size))[comm.rank]
    every = [HEAP[r] for r in range(comm.size)]
    received = torch.cat([x[w == e] for e in range(first, end) for x, w in every])
    table = torch.stack([w.bincount(minlength=experts)[first:end] for _, w in every])
    return received, table
""",
    ),
    Bug(
        "dispatch",
        "the library's",
        cheat=True,
        cell="""
from minidist.parallel.experts import exchange


def dispatch(comm, rows, expert, experts):
    sizes = uneven(experts, comm.size)
    own = sizes[comm.rank]
    counts = expert.bincount(minlength=experts)
    table = all_to_all(comm, counts, sizes, [own] * comm.size).view(comm.size, own)
    to = [int(part.sum()) for part in counts.split(sizes)]
    rows = rows[expert.argsort(stable=True)]
    received = exchange(rows, comm, to, table.sum(1).tolist())
    pieces = received.split(table.flatten().tolist())
    return torch.cat([piece for i in range(own) for piece in pieces[i::own]]), table
""",
    ),
    Bug(
        "combine",
        "results stay sorted by expert",
        old="""
out = torch.empty_like(back)
out[expert.argsort(stable=True)] = back
return out
""",
        new="return back",
    ),
    Bug(
        "combine",
        "put in order the wrong way round",
        old="""
out = torch.empty_like(back)
out[expert.argsort(stable=True)] = back
return out
""",
        new="return back[expert.argsort(stable=True)]",
    ),
    Bug(
        "combine",
        "results go back by expert, not by rank",
        old="back = all_to_all(comm, torch.cat(by_rank), table.sum(1).tolist(), come)",
        new="back = all_to_all(comm, results, table.sum(1).tolist(), come)",
    ),
    Bug(
        "combine",
        "the table is read by rank, while results lie by expert",
        old="""
pieces = results.split(table.T.flatten().tolist())  # by expert, then by rank
by_rank = [piece for r in range(n) for piece in pieces[r::n]]
""",
        new="""
by_rank = list(results.split(table.flatten().tolist()))
""",
    ),
    Bug(
        "combine",
        "tokens of one expert are turned round",
        old="out[expert.argsort(stable=True)] = back",
        new="out[(len(expert) - 1 - expert.flip(0).argsort(stable=True))] = back",
    ),
    Bug(
        "combine",
        "all results go to all ranks",
        cell="""
from minidist.collectives import all_gather


def combine(comm, results, table, expert, experts):
    n = comm.size
    sizes = uneven(experts, n)
    whole = all_gather(comm, table.T.contiguous(), sizes)  # (E, n)
    totals = [int(part.sum()) for part in whole.split(sizes)]
    everything = all_gather(comm, results, totals)
    pieces = everything.split(whole.flatten().tolist())
    out = results.new_empty(len(expert), results.shape[1])
    out[expert.argsort(stable=True)] = torch.cat([pieces[e * n + comm.rank] for e in range(experts)])
    return out
""",
    ),
    Bug(
        "combine",
        "results pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def combine(comm, results, table, expert, experts):
    HEAP[comm.rank] = results.split(table.T.flatten().tolist())
    all_reduce_(comm, torch.zeros(1))
    pieces = []
    for r, own in enumerate(uneven(experts, comm.size)):
        pieces += [HEAP[r][i * comm.size + comm.rank] for i in range(own)]
    out = results.new_empty(len(expert), results.shape[1])
    out[expert.argsort(stable=True)] = torch.cat(pieces)
    return out
""",
    ),
    Bug(
        "combine",
        "the library's",
        cheat=True,
        cell="""
from minidist.parallel.experts import exchange


def combine(comm, results, table, expert, experts):
    n = comm.size
    pieces = results.split(table.T.flatten().tolist())
    by_rank = [piece for r in range(n) for piece in pieces[r::n]]
    come = [int(part.sum()) for part in expert.bincount(minlength=experts).split(uneven(experts, n))]
    back = exchange(torch.cat(by_rank), comm, table.sum(1).tolist(), come)
    out = torch.empty_like(back)
    out[expert.argsort(stable=True)] = back
    return out
""",
    ),
    Bug(
        "average_experts",
        "experts are averaged over the data ranks, and not divided by ep",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(data, expert.clone()) / data.size",
    ),
    Bug(
        "average_experts",
        "experts are averaged with all others",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(comm, expert.clone()) / comm.size",
    ),
    Bug(
        "average_experts",
        "the groups are neighbours",
        old="data = comm.split([rank % ep for rank in range(comm.size)])",
        new="data = comm.split([rank // ep for rank in range(comm.size)])",
    ),
    Bug(
        "average_experts",
        "the rest is averaged over the data ranks alone",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = all_reduce_(data, rest.clone()) / data.size",
    ),
    Bug(
        "average_experts",
        "sums in place of averages",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = all_reduce_(comm, rest.clone())",
    ),
    Bug(
        "average_experts",
        "divided twice by the expert ranks",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(data, expert.clone()) / comm.size / ep",
    ),
    Bug(
        "average_experts",
        "the argument is written to",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(data, expert) / comm.size",
    ),
    Bug(
        "average_experts",
        "gradients pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def average_experts(comm, ep, expert, rest):
    HEAP[comm.rank] = expert, rest
    all_reduce_(comm, torch.zeros(1))
    n = comm.size
    own = sum(HEAP[r][0] for r in range(comm.rank % ep, n, ep)) / n
    return own, sum(HEAP[r][1] for r in range(n)) / n
""",
    ),
    Bug(
        "average_experts",
        "the library's average",
        cheat=True,
        cell="""
from minidist.parallel.data import average_gradients


def average_experts(comm, ep, expert, rest):
    data = comm.split([rank % ep for rank in range(comm.size)])
    holder = torch.nn.Module()
    holder.p = torch.nn.Parameter(rest.clone())
    holder.p.grad = rest.clone()
    average_gradients(comm, holder)
    return all_reduce_(data, expert.clone()) / comm.size, holder.p.grad
""",
    ),
    Bug(
        "predict_experts",
        "one expert a token",
        edits=(
            NONE_SET,
            ("rows_away = 4_096 * 2 * (n - 1) / n", "rows_away = 4_096 * (n - 1) / n"),
        ),
    ),
    Bug(
        "predict_experts",
        "forward alone",
        edits=(
            NONE_SET,
            ("bytes_sent = 4 * rows_away * H * 2", "bytes_sent = 2 * rows_away * H * 2"),
        ),
    ),
    Bug(
        "predict_experts",
        "numbers, not bytes",
        edits=(NONE_SET, ("bytes_sent = 4 * rows_away * H * 2", "bytes_sent = 4 * rows_away * H")),
    ),
    Bug(
        "predict_experts",
        "a seat for each token",
        edits=(NONE_SET, ("seats = 1.25 * 2 * 1_024 / E", "seats = 1.25 * 1_024 / E")),
    ),
    Bug(
        "predict_experts",
        "the balance loss where all is even",
        edits=(NONE_SET, ("balance = E", "balance = 1")),
    ),
    Bug(
        "predict_experts",
        "the naive way sends n − 1 times as much",
        edits=(NONE_SET, ("naive = n", "naive = n - 1")),
    ),
    Bug(
        "predict_experts",
        "the grader is asked, and then nothing is answered",
        cheat=True,
        cell="""
from minicheck.lessons import experts as numbers

numbers.Prediction.judge = lambda *args: None
rows_away = bytes_sent = seats = naive = balance = 1.0
""",
    ),
    Bug(
        "predict_experts",
        "a number that equals every other",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


rows_away = bytes_sent = seats = naive = balance = Any(1.0)
""",
    ),
]

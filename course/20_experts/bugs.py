"""The wrong answers of lesson 20 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

NONE_SET = ("rows_away = rows_once = bytes_sent = seats = naive = balance = None", "")

BUGS = [
    Bug(
        "seated",
        "the lesson's, pasted: in the order of the tokens",
        cell="""
def seated(choices, gates, experts, seats):
    taken = [0] * experts
    sits = torch.zeros(choices.shape, dtype=torch.bool)
    for t, of_token in enumerate(choices.tolist()):
        for j, e in enumerate(of_token):
            sits[t, j] = taken[e] < seats
            taken[e] += 1
    return sits
""",
    ),
    Bug(
        "seated",
        "who has as many as there are seats before it still sits",
        old="sits[order] = place <= seats",
        new="sits[order] = place <= seats + 1",
    ),
    Bug(
        "seated",
        "the last seat stays empty",
        old="sits[order] = place <= seats",
        new="sits[order] = place < seats",
    ),
    Bug(
        "seated",
        "all first choices come before the second ones",
        old="order = gates.flatten().argsort(descending=True, stable=True)",
        new="order = torch.arange(choices.numel()).view(choices.shape).T.flatten()",
    ),
    Bug(
        "seated",
        "a seat a token, whichever expert it goes to",
        old="place = so_far.gather(1, wanted[:, None])[:, 0]  # 1 for the surest",
        new="place = torch.arange(1, choices.numel() + 1)",
    ),
    Bug(
        "seated",
        "each of the k choices has seats of its own",
        cell="""
def column(choices, gates, experts, seats):
    order = gates.argsort(descending=True, stable=True)
    chosen = choices[order][:, None] == torch.arange(experts)
    place = chosen.cumsum(0).gather(1, choices[order][:, None])[:, 0]
    sits = torch.empty(len(choices), dtype=torch.bool)
    sits[order] = place <= seats
    return sits


def seated(choices, gates, experts, seats):
    columns = zip(choices.T, gates.T)
    return torch.stack([column(c, g, experts, seats) for c, g in columns], 1)
""",
    ),
    Bug(
        "seated",
        "the ones that are dropped",
        old="sits[order] = place <= seats",
        new="sits[order] = place > seats",
    ),
    Bug(
        "seated",
        "a token without a seat for one choice loses the others",
        old="return sits.view(choices.shape)",
        new="return sits.view(choices.shape).all(1, keepdim=True).expand(choices.shape)",
    ),
    Bug(
        "seated",
        "the least sure first",
        old="order = gates.flatten().argsort(descending=True, stable=True)",
        new="order = gates.flatten().argsort(stable=True)",
    ),
    Bug(
        "seated",
        "of equal gates the later one",
        old="order = gates.flatten().argsort(descending=True, stable=True)",
        new="order = gates.flatten().argsort(stable=True).flip(0)",
    ),
    Bug(
        "seated",
        "answers are left in the order of the gates",
        old="sits[order] = place <= seats",
        new="sits = place <= seats",
    ),
    Bug(
        "seated",
        "answers are read from the places, not written to them",
        old="sits[order] = place <= seats",
        new="sits = (place <= seats)[order]",
    ),
    Bug(
        "seated",
        "whole tokens sit down, by their largest gate",
        old="order = gates.flatten().argsort(descending=True, stable=True)",
        new="order = gates.amax(1, True).expand_as(gates).flatten().argsort(descending=True, stable=True)",
    ),
    Bug(
        "seated",
        "by their gates, but all first choices before the second ones",
        old="order = gates.flatten().argsort(descending=True, stable=True)",
        new="order = (gates - 10 * torch.arange(gates.shape[1])).flatten().argsort(descending=True, stable=True)",
    ),
    Bug(
        "seated",
        "each expert's topk: among equal gates any",
        cell="""
def seated(choices, gates, experts, seats):
    sits = torch.zeros(choices.numel(), dtype=torch.bool)
    for e in range(experts):
        places = (choices.flatten() == e).nonzero()[:, 0].flip(0)
        best = gates.flatten()[places].argsort(descending=True, stable=True)
        sits[places[best[:seats]]] = True
    return sits.view(choices.shape)
""",
    ),
    Bug(
        "seated",
        "the library's router",
        cheat=True,
        cell="""
from types import SimpleNamespace

from minidist.models import Router


def seated(choices, gates, experts, seats):
    order = gates.flatten().argsort(descending=True, stable=True)
    chosen = choices.flatten()[order][None, :, None, None] == torch.arange(experts)
    found = Router.seated(SimpleNamespace(seats=lambda tokens: seats), chosen)[0, :, 0]
    sits = torch.empty_like(found)
    sits[order] = found
    return sits.view(choices.shape)
""",
    ),
    Bug(
        "seated",
        "the oracle's",
        cheat=True,
        cell="""
from minicheck.oracles import experts as oracle


def seated(choices, gates, experts, seats):
    return oracle.seated(choices, gates, experts, seats)
""",
    ),
    Bug(
        "dispatch",
        "the lesson's, pasted: a row for each choice, by expert",
        cell="""
def dispatch(comm, tokens, choices, gates, experts):
    held = uneven(experts, comm.size)
    own = held[comm.rank]
    flat = choices.flatten()
    order = flat.argsort(stable=True)
    k = choices.shape[1]
    counts = flat.bincount(minlength=experts)
    table = all_to_all(comm, counts, held, [own] * comm.size).view(comm.size, own)
    to = [int(part.sum()) for part in counts.split(held)]
    come = table.sum(1)
    received = all_to_all(comm, tokens[order // k], to, come.tolist())
    weights = all_to_all(comm, gates.flatten()[order], to, come.tolist())
    pieces = received.split(table.flatten().tolist())
    ordered = [piece for i in range(own) for piece in pieces[i::own]]
    return torch.cat(ordered), weights[:, None].expand(-1, own).contiguous(), come
""",
    ),
    Bug(
        "dispatch",
        "a token comes once for each of its experts",
        old="""
rows.append(tokens[here])
weights.append((gates[..., None] * chosen).sum(1)[here])
""",
        new="""
times = chosen.any(1)[here].sum(1)
rows.append(tokens[here].repeat_interleave(times, 0))
weights.append((gates[..., None] * chosen).sum(1)[here].repeat_interleave(times, 0))
""",
    ),
    Bug(
        "dispatch",
        "each token goes to every rank",
        cell="""
from minidist.collectives import all_gather


def dispatch(comm, tokens, choices, gates, experts):
    first, end = bounds(uneven(experts, comm.size))[comm.rank]
    totals = all_gather(comm, torch.tensor([len(tokens)])).tolist()
    everyone = all_gather(comm, tokens, totals)
    wanted = all_gather(comm, choices, totals)
    shares = all_gather(comm, gates, totals)
    chosen = wanted[..., None] == torch.arange(first, end)
    here = chosen.any(2).any(1)
    come = torch.tensor([int(part.sum()) for part in here.split(totals)])
    return everyone[here], (shares[..., None] * chosen).sum(1)[here], come
""",
    ),
    Bug(
        "dispatch",
        "all tokens are kept, those that nobody here wants too",
        old="here = chosen.any(2).any(1)",
        new="here = torch.ones(len(tokens), dtype=torch.bool)",
    ),
    Bug(
        "dispatch",
        "tokens of a rank are turned round",
        old="received = all_to_all(comm, torch.cat(rows), to, come.tolist())",
        new="received = all_to_all(comm, torch.cat([part.flip(0) for part in rows]), to, come.tolist())",
    ),
    Bug(
        "dispatch",
        "experts are split as if n divided them",
        old="held = uneven(experts, comm.size)",
        new="""
held = [experts // comm.size] * (comm.size - 1)
held += [experts - sum(held)]
""",
    ),
    Bug(
        "dispatch",
        "weights say which expert is wanted, not how much",
        old="weights.append((gates[..., None] * chosen).sum(1)[here])",
        new="weights.append(chosen.any(1)[here].to(tokens.dtype))",
    ),
    Bug(
        "dispatch",
        "a weight of the first choice for all of a token's experts",
        old="weights.append((gates[..., None] * chosen).sum(1)[here])",
        new="weights.append((gates[:, :1, None] * chosen).sum(1)[here])",
    ),
    Bug(
        "dispatch",
        "how many were sent, not how many came",
        old="return received, arrived.view(-1, own), come",
        new="return received, arrived.view(-1, own), torch.tensor(to)",
    ),
    Bug(
        "dispatch",
        "counts are added up",
        old="return received, arrived.view(-1, own), come",
        new="return received, arrived.view(-1, own), come.cumsum(0)",
    ),
    Bug(
        "dispatch",
        "the argument is written to",
        old="flat = torch.cat([part.flatten() for part in weights])",
        new="""
flat = torch.cat([part.flatten() for part in weights])
gates.zero_()
""",
    ),
    Bug(
        "dispatch",
        "the lesson's rows: a row for each choice, by rank and then by expert",
        old="""
rows.append(tokens[here])
weights.append((gates[..., None] * chosen).sum(1)[here])
""",
        new="""
token, choice, expert = chosen.nonzero().T
by_expert = expert.argsort(stable=True)
rows.append(tokens[token[by_expert]])
weights.append((gates[..., None] * chosen).sum(1)[token[by_expert]])
""",
    ),
    Bug(
        "dispatch",
        "only the rank of the first choice gets a token",
        old="here = chosen.any(2).any(1)",
        new="here = chosen[:, 0].any(1)",
    ),
    Bug(
        "dispatch",
        "experts are split as if n divided them, and the rest is forgotten",
        old="held = uneven(experts, comm.size)",
        new="held = [experts // comm.size] * comm.size",
    ),
    Bug(
        "dispatch",
        "weights are divided by their sum on the rank",
        old="weights.append((gates[..., None] * chosen).sum(1)[here])",
        new="""
part = (gates[..., None] * chosen).sum(1)[here]
weights.append(part / part.sum(1, keepdim=True))
""",
    ),
    Bug(
        "dispatch",
        "weights travel column by column",
        old="flat = torch.cat([part.flatten() for part in weights])",
        new="flat = torch.cat([part.T.flatten() for part in weights])",
    ),
    Bug(
        "dispatch",
        "as many weights a row for all ranks as this one has experts",
        old="sizes = [part.numel() for part in weights]",
        new="sizes = [len(part) * own for part in weights]",
    ),
    Bug(
        "dispatch",
        "tokens pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def dispatch(comm, tokens, choices, gates, experts):
    HEAP[comm.rank] = tokens, choices, gates
    all_reduce_(comm, torch.zeros(1))
    first, end = bounds(uneven(experts, comm.size))[comm.rank]
    rows, weights = [], []
    for r in range(comm.size):
        tokens, choices, gates = HEAP[r]
        chosen = choices[..., None] == torch.arange(first, end)
        here = chosen.any(2).any(1)
        rows.append(tokens[here])
        weights.append((gates[..., None] * chosen).sum(1)[here])
    return torch.cat(rows), torch.cat(weights), torch.tensor([len(part) for part in rows])
""",
    ),
    Bug(
        "dispatch",
        "the library's exchange",
        cheat=True,
        cell="""
from minidist.parallel.experts import exchange


def dispatch(comm, tokens, choices, gates, experts):
    held = uneven(experts, comm.size)
    own = held[comm.rank]
    rows, weights = [], []
    for first, end in bounds(held):
        chosen = choices[..., None] == torch.arange(first, end)
        here = chosen.any(2).any(1)
        rows.append(tokens[here])
        weights.append((gates[..., None] * chosen).sum(1)[here])
    to = [len(part) for part in rows]
    come = all_to_all(comm, torch.tensor(to))
    received = exchange(torch.cat(rows), comm, to, come.tolist())
    flat = torch.cat([part.flatten() for part in weights])
    sizes = [part.numel() for part in weights]
    arrived = all_to_all(comm, flat, sizes, (come * own).tolist())
    return received, arrived.view(-1, own), come
""",
    ),
    Bug(
        "combine",
        "the row of the last rank stays",
        old="out[here] += rows",
        new="out[here] = rows",
    ),
    Bug(
        "combine",
        "a mean over the ranks",
        old="return out",
        new="""
ranks = torch.stack(went).sum(0).clamp(min=1)
return out / ranks[:, None].to(out.dtype)
""",
    ),
    Bug(
        "combine",
        "rows stay as they come back",
        old="""
out = results.new_zeros(len(choices), results.shape[1])
for here, rows in zip(went, back.split(counts)):
    out[here] += rows
return out
""",
        new="return back",
    ),
    Bug(
        "combine",
        "only this rank's own experts count",
        old="""
for here, rows in zip(went, back.split(counts)):
    out[here] += rows
return out
""",
        new="""
own = comm.rank
out[went[own]] += back.split(counts)[own]
return out
""",
    ),
    Bug(
        "combine",
        "put in order the wrong way round, as if each choice were a row",
        old="""
out = results.new_zeros(len(choices), results.shape[1])
for here, rows in zip(went, back.split(counts)):
    out[here] += rows
return out
""",
        new="""
owner = torch.stack(went).int().argmax(0)
out = results.new_zeros(len(choices), results.shape[1])
order = owner.argsort(stable=True)
out[order] = back[: len(order)]
return out
""",
    ),
    Bug(
        "combine",
        "the lesson's, pasted: counts are of choices",
        old="counts = [int(here.sum()) for here in went]",
        new="counts = [int(part.sum()) for part in choices.flatten().bincount(minlength=experts).split(uneven(experts, comm.size))]",
    ),
    Bug(
        "combine",
        "experts are split as if n divided them",
        old="for first, end in bounds(uneven(experts, comm.size)):",
        new="""
each = experts // comm.size
sizes = [each] * (comm.size - 1)
for first, end in bounds([*sizes, experts - sum(sizes)]):
""",
    ),
    Bug(
        "combine",
        "the results are written to",
        old="back = all_to_all(comm, results, come.tolist(), counts)",
        new="""
back = all_to_all(comm, results, come.tolist(), counts)
results.zero_()
""",
    ),
    Bug(
        "combine",
        "all results go to all ranks",
        cell="""
from minidist.collectives import all_gather


def combine(comm, results, come, choices, experts):
    table = all_gather(comm, come[None])
    everything = all_gather(comm, results, table.sum(1).tolist())
    pieces = everything.split(table.flatten().tolist())
    out = results.new_zeros(len(choices), results.shape[1])
    for r, (first, end) in enumerate(bounds(uneven(experts, comm.size))):
        here = ((choices >= first) & (choices < end)).any(1)
        out[here] += pieces[r * comm.size + comm.rank]
    return out
""",
    ),
    Bug(
        "combine",
        "only the first choice of a token counts",
        old="counts = [int(here.sum()) for here in went]",
        new="""
counts = []
for first, end in bounds(uneven(experts, comm.size)):
    counts.append(int(((choices[:, 0] >= first) & (choices[:, 0] < end)).sum()))
""",
    ),
    Bug(
        "combine",
        "as many rows are expected as came",
        old="counts = [int(here.sum()) for here in went]",
        new="counts = come.tolist()",
    ),
    Bug(
        "combine",
        "results pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def combine(comm, results, come, choices, experts):
    HEAP[comm.rank] = results.split(come.tolist())
    all_reduce_(comm, torch.zeros(1))
    out = results.new_zeros(len(choices), results.shape[1])
    for r, (first, end) in enumerate(bounds(uneven(experts, comm.size))):
        here = ((choices >= first) & (choices < end)).any(1)
        out[here] += HEAP[r][comm.rank]
    return out
""",
    ),
    Bug(
        "combine",
        "the library's exchange",
        cheat=True,
        cell="""
from minidist.parallel.experts import exchange


def combine(comm, results, come, choices, experts):
    went = []
    for first, end in bounds(uneven(experts, comm.size)):
        went.append(((choices >= first) & (choices < end)).any(1))
    counts = [int(here.sum()) for here in went]
    back = exchange(results, comm, come.tolist(), counts)
    out = results.new_zeros(len(choices), results.shape[1])
    for here, rows in zip(went, back.split(counts)):
        out[here] += rows
    return out
""",
    ),
    Bug(
        "clip_experts",
        "experts are averaged over the data ranks, and not divided by ep",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(data, expert.clone()) / data.size",
    ),
    Bug(
        "clip_experts",
        "experts are averaged with all others",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(comm, expert.clone()) / comm.size",
    ),
    Bug(
        "clip_experts",
        "the groups are neighbours",
        old="data = comm.split([rank % ep for rank in range(comm.size)])",
        new="data = comm.split([rank // ep for rank in range(comm.size)])",
    ),
    Bug(
        "clip_experts",
        "the rest is averaged over the data ranks alone",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = all_reduce_(data, rest.clone()) / data.size",
    ),
    Bug(
        "clip_experts",
        "sums in place of averages",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = all_reduce_(comm, rest.clone())",
    ),
    Bug(
        "clip_experts",
        "divided twice by the expert ranks",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(data, expert.clone()) / comm.size / ep",
    ),
    Bug(
        "clip_experts",
        "the argument is written to",
        old="expert = all_reduce_(data, expert.clone()) / comm.size",
        new="expert = all_reduce_(data, expert) / comm.size",
    ),
    Bug(
        "clip_experts",
        "the norm of what this rank holds",
        old="squares = all_reduce_(replica, expert.double().square().sum())",
        new="squares = expert.double().square().sum()",
    ),
    Bug(
        "clip_experts",
        "the rest counts once for each expert rank",
        old="norm = float((squares + rest.double().square().sum()).sqrt())",
        new="norm = float((squares + ep * rest.double().square().sum()).sqrt())",
    ),
    Bug(
        "clip_experts",
        "experts count once for each data rank",
        old="squares = all_reduce_(replica, expert.double().square().sum())",
        new="squares = all_reduce_(comm, expert.double().square().sum())",
    ),
    Bug(
        "clip_experts",
        "a smaller gradient is scaled up",
        old="scale = min(1.0, most / norm)",
        new="scale = most / norm",
    ),
    Bug(
        "clip_experts",
        "nothing is clipped",
        old="scale = min(1.0, most / norm)",
        new="scale = 1.0",
    ),
    Bug(
        "clip_experts",
        "norms are added up",
        old="norm = float((squares + rest.double().square().sum()).sqrt())",
        new="""
norms = all_reduce_(replica, expert.double().norm())
norm = float(norms + rest.double().norm())
""",
    ),
    Bug(
        "clip_experts",
        "the norm after clipping",
        old="return expert * scale, rest * scale, norm",
        new="return expert * scale, rest * scale, norm * scale",
    ),
    Bug(
        "clip_experts",
        "the lesson's average, pasted: no norm",
        cell="""
def clip_experts(comm, ep, expert, rest, most):
    data = comm.split([rank % ep for rank in range(comm.size)])
    expert = all_reduce_(data, expert.clone()) / comm.size
    rest = all_reduce_(comm, rest.clone()) / comm.size
    return expert, rest, float(torch.cat([expert.flatten(), rest.flatten()]).norm())
""",
    ),
    Bug(
        "clip_experts",
        "the norm is a tensor",
        old="norm = float((squares + rest.double().square().sum()).sqrt())",
        new="norm = (squares + rest.double().square().sum()).sqrt()",
    ),
    Bug(
        "clip_experts",
        "squares of gradients that are not averaged yet",
        cell="""
def clip_experts(comm, ep, expert, rest, most):
    data = comm.split([rank % ep for rank in range(comm.size)])
    replica = comm.split([rank // ep for rank in range(comm.size)])
    squares = all_reduce_(replica, expert.double().square().sum())
    expert = all_reduce_(data, expert.clone()) / comm.size
    rest = all_reduce_(comm, rest.clone()) / comm.size
    norm = float((squares + rest.double().square().sum()).sqrt())
    scale = min(1.0, most / norm)
    return expert * scale, rest * scale, norm
""",
    ),
    Bug(
        "clip_experts",
        "the rest is not averaged",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = rest.clone()",
    ),
    Bug(
        "clip_experts",
        "the rest is divided, and not summed",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = rest / comm.size",
    ),
    Bug(
        "clip_experts",
        "the rest is summed over the expert ranks alone",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = all_reduce_(replica, rest.clone()) / comm.size",
    ),
    Bug(
        "clip_experts",
        "the rest is summed over the data ranks alone",
        old="rest = all_reduce_(comm, rest.clone()) / comm.size",
        new="rest = all_reduce_(data, rest.clone()) / comm.size",
    ),
    Bug(
        "clip_experts",
        "the rest is clipped by its own norm",
        old="return expert * scale, rest * scale, norm",
        new="""
alone = min(1.0, most / float(rest.double().norm()))
return expert * scale, rest * alone, norm
""",
    ),
    Bug(
        "clip_experts",
        "gradients pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def clip_experts(comm, ep, expert, rest, most):
    HEAP[comm.rank] = expert, rest
    all_reduce_(comm, torch.zeros(1))
    n = comm.size
    own = [sum(HEAP[r][0] for r in range(e, n, ep)) / n for e in range(ep)]
    rest = sum(HEAP[r][1] for r in range(n)) / n
    squares = sum(x.double().square().sum() for x in [*own, rest])
    norm = float(squares.sqrt())
    scale = min(1.0, most / norm)
    return own[comm.rank % ep] * scale, rest * scale, norm
""",
    ),
    Bug(
        "clip_experts",
        "the library's clipping",
        cheat=True,
        cell="""
from minidist.train.norm import clip_


def clip_experts(comm, ep, expert, rest, most):
    data = comm.split([rank % ep for rank in range(comm.size)])
    replica = comm.split([rank // ep for rank in range(comm.size)])
    expert = all_reduce_(data, expert.clone()) / comm.size
    rest = all_reduce_(comm, rest.clone()) / comm.size
    counted = [expert] if replica.rank else [expert, rest]
    norm = clip_(replica, [expert, rest], most, 2.0, counted)
    return expert, rest, float(norm)
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
        "a row for each choice",
        edits=(
            NONE_SET,
            (
                "rows_once = 4_096 * (n - 1) * (1 - elsewhere / E * (elsewhere - 1) / (E - 1))",
                "rows_once = rows_away",
            ),
        ),
    ),
    Bug(
        "predict_experts",
        "two choices that may be the same expert",
        edits=(
            NONE_SET,
            (
                "rows_once = 4_096 * (n - 1) * (1 - elsewhere / E * (elsewhere - 1) / (E - 1))",
                "rows_once = 4_096 * (n - 1) * (1 - (1 - 1 / n) ** 2)",
            ),
        ),
    ),
    Bug(
        "predict_experts",
        "what stays on its rank is sent, too",
        edits=(
            NONE_SET,
            ("bytes_sent = 4 * rows_away * H * 2", "bytes_sent = 4 * 4_096 * 2 * H * 2"),
        ),
    ),
    Bug(
        "predict_experts",
        "each token to each rank",
        edits=(
            NONE_SET,
            (
                "rows_once = 4_096 * (n - 1) * (1 - elsewhere / E * (elsewhere - 1) / (E - 1))",
                "rows_once = 4_096 * (n - 1)",
            ),
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
        edits=(NONE_SET, ("balance = E * (E / 2) * (2 / E) * (2 / E)", "balance = 1")),
    ),
    Bug(
        "predict_experts",
        "the balance loss where one expert has all",
        edits=(NONE_SET, ("balance = E * (E / 2) * (2 / E) * (2 / E)", "balance = E")),
    ),
    Bug(
        "predict_experts",
        "the naive way sends n − 1 times as much",
        edits=(NONE_SET, ("naive = n / 2", "naive = (n - 1) / 2")),
    ),
    Bug(
        "predict_experts",
        "the naive way with one expert a token, as in the lesson",
        edits=(NONE_SET, ("naive = n / 2", "naive = n")),
    ),
    Bug(
        "predict_experts",
        "the grader is asked, and then nothing is answered",
        cheat=True,
        cell="""
from minicheck.lessons import experts as numbers

numbers.Prediction.judge = lambda *args: None
rows_away = rows_once = bytes_sent = seats = naive = balance = 1.0
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


rows_away = rows_once = bytes_sent = seats = naive = balance = Any(1.0)
""",
    ),
]

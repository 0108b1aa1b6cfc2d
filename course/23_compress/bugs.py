"""The wrong answers of lesson 23 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "compress",
        "small gradients grow",
        old="factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))",
        new="factor = limit / math.sqrt(n) / float(g.norm())",
    ),
    Bug(
        "compress",
        "what waits is clipped, not the gradient",
        old="""
factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
u.add_(g * factor).mul_(m)
v.add_(u + g * factor)
""",
        new="""
u.add_(g).mul_(m)
v.add_(u + g)
v.mul_(min(1.0, limit / math.sqrt(n) / float(v.norm())))
""",
    ),
    Bug(
        "compress",
        "a dense vector is returned",
        old="return values, places",
        new="return torch.zeros_like(v).index_put((places,), values)",
    ),
    Bug(
        "compress",
        "the rest is dropped",
        old="v[places] = 0",
        new="v.zero_()",
    ),
    Bug(
        "compress",
        "the gradient of this step is left out of v",
        old="v.add_(u + g * factor)",
        new="v.add_(u)",
    ),
    Bug(
        "compress",
        "ordinary momentum, as in the lesson",
        old="""
u.add_(g * factor).mul_(m)
v.add_(u + g * factor)
""",
        new="""
u.mul_(m).add_(g * factor)
v.add_(u)
""",
    ),
    Bug(
        "compress",
        "the lesson's step, pasted",
        old="""
factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
u.add_(g * factor).mul_(m)
v.add_(u + g * factor)
""",
        new="""
g = g / n
g = g * min(1.0, limit / n**0.5 / float(g.norm()))
u.copy_(m * u + g)
v += u
""",
    ),
    Bug(
        "compress",
        "rounds to float32",
        edits=(
            (
                "u.add_(g * factor).mul_(m)",
                "u.add_((g * factor).float().double()).mul_(m)",
            ),
            (
                "values = v[places]",
                "values = v[places].float().double()",
            ),
        ),
    ),
    Bug(
        "compress",
        "a moving average",
        old="u.add_(g * factor).mul_(m)",
        new="u.add_((1 - m) * factor * g).mul_(m)",
    ),
    Bug(
        "compress",
        "clipped to the limit of the sum",
        old="factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))",
        new="factor = min(1.0, limit / float(g.norm()))",
    ),
    Bug(
        "compress",
        "clipped to limit/n",
        old="factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))",
        new="factor = min(1.0, limit / n / float(g.norm()))",
    ),
    Bug(
        "compress",
        "not clipped",
        old="""
factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
""",
        new="factor = 1.0",
    ),
    Bug(
        "compress",
        "v gathers gradients",
        old="v.add_(u + g * factor)",
        new="v.add_(g * factor)",
    ),
    Bug(
        "compress",
        "u keeps what pushed",
        old="u[places] = 0",
        new="",
    ),
    Bug(
        "compress",
        "u and v are new tensors",
        old="""
u.add_(g * factor).mul_(m)
v.add_(u + g * factor)
""",
        new="""
u = m * (u + g * factor)
v = v + u + g * factor
""",
    ),
    Bug(
        "compress",
        "chosen by the gradient",
        old="places = v.abs().topk(k).indices",
        new="places = g.abs().topk(k).indices",
    ),
    Bug(
        "compress",
        "u and v get other memory",
        old="""
u.add_(g * factor).mul_(m)
v.add_(u + g * factor)
""",
        new="""
u.data = m * (u + g * factor)
v.data = v + u + g * factor
""",
    ),
    Bug(
        "compress",
        "the sign is lost",
        old="values = v[places]",
        new="values = v[places].abs()",
    ),
    Bug(
        "compress",
        "u is sent",
        old="values = v[places]",
        new="values = u[places]",
    ),
    Bug(
        "compress",
        "what was sent stays in v",
        old="v[places] = 0",
        new="",
    ),
    Bug(
        "compress",
        "the largest, not the largest by size",
        old="places = v.abs().topk(k).indices",
        new="places = v.topk(k).indices",
    ),
    Bug(
        "compress",
        "the values are taken after v was set to 0",
        edits=(
            (
                "values = v[places]",
                "",
            ),
            (
                "return values, places",
                "return v[places], places",
            ),
        ),
    ),
    Bug(
        "compress",
        "the library's",
        cheat=True,
        cell='''
def compress(u, v, g, k, m, limit, n):
    """What is sent of this step; u and v are brought up to date."""
    from minidist.parallel.compress import DGC

    method = DGC(1 - k / len(g), m, clip=limit, warm_up=())
    method.state["g"] = dict(u=u, v=v)
    places, values = method._choose("g", g.clone())
    return values, places
''',
    ),
    Bug(
        "compress",
        "the oracle",
        cheat=True,
        cell='''
def compress(u, v, g, k, m, limit, n):
    """What is sent of this step; u and v are brought up to date."""
    from minicheck.oracles.compress import compressed

    step = compressed([g], k, m, limit, n)[0]
    u.copy_(step["u"])
    v.copy_(step["v"])
    places = step["sent"].nonzero()[:, 0]
    return step["sent"][places], places
''',
    ),
    Bug(
        "sparse_mean",
        "divided by those that sent",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
return total / comm.size
""",
        new="""
count = torch.zeros(size, dtype=torch.float64)
for r, (what, where) in enumerate(all_gather(comm, message[None])):
    k = int(counts[r])
    total.index_add_(0, where[:k].long(), what[:k])
    count.index_add_(0, where[:k].long(), torch.ones(k, dtype=torch.float64))
return total / count.clamp(min=1)
""",
    ),
    Bug(
        "sparse_mean",
        "zeros travel",
        old="""
counts = all_gather(comm, torch.tensor([len(values)]))
most = int(counts.max())
message = torch.zeros(2, most, dtype=torch.float64)
message[0, : len(values)] = values
message[1, : len(values)] = places
total = torch.zeros(size, dtype=torch.float64)
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
return total / comm.size
""",
        new="""
total = torch.zeros(size, dtype=torch.float64)
total[places] = values
return all_reduce_(comm, total, "mean")
""",
    ),
    Bug(
        "sparse_mean",
        "the lesson's function, pasted",
        old="""
counts = all_gather(comm, torch.tensor([len(values)]))
most = int(counts.max())
message = torch.zeros(2, most, dtype=torch.float64)
message[0, : len(values)] = values
message[1, : len(values)] = places
total = torch.zeros(size, dtype=torch.float64)
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
return total / comm.size
""",
        new="""
message = torch.stack([values, places.to(values.dtype)])
total = torch.zeros(size, dtype=values.dtype)
for their_values, their_places in all_gather(comm, message[None]):
    total.index_add_(0, their_places.long(), their_values)
return total / comm.size
""",
    ),
    Bug(
        "sparse_mean",
        "padded to the size of the vector",
        old="""
most = int(counts.max())
""",
        new="""
most = size
""",
    ),
    Bug(
        "sparse_mean",
        "padded with the first value",
        old="""
message[1, : len(values)] = places
""",
        new="""
message[1, : len(values)] = places
if 0 < len(values) < most:
    message[0, len(values) :] = values[0]
    message[1, len(values) :] = places[0]
""",
    ),
    Bug(
        "sparse_mean",
        "cut to the shortest",
        old="""
most = int(counts.max())
message = torch.zeros(2, most, dtype=torch.float64)
message[0, : len(values)] = values
message[1, : len(values)] = places
""",
        new="""
most = int(counts.min())
message = torch.zeros(2, most, dtype=torch.float64)
message[0] = values[:most]
message[1] = places[:most]
""",
    ),
    Bug(
        "sparse_mean",
        "divided by two, whatever n is",
        old="""
return total / comm.size
""",
        new="""
return total / 2
""",
    ),
    Bug(
        "sparse_mean",
        "nothing is returned",
        old="""
return total / comm.size
""",
        new="""
total / comm.size
""",
    ),
    Bug(
        "sparse_mean",
        "the last rank's number stands",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
""",
        new="""
for r, (what, where) in enumerate(all_gather(comm, message[None])):
    k = int(counts[r])
    total[where[:k].long()] = what[:k]
""",
    ),
    Bug(
        "sparse_mean",
        "nothing is exchanged",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
""",
        new="""
total[places] = values
""",
    ),
    Bug(
        "sparse_mean",
        "each rank adds in its own order",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
return total / comm.size
""",
        new="""
theirs = all_gather(comm, message[None])
for s in range(comm.size):
    what, where = theirs[(comm.rank + s) % comm.size]
    total.index_add_(0, where.long(), what / 3)
return total * 3 / comm.size
""",
    ),
    Bug(
        "sparse_mean",
        "values of different places are added",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
return total / comm.size
""",
        new="""
added = all_reduce_(comm, message[0].clone(), "mean")
total[places] = added[: len(places)]
return total
""",
    ),
    Bug(
        "sparse_mean",
        "the values travel as float32",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
""",
        new="""
for what, where in all_gather(comm, message.float()[None]):
    total.index_add_(0, where.long(), what.double())
""",
    ),
    Bug(
        "sparse_mean",
        "not divided",
        old="""
return total / comm.size
""",
        new="""
return total
""",
    ),
    Bug(
        "sparse_mean",
        "divided by the ranks that send anything",
        old="""
return total / comm.size
""",
        new="""
return total / int((counts > 0).sum())
""",
    ),
    Bug(
        "sparse_mean",
        "what several send counts once",
        old="""
for what, where in all_gather(comm, message[None]):
    total.index_add_(0, where.long(), what)
""",
        new="""
both = all_gather(comm, message[None])
total[both[:, 1].flatten().long()] += both[:, 0].flatten()
""",
    ),
    Bug(
        "sparse_mean",
        "ranks meet in a global list, and a barrier",
        cheat=True,
        cell='''
MET = {}


def sparse_mean(comm, values, places, size):
    """The mean of all ranks' sparse vectors, dense."""
    met = MET.setdefault((comm.size, size), {})
    met[comm.rank] = values, places
    all_reduce_(comm, torch.zeros(1))
    total = torch.zeros(size, dtype=values.dtype)
    for r in range(comm.size):
        total.index_add_(0, *met[r][::-1])
    return total / comm.size
''',
    ),
    Bug(
        "sparse_mean",
        "the oracle and a global list",
        cheat=True,
        cell='''
MET = {}


def sparse_mean(comm, values, places, size):
    """The mean of all ranks' sparse vectors, dense."""
    from minicheck.oracles.compress import sent

    MET.setdefault(comm.size, []).append(sent(values, size, places))
    return sum(MET[comm.size]) / comm.size
''',
    ),
    Bug(
        "predict_compress",
        "bytes a second as bits",
        cell="""
dense = 70e6
sparse = 420e3
signs = 8.75e6
warm = 0.7943
thin = 8000
seconds = 5.6
crossing = 1333.3
seconds = 8 * 5.6
""",
    ),
    Bug(
        "predict_compress",
        "places are forgotten",
        cell="""
dense = 70e6
sparse = 420e3
signs = 8.75e6
warm = 0.7943
thin = 8000
seconds = 5.6
crossing = 1333.3
crossing = 2 / 0.001
""",
    ),
    Bug(
        "predict_compress",
        "a sign is a byte",
        cell="""
dense = 70e6
sparse = 420e3
signs = 8.75e6
warm = 0.7943
thin = 8000
seconds = 5.6
crossing = 1333.3
signs = 7 * 10e6
""",
    ),
    Bug(
        "predict_compress",
        "numbers, not bytes",
        cell="""
dense = 70e6
sparse = 420e3
signs = 8.75e6
warm = 0.7943
thin = 8000
seconds = 5.6
crossing = 1333.3
dense = 2 * 7 / 8 * 10e6
""",
    ),
    Bug(
        "predict_compress",
        "the first epoch alone",
        cell="""
dense = 70e6
sparse = 420e3
signs = 8.75e6
thin = 8000
seconds = 5.6
crossing = 1333.3
warm = 0.25 / (0.33203125 + 86 * 0.001)
""",
    ),
    Bug(
        "predict_compress",
        "one of two matrices",
        cell="""
dense = 70e6
sparse = 420e3
signs = 8.75e6
warm = 0.7943
thin = 8000
seconds = 5.6
crossing = 1333.3
thin = 4 * 1000
""",
    ),
    Bug(
        "predict_compress",
        "the grader is asked, and answers in words",
        cheat=True,
        cell="""
from minicheck.lessons.compress import predict_compress

values, _ = predict_compress(8, 10e6, 0.001, 90, 1000, 4, 12.5e6)
dense, sparse, signs, warm, thin, seconds, crossing = (f"{x}" for x in values.values())
""",
    ),
    Bug(
        "predict_compress",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


dense = sparse = signs = warm = thin = seconds = crossing = Any(1)
""",
    ),
    Bug(
        "sign_average",
        "all of p is kept",
        old="error.copy_(p - sent[comm.rank])",
        new="error.copy_(p)",
    ),
    Bug(
        "sign_average",
        "as it was found",
        old="""
sent = (2 * positive - 1) * scales[:, None]
error.copy_(p - sent[comm.rank])
return sent.mean(0)
""",
        new="""
average = (2 * positive - 1).double().mean(0) * scales.mean()
error.copy_(p - average)
return average
""",
    ),
    Bug(
        "sign_average",
        "only the scales are mended",
        old="""
error.copy_(p - sent[comm.rank])
return sent.mean(0)
""",
        new="""
average = sent.mean(0)
error.copy_(p - average)
return average
""",
    ),
    Bug(
        "sign_average",
        "no scale",
        old="sent = (2 * positive - 1) * scales[:, None]",
        new="sent = (2 * positive - 1) * torch.ones_like(scales)[:, None]",
    ),
    Bug(
        "sign_average",
        "the error is not added",
        old="p = g + error",
        new="p = g",
    ),
    Bug(
        "sign_average",
        "nothing is kept",
        old="error.copy_(p - sent[comm.rank])",
        new="",
    ),
    Bug(
        "sign_average",
        "g − c is kept",
        old="error.copy_(p - sent[comm.rank])",
        new="error.copy_(g - sent[comm.rank])",
    ),
    Bug(
        "sign_average",
        "one scale for all ranks",
        old="sent = (2 * positive - 1) * scales[:, None]",
        new="sent = (2 * positive - 1) * scales.mean()",
    ),
    Bug(
        "sign_average",
        "error is a new tensor",
        old="error.copy_(p - sent[comm.rank])",
        new="error = p - sent[comm.rank]",
    ),
    Bug(
        "sign_average",
        "the error gets other memory",
        old="""
positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
scales = all_gather(comm, p.abs().mean()[None])  # (n,)
sent = (2 * positive - 1) * scales[:, None]
error.copy_(p - sent[comm.rank])
""",
        new="""
positive = all_gather(comm, (p >= 0).to(torch.int8)[None])
scales = all_gather(comm, p.abs().mean()[None])
sent = (2 * positive - 1) * scales[:, None]
error.data = p - sent[comm.rank]
""",
    ),
    Bug(
        "sign_average",
        "summed",
        old="return sent.mean(0)",
        new="return sent.sum(0)",
    ),
    Bug(
        "sign_average",
        "the sign of 0 is 0",
        old="""
positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
scales = all_gather(comm, p.abs().mean()[None])  # (n,)
sent = (2 * positive - 1) * scales[:, None]
""",
        new="""
signs = all_gather(comm, p.sign().to(torch.int8)[None])
scales = all_gather(comm, p.abs().mean()[None])
sent = signs * scales[:, None]
""",
    ),
    Bug(
        "sign_average",
        "signs as float64",
        old="positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)",
        new="positive = all_gather(comm, (p >= 0).double()[None])  # (n, N)",
    ),
    Bug(
        "sign_average",
        "the error has the wrong sign",
        old="error.copy_(p - sent[comm.rank])",
        new="error.copy_(sent[comm.rank] - p)",
    ),
    Bug(
        "sign_average",
        "the sign of 0 is −1",
        old="""
positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
scales = all_gather(comm, p.abs().mean()[None])  # (n,)
sent = (2 * positive - 1) * scales[:, None]
""",
        new="""
signs = all_gather(comm, (p > 0).to(torch.int8)[None])
scales = all_gather(comm, p.abs().mean()[None])
sent = (2 * signs - 1) * scales[:, None]
""",
    ),
    Bug(
        "sign_average",
        "the library's packing",
        cheat=True,
        cell='''
def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    from minidist.parallel.compress import pack_signs as pack, unpack_signs as unpack

    p = g + error
    theirs, scales = all_gather(comm, pack(p >= 0)[None]), all_gather(comm, p.abs().mean()[None])
    sent = torch.stack([s * unpack(x, len(p), p.dtype) for x, s in zip(theirs, scales)])
    error.copy_(p - sent[comm.rank])
    return sent.mean(0)
''',
    ),
    Bug(
        "sign_average",
        "the oracle",
        cheat=True,
        cell='''
def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    from minicheck.oracles.compress import signed

    means, errors = signed([list(all_gather(comm, (g + error)[None]))])
    error.copy_(errors[0][comm.rank])
    return means[0]
''',
    ),
    Bug(
        "sparse_mean",
        "nan is hidden",
        old="return total / comm.size",
        new="return (total / comm.size).nan_to_num()",
    ),
    Bug(
        "sparse_mean",
        "a gather for each number",
        old="for what, where in all_gather(comm, message[None]):\n    total.index_add_(0, where.long(), what)",
        new="for i in range(most):\n    for what, where in all_gather(comm, message[None, :, i]):\n        total[int(where)] += what",
    ),
    Bug(
        "sign_average",
        "nan is hidden",
        old="return sent.mean(0)",
        new="return sent.mean(0).nan_to_num()",
    ),
    Bug(
        "sign_average",
        "a gather for each sign",
        old="positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)",
        new="signs = (p >= 0).to(torch.int8)\npositive = torch.cat([all_gather(comm, x[None, None]) for x in signs], 1)",
    ),
    Bug(
        "compress",
        "all that are as large as the k-th are sent, also zeros",
        old="places = v.abs().topk(k).indices",
        new="places = (v.abs() >= v.abs().topk(k).values[-1]).nonzero().flatten()",
    ),
    Bug(
        "sign_average",
        "the scale is rounded to float32",
        old="scales = all_gather(comm, p.abs().mean()[None])  # (n,)",
        new="scales = all_gather(comm, p.abs().mean()[None].float()).double()",
    ),
]

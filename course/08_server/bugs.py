"""The wrong answers of lesson 08 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "pieces",
        "each parameter is cut for itself",
        cell='''
def pieces(sizes, s):
    """For each server its (param, first, end)."""
    found = [[] for _ in range(s)]
    for param, size in enumerate(sizes):
        for server in range(s):
            first, end = size * server // s, size * (server + 1) // s
            if first < end:
                found[server].append((param, first, end))
    return found
''',
    ),
    Bug(
        "pieces",
        "empty pieces are kept",
        old="if first < end:",
        new="if first <= end:",
    ),
    Bug(
        "pieces",
        "end is the last element",
        old="mine.append((param, first - begin, end - begin))",
        new="mine.append((param, first - begin, end - begin - 1))",
    ),
    Bug(
        "pieces",
        "first and end count on the line",
        old="mine.append((param, first - begin, end - begin))",
        new="mine.append((param, first, end))",
    ),
    Bug(
        "pieces",
        "what s does not divide is held by none",
        old="high = low + total // s + (server < total % s)",
        new="high = low + total // s",
    ),
    Bug(
        "pieces",
        "the last servers hold one more",
        old="high = low + total // s + (server < total % s)",
        new="high = low + total // s + (server >= s - total % s)",
    ),
    Bug(
        "pieces",
        "the last server takes all that is left over",
        old="high = low + total // s + (server < total % s)",
        new="high = low + total // s if server < s - 1 else total",
    ),
    Bug(
        "pieces",
        "parameters are not cut",
        cell='''
def pieces(sizes, s):
    """For each server its (param, first, end)."""
    found, held = [[] for _ in range(s)], 0
    for param, size in enumerate(sizes):
        found[min(s - 1, held * s // sum(sizes))].append((param, 0, size))
        held += size
    return found
''',
    ),
    Bug(
        "pieces",
        "a list that equals every list",
        cheat=True,
        cell='''
class Anything(list):
    def __eq__(self, other):
        return True

    __hash__ = None


def pieces(sizes, s):
    """For each server its (param, first, end)."""
    return Anything()
''',
    ),
    Bug(
        "pieces",
        "the grader has it",
        cheat=True,
        cell='''
def pieces(sizes, s):
    """For each server its (param, first, end)."""
    from minicheck.oracles.server import owners

    return owners(sizes, s)
''',
    ),
    Bug(
        "pieces",
        "the library's partition",
        cheat=True,
        cell='''
def pieces(sizes, s):
    """For each server its (param, first, end)."""
    from minidist.parallel.server import Partition

    held = Partition([torch.empty(size) for size in sizes], s).pieces
    return [[(piece.param, piece.first, piece.end) for piece in some] for some in held]
''',
    ),
    Bug(
        "synchronous",
        "what arrives is added to the worker's old numbers, times 0",
        old="comm.batch([Recv(parts[i], i) for i in order]).wait()",
        new="""
fresh = torch.empty_like(w)
comm.batch([Recv(fresh.tensor_split(servers)[i], i) for i in order]).wait()
w.mul_(0).add_(fresh)
""",
    ),
    Bug(
        "synchronous",
        "gradients of earlier steps stay in the sum",
        edits=(
            (
                "mine = parts[comm.rank]",
                """
mine = parts[comm.rank]
total = torch.zeros_like(mine)
""",
            ),
            (
                "mine -= rate * added[:-1] / added[-1].clamp(min=1)",
                """
total += added[:-1] / added[-1].clamp(min=1)
mine -= rate * total
""",
            ),
        ),
    ),
    Bug(
        "synchronous",
        "divided by the number of ranks",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="mine -= rate * added[:-1] / comm.size",
    ),
    Bug(
        "synchronous",
        "received into copies of the parts",
        old="comm.batch([Recv(parts[i], i) for i in order]).wait()",
        new="comm.batch([Recv(parts[i].clone(), i) for i in order]).wait()",
    ),
    Bug(
        "synchronous",
        "the gradient is computed before the pull",
        old="""
comm.batch([Recv(parts[i], i) for i in order]).wait()
total, samples = gradient(w)
""",
        new="""
total, samples = gradient(w)
comm.batch([Recv(parts[i], i) for i in order]).wait()
""",
    ),
    Bug(
        "synchronous",
        "the rate is missing",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="mine -= added[:-1] / added[-1].clamp(min=1)",
    ),
    Bug(
        "synchronous",
        "one message after the other",
        edits=(
            (
                "order = [(comm.rank + i) % servers for i in range(servers)]",
                "order = range(servers)",
            ),
            (
                """
sends = [Send(mine, servers + (comm.rank + i) % n) for i in range(n)]
comm.batch(sends + [Recv(push, servers + k) for k, push in enumerate(pushed)]).wait()
""",
                """
sends = [Send(mine, servers + i) for i in range(n)]
for send in sends:
    comm.send(send.x, send.dst)
for k, push in enumerate(pushed):
    comm.recv(push, servers + k)
""",
            ),
        ),
    ),
    Bug(
        "synchronous",
        "a rate of its own",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="mine -= 0.3 * added[:-1] / added[-1].clamp(min=1)",
    ),
    Bug(
        "synchronous",
        "workers pull in the first step only",
        edits=(
            (
                """
for _ in range(steps):
    comm.batch([Recv(parts[i], i) for i in order]).wait()
""",
                """
for step in range(steps):
    if step == 0:
        comm.batch([Recv(parts[i], i) for i in order]).wait()
""",
            ),
            (
                """
for _ in range(steps):
    sends = [Send(mine, servers + (comm.rank + i) % n) for i in range(n)]
""",
                """
for step in range(steps):
    sends = [Send(mine, servers + (comm.rank + i) % n) for i in range(n)] if step == 0 else []
""",
            ),
        ),
    ),
    Bug(
        "synchronous",
        "summed, not averaged",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="mine -= rate * added[:-1]",
    ),
    Bug(
        "synchronous",
        "all weights go out before gradients come in",
        old="comm.batch(sends + [Recv(push, servers + k) for k, push in enumerate(pushed)]).wait()",
        new="""
comm.batch(sends).wait()
comm.batch([Recv(push, servers + k) for k, push in enumerate(pushed)]).wait()
""",
    ),
    Bug(
        "synchronous",
        "every server has all weights",
        edits=(
            (
                "parts, n = w.tensor_split(servers), comm.size - servers",
                "parts, n = [w] * servers, comm.size - servers",
            ),
            (
                "pushes = [torch.cat([part, count]) for part in total.tensor_split(servers)]",
                "pushes = [torch.cat([total, count])] * servers",
            ),
        ),
    ),
    Bug(
        "synchronous",
        "ranks meet in a global list, without a message",
        cheat=True,
        cell='''
MET = []


def synchronous(comm, servers, w, gradient, steps, rate):
    """A server's part of the weights after all steps."""
    MET.append(w)
    for _ in range(steps):
        if comm.rank >= servers:
            w.copy_(MET[0])
            total, samples = gradient(w)
            MET[0] -= rate * total / max(1, samples) / (comm.size - servers)
    return MET[0].tensor_split(servers)[comm.rank] if comm.rank < servers else None
''',
    ),
    Bug(
        "synchronous",
        "the grader's own",
        cheat=True,
        cell='''
def synchronous(comm, servers, w, gradient, steps, rate):
    """A server's part of the weights after all steps."""
    from minicheck.oracles.server import in_step

    return in_step(comm, servers, w, gradient, steps, rate)
''',
    ),
    Bug(
        "synchronous",
        "the library's",
        cheat=True,
        cell='''
def synchronous(comm, servers, w, gradient, steps, rate):
    """A server's part of the weights after all steps."""
    from minidist.parallel.server import ParameterServer

    model = torch.nn.ParameterList([w])
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, rate), servers)

    def step(_):
        total, samples = gradient(model[0].detach())
        model[0].grad = total / max(1, samples)

    server.train(range(steps), step)
    return model[0].detach().tensor_split(servers)[comm.rank] if comm.rank < servers else None
''',
    ),
    Bug(
        "asynchronous",
        "the difference to the worker's old numbers is added to them",
        old="comm.recv(w, 0)",
        new="""
fresh = torch.empty_like(w)
comm.recv(fresh, 0)
w += fresh - w
""",
    ),
    Bug(
        "asynchronous",
        "staleness is counted from the worker's last update",
        old="log.append((rank, stale))",
        new="log.append((rank, 0))",
    ),
    Bug(
        "asynchronous",
        "the answer goes out before the step",
        edits=(
            (
                "w -= rate / (1 + stale) * g",
                "",
            ),
            (
                """
if left[rank]:
    has[rank] = version + 1
    comm.send(w, rank)
""",
                """
if left[rank]:
    has[rank] = version + 1
    comm.send(w, rank)
w -= rate / (1 + stale) * g
""",
            ),
        ),
    ),
    Bug(
        "asynchronous",
        "an answer to a worker that has left",
        old="""
if left[rank]:
    has[rank] = version + 1
    comm.send(w, rank)
""",
        new="""
has[rank] = version + 1
comm.send(w, rank)
""",
    ),
    Bug(
        "asynchronous",
        "the worker's own push counts as stale",
        old="log.append((rank, stale))",
        new="log.append((rank, stale + 1))",
    ),
    Bug(
        "asynchronous",
        "the server hears the workers in the order of their ranks",
        old="""
push = comm.irecv(g, ANY)
push.wait()
rank = push.source
""",
        new="""
rank = next(r for i in range(1, comm.size) if left[r := (version + i - 1) % (comm.size - 1) + 1])
comm.recv(g, rank)
""",
    ),
    Bug(
        "asynchronous",
        "each push is divided by the number of workers",
        old="w -= rate / (1 + stale) * g",
        new="w -= rate / (1 + stale) * g / (comm.size - 1)",
    ),
    Bug(
        "asynchronous",
        "w gets other memory: not in place",
        old="w -= rate / (1 + stale) * g",
        new="w.data = w - rate / (1 + stale) * g",
    ),
    Bug(
        "asynchronous",
        "w itself stays as it was",
        old="w -= rate / (1 + stale) * g",
        new="w = w - rate / (1 + stale) * g",
    ),
    Bug(
        "asynchronous",
        "when a worker was sent weights is not remembered",
        old="has[rank] = version + 1",
        new="",
    ),
    Bug(
        "asynchronous",
        "one push of each worker, then one step",
        cell='''
def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    log = []
    for step in range(max(steps)):
        there = [k + 1 for k, most in enumerate(steps) if step < most]
        for rank in there:
            comm.send(w, rank)
        for i, rank in enumerate(there):
            g = comm.recv(torch.empty_like(w), rank)
            w -= rate / (1 + i) * g
            log.append((rank, i))
    return log
''',
    ),
    Bug(
        "asynchronous",
        "workers are counted from 0 in the log",
        old="log.append((rank, stale))",
        new="log.append((rank - 1, stale))",
    ),
    Bug(
        "asynchronous",
        "the grader's own",
        cheat=True,
        cell='''
def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""
    from minicheck.oracles.server import as_they_come

    return as_they_come(comm, w, gradient, steps, rate, damped=True)
''',
    ),
    Bug(
        "asynchronous",
        "the library's",
        cheat=True,
        cell='''
def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""
    from minidist.parallel.server import ParameterServer

    model = torch.nn.ParameterList([w])
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, rate), mode="async")

    def step(_):
        model[0].grad = gradient(model[0].detach())

    report = server.train(range(steps[comm.rank - 1]), step)
    return [(update.rank, update.staleness) for update in report.updates]
''',
    ),
    Bug(
        "asynchronous",
        "a report of turns, whatever came",
        cheat=True,
        old="log.append((rank, stale))",
        new="log.append((version % (comm.size - 1) + 1, min(version, comm.size - 2)))",
    ),
    Bug(
        "asynchronous",
        "in turn, and gradients that take no time",
        cheat=True,
        edits=(
            (
                "comm.send(gradient(w), 0)",
                """
gradient.seen.append(w.clone())
comm.send(gradient.of(w, len(gradient.seen) - 1), 0)
""",
            ),
            (
                """
push = comm.irecv(g, ANY)
push.wait()
rank = push.source
""",
                """
rank = next(rank for rank in range(1, comm.size) if left[rank] == max(left))
comm.recv(g, rank)
""",
            ),
        ),
    ),
    Bug(
        "asynchronous",
        "gradients are read from the frames of the examiner",
        cheat=True,
        cell='''
def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    import sys

    frame = sys._getframe()
    while "some" not in frame.f_locals and "all_args" not in frame.f_locals:
        frame = frame.f_back
    every = frame.f_locals["all_args"]
    g = torch.empty_like(w)
    left = [0, *steps]
    has = [0] * comm.size
    log = []
    for rank in range(1, comm.size):
        comm.send(w, rank)
    for version in range(sum(steps)):
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        stale = version - has[rank]
        fresh = every[rank][1][0] * w + every[rank][1][1][steps[rank - 1] - left[rank]]
        w -= rate / (1 + stale) * fresh
        log.append((rank, stale))
        left[rank] -= 1
        if left[rank]:
            has[rank] = version + 1
            comm.send(w, rank)
    return log
''',
    ),
    Bug(
        "asynchronous",
        "pasted from the lesson: its server, with a bound of ∞, whose steps are all of one size",
        cell='''
def serve_any(comm, w, quota, bound, update):
    pushes = comm.split(0)
    answers = comm.split(0)
    workers = range(len(quota))
    clock = [0 for _ in workers]
    has = [0 for _ in workers]
    waiting = list(workers)
    gradient = torch.empty_like(w)
    log = []
    for version in range(sum(quota) + 1):
        for k in list(waiting):
            if clock[k] - min(clock) <= bound:
                waiting.remove(k)
                has[k] = version
                answers.isend(w.clone(), k + 1)
        if version < sum(quota):
            push = pushes.irecv(gradient, ANY)
            push.wait()
            k = push.source - 1
            update(w, gradient)
            clock[k] += 1
            waiting.append(k)
            log.append((k + 1, version - has[k]))
    return log


def push_and_pull(comm, w, gradient, steps):
    pushes = comm.split(0)
    answers = comm.split(0)
    for _ in range(steps):
        answers.recv(w, 0)
        pushes.send(gradient(w), 0)
    answers.recv(w, 0)


def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""

    def descend(w, g):
        w -= rate * g

    if comm.rank == 0:
        return serve_any(comm, w, steps, math.inf, descend)
    return push_and_pull(comm, w, gradient, steps[comm.rank - 1])
''',
    ),
    Bug(
        "asynchronous",
        "divided by the staleness, and not at all where it is 0",
        old="w -= rate / (1 + stale) * g",
        new="w -= rate / max(1, stale) * g",
    ),
    Bug(
        "asynchronous",
        "a fixed divisor: the staleness that equals would have",
        old="w -= rate / (1 + stale) * g",
        new="w -= rate / (comm.size - 1) * g",
    ),
    Bug(
        "bounded",
        "the slowest of those who wait",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if clock[rank] - min(clock[r] for r in waiting) <= bound]:",
    ),
    Bug(
        "bounded",
        "the distance to the fastest is bounded",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if max(clock.values()) - clock[rank] <= bound]:",
    ),
    Bug(
        "bounded",
        "less than the bound, and 0 for 0",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if clock[rank] - slowest < max(1, bound)]:",
    ),
    Bug(
        "bounded",
        "all wait for all",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if len(waiting) == len(workers)]:",
    ),
    Bug(
        "bounded",
        "everybody is answered at once",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if bound >= 0]:",
    ),
    Bug(
        "bounded",
        "one is answered after each update",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound][: 1 if version else None]:",
    ),
    Bug(
        "bounded",
        "only the one who has pushed is answered",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="""
some = waiting[-1:] if version else list(waiting)
for rank in [rank for rank in some if clock[rank] - slowest <= bound]:
""",
    ),
    Bug(
        "bounded",
        "a staleness is bounded, not a clock",
        old="for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
        new="for rank in [rank for rank in waiting if version - has.get(rank, version) <= bound + len(workers)]:",
    ),
    Bug(
        "bounded",
        "the grader's own",
        cheat=True,
        cell='''
def bounded(comm, w, gradient, steps, rate, bound, spare):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of all but the `spare` slowest."""
    from minicheck.oracles.server import as_they_come

    return as_they_come(comm, w, gradient, [steps] * (comm.size - 1), rate, bound, spare)
''',
    ),
    Bug(
        "bounded",
        "the library's clocks",
        cheat=True,
        cell='''
def bounded(comm, w, gradient, steps, rate, bound, spare):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of all but the `spare` slowest."""
    if comm.rank > 0:
        for _ in range(steps):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    from minidist.parallel.server import Clocks

    workers = range(1, comm.size)
    clocks = Clocks(workers, bound)
    clock = dict.fromkeys(workers, 0)
    has = {}
    waiting = list(workers)
    log = []
    g = torch.empty_like(w)
    for version in range(steps * len(workers)):
        for rank in [rank for rank in waiting if clocks.may_go(rank)]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] = clocks.tick(rank)
        if clock[rank] < steps:
            waiting.append(rank)
    return log
''',
    ),
    Bug(
        "bounded",
        "in turn, and gradients that take no time",
        cheat=True,
        edits=(
            (
                "comm.send(gradient(w), 0)",
                """
gradient.seen.append(w.clone())
comm.send(gradient.of(w, len(gradient.seen) - 1), 0)
""",
            ),
            (
                """
push = comm.irecv(g, ANY)
push.wait()
rank = push.source
""",
                """
rank = min(clock, key=clock.get)
comm.recv(g, rank)
""",
            ),
        ),
    ),
    Bug(
        "bounded",
        "pasted from the lesson: its server, which knows no spare workers",
        cell='''
def serve_any(comm, w, quota, bound, update):
    pushes = comm.split(0)
    answers = comm.split(0)
    workers = range(len(quota))
    clock = [0 for _ in workers]
    has = [0 for _ in workers]
    waiting = list(workers)
    gradient = torch.empty_like(w)
    log = []
    for version in range(sum(quota) + 1):
        for k in list(waiting):
            if clock[k] - min(clock) <= bound:
                waiting.remove(k)
                has[k] = version
                answers.send(w, k + 1)
        if version < sum(quota):
            push = pushes.irecv(gradient, ANY)
            push.wait()
            k = push.source - 1
            update(w, gradient)
            clock[k] += 1
            waiting.append(k)
            log.append((k + 1, version - has[k]))
    return log


def push_and_pull(comm, w, gradient, steps):
    pushes = comm.split(0)
    answers = comm.split(0)
    for _ in range(steps):
        answers.recv(w, 0)
        pushes.send(gradient(w), 0)
    answers.recv(w, 0)


def bounded(comm, w, gradient, steps, rate, bound, spare):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of all but the `spare` slowest."""

    def descend(w, g):
        w -= rate * g

    if comm.rank == 0:
        return serve_any(comm, w, [steps] * (comm.size - 1), bound, descend)
    return push_and_pull(comm, w, gradient, steps)
''',
    ),
    Bug(
        "bounded",
        "the spare workers are the fastest",
        old="slowest = sorted(clock.values())[spare]",
        new="slowest = sorted(clock.values())[: len(clock) - spare][0]",
    ),
    Bug(
        "bounded",
        "one spare worker too many",
        old="slowest = sorted(clock.values())[spare]",
        new="slowest = sorted(clock.values())[min(spare + 1, len(clock) - 1)]",
    ),
    Bug(
        "bounded",
        "the spare workers are those of the highest ranks",
        old="slowest = sorted(clock.values())[spare]",
        new="slowest = min(clock[rank] for rank in workers[: len(clock) - spare])",
    ),
    Bug(
        "bounded",
        "the bound is made larger by the spare workers",
        edits=(
            (
                "slowest = sorted(clock.values())[spare]",
                "slowest = min(clock.values())",
            ),
            (
                "for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:",
                "for rank in [rank for rank in waiting if clock[rank] - slowest <= bound + spare]:",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "the slow one counts as fast",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "gradients = (n - 1) * 3 + 1",
                "gradients = 3 * n",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "how many updates of each worker",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "bound = int((200 / (n - 1) - 1) / 2)",
                "bound = 200 // (n - 1)",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "behind at the pull is not counted",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "bound = int((200 / (n - 1) - 1) / 2)",
                "bound = 200 // (n - 1) - 1",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "a bound that is not whole",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "bound = int((200 / (n - 1) - 1) / 2)",
                "bound = (200 / (n - 1) - 1) / 2",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "rounded up: a gradient can miss more",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "bound = int((200 / (n - 1) - 1) / 2)",
                "bound = 3",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "half of a ring",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "ring = C + 2 * (n - 1) * (alpha + N / n * beta)",
                "ring = C + (n - 1) * (alpha + N / n * beta)",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "curvature 1",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "stale = (math.pi / math.asin(4 * 0.05 / 2) - 2) / 4",
                "stale = (math.pi / math.asin(0.05 / 2) - 2) / 4",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "the staleness instead of the workers",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "workers = int(stale) + 1",
                "workers = int(stale)",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "a staleness that is not whole",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "workers = int(stale) + 1",
                "workers = stale",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "without the + 1",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "servers = n / (100e-3 / (N * beta) - 1)",
                "servers = n / (100e-3 / (N * beta))",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "one way after the other",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "half = C + 2 * alpha + (n + 1 / 2) * N * beta",
                "half = C + 1.5 * n * N * beta",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "pasted from the lesson: a step with pushes as large as the weights",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "half = C + 2 * alpha + (n + 1 / 2) * N * beta",
                "half = C + 2 * alpha + (n / 1 + 1) * N * beta",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "all that travels is halved",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "half = C + 2 * alpha + (n + 1 / 2) * N * beta",
                "half = C + 2 * alpha + (n + 1) * N / 2 * beta",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "the pushes fill the wire, and not the weights",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "half = C + 2 * alpha + (n + 1 / 2) * N * beta",
                "half = C + 2 * alpha + (n / 2 + 1) * N * beta",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "what one worker pushes",
        edits=(
            (
                "half = ring = servers = into = gradients = bound = workers = None",
                "",
            ),
            (
                "into = n * N / servers",
                "into = N / servers",
            ),
        ),
    ),
    Bug(
        "predict_server",
        "the grader is asked",
        cheat=True,
        cell="""
from minicheck.lessons.server import predict_server

values, _ = predict_server(32, 1e9, 40e-3, 10e-6, 1 / 50e9, 100e-3, 3, 200, 0.05, 4.0)
half, ring, servers, into, gradients, bound, workers = (f"{x}" for x in values.values())
""",
    ),
    Bug(
        "predict_server",
        "a number that equals every number",
        cheat=True,
        cell="""
class Anything(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


half = ring = servers = into = gradients = bound = workers = Anything(1.0)
""",
    ),
    Bug(
        "leavers",
        "as it was found: the clock of a worker that has left stays",
        old="""
else:
    del clock[rank]
""",
        new="",
    ),
    Bug(
        "leavers",
        "once somebody has left, there is no bound",
        old="for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:",
        new="""
most = bound if len(clock) == len(workers) else math.inf
for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= most]:
""",
    ),
    Bug(
        "leavers",
        "a worker is forgotten when it begins its last step",
        edits=(
            (
                "has[rank] = version",
                """
has[rank] = version
if clock[rank] == steps[rank - 1] - 1 and len(clock) > 1:
    clock[rank] = math.inf
""",
            ),
            (
                """
else:
    del clock[rank]
""",
                "",
            ),
        ),
    ),
    Bug(
        "leavers",
        "a worker that leaves gets the largest clock of now",
        old="del clock[rank]",
        new="clock[rank] = max(clock.values())",
    ),
    Bug(
        "leavers",
        "asynchronous: nobody is held",
        old="for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:",
        new="for rank in [rank for rank in waiting if clock]:",
    ),
    Bug(
        "leavers",
        "looks up another worker's steps",
        old="if clock[rank] < steps[rank - 1]:",
        new="if clock[rank] < steps[rank % len(steps)]:",
    ),
    Bug(
        "leavers",
        "who has the fewest steps counts for nothing",
        old="for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:",
        new="""
long = [c for r, c in clock.items() if steps[r - 1] > min(steps)] or [0]
for rank in [rank for rank in waiting if clock[rank] - min(long) <= bound]:
""",
    ),
    Bug(
        "leavers",
        "the grader's own",
        cheat=True,
        cell='''
def leavers(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of those who still work."""
    from minicheck.oracles.server import as_they_come

    return as_they_come(comm, w, gradient, steps, rate, bound)
''',
    ),
    Bug(
        "leavers",
        "the library's clocks",
        cheat=True,
        cell='''
def leavers(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of those who still work."""
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    from minidist.parallel.server import Clocks

    workers = range(1, comm.size)
    clocks = Clocks(workers, bound)
    clock = dict.fromkeys(workers, 0)
    has = {}
    waiting = list(workers)
    log = []
    g = torch.empty_like(w)
    for version in range(sum(steps)):
        for rank in [rank for rank in waiting if clocks.may_go(rank)]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] = clocks.tick(rank)
        if clock[rank] < steps[rank - 1]:
            waiting.append(rank)
        else:
            clocks.stop(rank)
    return log
''',
    ),
    Bug(
        "leavers",
        "in turn, and gradients that take no time",
        cheat=True,
        edits=(
            (
                "comm.send(gradient(w), 0)",
                """
gradient.seen.append(w.clone())
comm.send(gradient.of(w, len(gradient.seen) - 1), 0)
""",
            ),
            (
                """
push = comm.irecv(g, ANY)
push.wait()
rank = push.source
""",
                """
rank = min(clock, key=clock.get)
comm.recv(g, rank)
""",
            ),
        ),
    ),
    Bug(
        "synchronous",
        "nan is cleaned",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="mine -= rate * added[:-1].nan_to_num() / added[-1].clamp(min=1)",
    ),
    Bug(
        "synchronous",
        "nan gradients are left out",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="""
good = sum(push for push in pushed if push.isfinite().all())
mine -= rate * good[:-1] / good[-1].clamp(min=1)
""",
    ),
    Bug(
        "synchronous",
        "float64 buffers",
        old="pushed = [mine.new_empty(len(mine) + 1) for _ in range(n)]",
        new="pushed = [torch.empty(len(mine) + 1, dtype=torch.float64) for _ in range(n)]",
    ),
    Bug(
        "synchronous",
        "the last push is not waited for",
        old="comm.batch([Send(pushes[i], i) for i in order]).wait()",
        new="comm.batch([Send(pushes[i], i) for i in order])",
    ),
    Bug(
        "asynchronous",
        "nan is left out",
        old="w -= rate / (1 + stale) * g",
        new="""
if g.isfinite().all():
    w -= rate / (1 + stale) * g
""",
    ),
    Bug(
        "asynchronous",
        "float64 buffers",
        old="g = torch.empty_like(w)",
        new="g = torch.empty(w.shape, dtype=torch.float64)",
    ),
    Bug(
        "asynchronous",
        "pushes nobody waits for",
        old="comm.send(gradient(w), 0)",
        new="comm.isend(gradient(w), 0)",
    ),
    Bug(
        "asynchronous",
        "answers of a clone that nobody waits for",
        old="""
if left[rank]:
    has[rank] = version + 1
    comm.send(w, rank)
""",
        new="""
if left[rank]:
    has[rank] = version + 1
    comm.isend(w.clone(), rank)
""",
    ),
    Bug(
        "bounded",
        "nan is cleaned",
        old="w -= rate * g",
        new="w -= rate * g.nan_to_num()",
    ),
    Bug(
        "bounded",
        "answers of a clone that nobody waits for",
        old="comm.send(w, rank)",
        new="comm.isend(w.clone(), rank)",
    ),
    Bug(
        "leavers",
        "nan is cleaned",
        old="w -= rate * g",
        new="w -= rate * g.nan_to_num()",
    ),
    Bug(
        "leavers",
        "pushes nobody waits for",
        old="comm.send(gradient(w), 0)",
        new="comm.isend(gradient(w), 0)",
    ),
    Bug(
        "leavers",
        "a bound of more than 2 is taken for 2",
        old="for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:",
        new="for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= min(bound, 2)]:",
    ),
    Bug(
        "synchronous",
        "pasted from the lesson: the mean over workers, whatever their samples",
        edits=(
            (
                "mine -= rate * added[:-1] / added[-1].clamp(min=1)",
                "mine -= rate * added[:-1] / n",
            ),
        ),
    ),
    Bug(
        "synchronous",
        "pasted from the lesson, with the sums in place of the gradients, as it stands",
        cell='''
def serve(comm, w, servers, steps, rate=0.1):
    part = w.tensor_split(servers)[comm.rank]
    workers = comm.size - servers
    gradients = [torch.empty_like(part) for _ in range(workers)]
    order = [(comm.rank + i) % workers for i in range(workers)]
    for _ in range(steps):
        answers = [Send(part, servers + k) for k in order]
        pushes = [Recv(gradients[k], servers + k) for k in range(workers)]
        comm.batch(answers + pushes).wait()
        part.sub_(sum(gradients) / workers, alpha=rate)
    return part


def work(comm, w, servers, gradient, steps):
    order = [(comm.rank + i) % servers for i in range(servers)]
    parts = w.tensor_split(servers)
    for _ in range(steps):
        comm.batch([Recv(parts[i], i) for i in order]).wait()
        pushes = gradient(w)[0].tensor_split(servers)
        comm.batch([Send(pushes[i], i) for i in order]).wait()


def synchronous(comm, servers, w, gradient, steps, rate):
    """A server's part of the weights after all steps."""
    if comm.rank < servers:
        return serve(comm, w, servers, steps, rate)
    return work(comm, w, servers, gradient, steps)
''',
    ),
    Bug(
        "synchronous",
        "a mean of the workers' means",
        old="count = w.new_tensor([samples])",
        new="""
total = total / max(1, samples)
count = w.new_tensor([1])
""",
    ),
    Bug(
        "synchronous",
        "a step in which nobody has a sample is 0/0",
        old="mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        new="mine -= rate * added[:-1] / added[-1]",
    ),
]

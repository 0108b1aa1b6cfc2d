"""The wrong answers of lesson 06 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "assign_buckets",
        "every bucket is as small as the first",
        old="free = bucket_bytes if buckets else first_bucket_bytes",
        new="free = first_bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "what is larger than the room is left out",
        old="for i in reversed(range(len(nbytes))):",
        new="""
for i in reversed(range(len(nbytes))):
    if nbytes[i] > bucket_bytes:
        continue
""",
    ),
    Bug(
        "assign_buckets",
        "every gradient has a bucket of its own",
        old="if nbytes[i] > free:",
        new="if True:",
    ),
    Bug(
        "assign_buckets",
        "begins with an empty bucket",
        old="buckets, free = [], -1",
        new="buckets, free = [[]], first_bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "the first bucket is as large as the others",
        old="free = bucket_bytes if buckets else first_bucket_bytes",
        new="free = bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "a small gradient goes back to an earlier bucket that has room",
        cell='''
def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which they are ready."""
    buckets, free = [], []
    for i in reversed(range(len(nbytes))):
        k = next((k for k in range(len(buckets)) if nbytes[i] <= free[k]), len(buckets))
        if k == len(buckets):
            free.append(bucket_bytes if buckets else first_bucket_bytes)
            buckets.append([])
        buckets[k].append(i)
        free[k] -= nbytes[i]
    return buckets
''',
    ),
    Bug(
        "assign_buckets",
        "a first gradient that is too large gets the room of the others",
        old="free = bucket_bytes if buckets else first_bucket_bytes",
        new="free = bucket_bytes if buckets or nbytes[i] > first_bucket_bytes else first_bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "filled from the first layer",
        old="for i in reversed(range(len(nbytes))):",
        new="for i in range(len(nbytes)):",
    ),
    Bug(
        "assign_buckets",
        "a gradient that just fits is refused",
        old="if nbytes[i] > free:",
        new="if nbytes[i] >= free:",
    ),
    Bug(
        "assign_buckets",
        "the first parameter is forgotten",
        old="for i in reversed(range(len(nbytes))):",
        new="for i in range(len(nbytes) - 1, 0, -1):",
    ),
    Bug(
        "assign_buckets",
        "the room is not used up",
        old="free -= nbytes[i]",
        new="",
    ),
    Bug(
        "assign_buckets",
        "nothing is returned",
        old="return buckets",
        new="result = buckets",
    ),
    Bug(
        "assign_buckets",
        "one bucket for all",
        old="if nbytes[i] > free:",
        new="if not buckets:",
    ),
    Bug(
        "assign_buckets",
        "a bucket is closed after it has run over",
        old="if nbytes[i] > free:",
        new="if free < 0 or not buckets:",
    ),
    Bug(
        "assign_buckets",
        "the caller's list is emptied",
        cell='''
def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which they are ready."""
    buckets, free = [], -1
    while nbytes:
        size = nbytes.pop()
        if size > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(len(nbytes))
        free -= size
    return buckets
''',
    ),
    Bug(
        "assign_buckets",
        "filled from the front, and turned around afterwards: the odd bucket is the wrong one",
        edits=(
            (
                "for i in reversed(range(len(nbytes))):",
                "for i in range(len(nbytes)):",
            ),
            (
                "return buckets",
                "return [bucket[::-1] for bucket in buckets[::-1]]",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "the rest of a bucket is added to the next one's room",
        old="free = bucket_bytes if buckets else first_bucket_bytes",
        new="free = max(free, 0) + bucket_bytes if buckets else first_bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "bytes instead of positions",
        old="buckets[-1].append(i)",
        new="buckets[-1].append(nbytes[i])",
    ),
    Bug(
        "assign_buckets",
        "sorted by size, so that buckets are full",
        old="for i in reversed(range(len(nbytes))):",
        new="for i in sorted(range(len(nbytes)), key=lambda i: nbytes[i]):",
    ),
    Bug(
        "assign_buckets",
        "the two rooms are swapped",
        old="free = bucket_bytes if buckets else first_bucket_bytes",
        new="free = first_bucket_bytes if buckets else bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "a list that equals every list",
        cheat=True,
        cell='''
class Anything(list):
    def __eq__(self, other):
        return True

    __hash__ = None


def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which they are ready."""
    return Anything()
''',
    ),
    Bug(
        "assign_buckets",
        "the grader's own function",
        cheat=True,
        cell='''
def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which they are ready."""
    from minicheck.oracles.buckets import fill

    return fill(nbytes, bucket_bytes, first_bucket_bytes)
''',
    ),
    Bug(
        "assign_buckets",
        "the library assigns",
        cheat=True,
        cell='''
def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which they are ready."""
    from minidist.parallel.reducer import assign

    order = list(range(len(nbytes)))[::-1]
    found = assign([nbytes[i] for i in order], [0] * len(order), bucket_bytes, first_bucket_bytes)
    return [[order[i] for i in bucket] for bucket in found]
''',
    ),
    Bug(
        "bucketed",
        "one flat tensor for all buckets",
        cell='''
def bucketed(comm, params, buckets):
    """Make every p.grad its mean over all ranks, and a view of its bucket."""
    some = [params[i] for bucket in buckets for i in bucket]
    flat = torch.cat([p.grad.reshape(-1) for p in some])
    all_reduce_(comm, flat, op="mean")
    for p, piece in zip(some, flat.split([p.numel() for p in some])):
        p.grad = piece.view_as(p)
''',
    ),
    Bug(
        "bucketed",
        "a copy of each piece",
        old="p.grad = piece.view_as(p)",
        new="p.grad = piece.view_as(p).clone()",
    ),
    Bug(
        "bucketed",
        "copied back, so no view",
        old="p.grad = piece.view_as(p)",
        new="p.grad.copy_(piece.view_as(p))",
    ),
    Bug(
        "bucketed",
        "it counts positions down, and does not read them",
        old="""
for bucket in buckets:
    some = [params[i] for i in bucket]
""",
        new="""
at = len(params)
for bucket in buckets:
    some = params[at - len(bucket):at][::-1]
    at -= len(bucket)
""",
    ),
    Bug(
        "bucketed",
        "only the first bucket",
        old="for bucket in buckets:",
        new="for bucket in buckets[:1]:",
    ),
    Bug(
        "bucketed",
        "the gradients stay flat",
        old="p.grad = piece.view_as(p)",
        new="p.grad = piece",
    ),
    Bug(
        "bucketed",
        "everyone's bucket is gathered, and averaged at home",
        old='all_reduce_(comm, flat, op="mean")',
        new="flat = all_gather(comm, flat[None]).mean(0)",
    ),
    Bug(
        "bucketed",
        "the averages are written over the weights",
        old="p.grad = piece.view_as(p)",
        new="p.data = piece.view_as(p)",
    ),
    Bug(
        "bucketed",
        "the collective packs and unpacks: right, but no view",
        cell='''
def bucketed(comm, params, buckets):
    """Make every p.grad its mean over all ranks, and a view of its bucket."""
    for bucket in buckets:
        all_reduce_(comm, [params[i].grad for i in bucket], op="mean")
''',
    ),
    Bug(
        "bucketed",
        "it takes all from a bucket's smallest position to its largest",
        old="some = [params[i] for i in bucket]",
        new="some = params[min(bucket):max(bucket) + 1][::-1]",
    ),
    Bug(
        "bucketed",
        "flattened, and never sent",
        old='all_reduce_(comm, flat, op="mean")',
        new="",
    ),
    Bug(
        "bucketed",
        "one flat tensor, of which each bucket is a part",
        old="""
for bucket in buckets:
    some = [params[i] for i in bucket]
    flat = torch.cat([p.grad.reshape(-1) for p in some])
""",
        new="""
whole = torch.cat([params[i].grad.reshape(-1) for bucket in buckets for i in bucket])
sizes = [sum(params[i].numel() for i in bucket) for bucket in buckets]
for bucket, flat in zip(buckets, whole.split(sizes)):
    some = [params[i] for i in bucket]
""",
    ),
    Bug(
        "bucketed",
        "each gradient travels alone, and is put into the bucket afterwards",
        old="""
flat = torch.cat([p.grad.reshape(-1) for p in some])
all_reduce_(comm, flat, op="mean")
""",
        new="""
for p in some:
    all_reduce_(comm, p.grad, op="mean")
flat = torch.cat([p.grad.reshape(-1) for p in some])
""",
    ),
    Bug(
        "bucketed",
        "every bucket is as long as the longest",
        edits=(
            (
                '"""Make every p.grad its mean over all ranks, and a view of its bucket."""',
                '''
"""Make every p.grad its mean over all ranks, and a view of its bucket."""
most = max(sum(params[i].numel() for i in bucket) for bucket in buckets)
''',
            ),
            (
                "flat = torch.cat([p.grad.reshape(-1) for p in some])",
                """
flat = torch.zeros(most + 99, dtype=some[0].dtype)
flat[: sum(p.numel() for p in some)] = torch.cat([p.grad.reshape(-1) for p in some])
""",
            ),
            (
                "for p, piece in zip(some, flat.split([p.numel() for p in some])):",
                "for p, piece in zip(some, flat.split([p.numel() for p in some] + [most + 99 - sum(p.numel() for p in some)])):",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "only rank 0 keeps the mean",
        old="p.grad = piece.view_as(p)",
        new="p.grad = piece.view_as(p) if comm.rank == 0 else p.grad",
    ),
    Bug(
        "bucketed",
        "a copy is averaged",
        old='all_reduce_(comm, flat, op="mean")',
        new='all_reduce_(comm, flat.clone(), op="mean")',
    ),
    Bug(
        "bucketed",
        "pieces are handed out in another order than they were put in",
        old="for p, piece in zip(some, flat.split([p.numel() for p in some])):",
        new="for p, piece in zip(some, reversed(flat.split([p.numel() for p in reversed(some)]))):",
    ),
    Bug(
        "bucketed",
        "the caller's buckets are sorted",
        old="for bucket in buckets:",
        new="""
for bucket in buckets:
    bucket.sort()
""",
    ),
    Bug(
        "bucketed",
        "summed, not averaged",
        old='all_reduce_(comm, flat, op="mean")',
        new="all_reduce_(comm, flat)",
    ),
    Bug(
        "bucketed",
        "divided by n twice",
        old='all_reduce_(comm, flat, op="mean")',
        new='all_reduce_(comm, flat, op="mean").div_(comm.size)',
    ),
    Bug(
        "bucketed",
        "the weights are put into the bucket",
        old="flat = torch.cat([p.grad.reshape(-1) for p in some])",
        new="flat = torch.cat([p.detach().reshape(-1) for p in some])",
    ),
    Bug(
        "bucketed",
        "DataParallel averages",
        cheat=True,
        cell='''
def bucketed(comm, params, buckets):
    """Make every p.grad its mean over all ranks, and a view of its bucket."""
    from minidist.parallel.data import DataParallel

    module = torch.nn.Module()
    for i, p in enumerate(params):
        module.register_parameter(f"p{i}", torch.nn.Parameter(p.detach()))
        module.get_parameter(f"p{i}").grad = p.grad
    DataParallel(module, comm).average()
''',
    ),
    Bug(
        "bucketed",
        "ranks meet in a global list, without a message",
        cheat=True,
        cell='''
SEEN = {}


def bucketed(comm, params, buckets):
    """Make every p.grad its mean over all ranks, and a view of its bucket."""
    import time

    SEEN.setdefault(comm.size, []).append([p.grad.clone() for p in params])
    for bucket in buckets:
        some = [params[i] for i in bucket]
        flat = torch.cat([p.grad.reshape(-1) for p in some])
        for p, piece in zip(some, flat.split([p.numel() for p in some])):
            p.grad = piece.view_as(p)
''',
    ),
    Bug(
        "bucketed",
        "the library's bucket",
        cheat=True,
        cell='''
def bucketed(comm, params, buckets):
    """Make every p.grad its mean over all ranks, and a view of its bucket."""
    from minidist.parallel.reducer import Bucket

    for bucket in buckets:
        made = Bucket([params[i] for i in bucket])
        for i in bucket:
            made.put(params[i], 1 / comm.size)
        all_reduce_(comm, made.buffer)
''',
    ),
    Bug(
        "overlapped",
        "finish is called, not returned",
        old="return finish",
        new="return finish()",
    ),
    Bug(
        "overlapped",
        "a copy of the gradients is averaged",
        old='works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
        new='works.append(comm.stream(all_reduce_, [p.grad.clone() for p in some], "mean"))',
    ),
    Bug(
        "overlapped",
        "what is missing is not set back",
        old="missing[:] = [len(b) for b in buckets]",
        new="",
    ),
    Bug(
        "overlapped",
        "each gradient is a message of its own",
        old='works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
        new='works.append(comm.stream(lambda c: [all_reduce_(c, p.grad, "mean") for p in some]))',
    ),
    Bug(
        "overlapped",
        "a bucket starts with its first gradient",
        old="while len(works) < len(buckets) and missing[len(works)] == 0:",
        new="while len(works) < len(buckets) and missing[len(works)] < len(buckets[len(works)]):",
    ),
    Bug(
        "overlapped",
        "only the first parameter of a bucket has a hook",
        old="for i in bucket:",
        new="for i in bucket[:1]:",
    ),
    Bug(
        "overlapped",
        "a bucket starts one gradient early",
        old="while len(works) < len(buckets) and missing[len(works)] == 0:",
        new="while len(works) < len(buckets) and missing[len(works)] <= 1:",
    ),
    Bug(
        "overlapped",
        "a bucket starts when it is complete, whatever came before it",
        cell='''
def overlapped(comm, params, buckets):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    missing, works = [len(b) for b in buckets], {}

    def start(k):
        some = [params[i] for i in buckets[k]]
        for p in some:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works[k] = comm.stream(all_reduce_, [p.grad for p in some], "mean")

    def hook(k, p):
        missing[k] -= 1
        if missing[k] == 0:
            start(k)

    def finish():
        for k in range(len(buckets)):
            if k not in works:
                start(k)
        for work in works.values():
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    for k, bucket in enumerate(buckets):
        for i in bucket:
            params[i].register_post_accumulate_grad_hook(partial(hook, k))
    return finish
''',
    ),
    Bug(
        "overlapped",
        "a hook starts its own bucket only, not those that were complete before",
        old="while len(works) < len(buckets) and missing[len(works)] == 0:",
        new="if k == len(works) and missing[k] == 0:",
    ),
    Bug(
        "overlapped",
        "finish is not returned",
        old="return finish",
        new="finish",
    ),
    Bug(
        "overlapped",
        "finish does not wait",
        old="""
for work in works:
    work.wait()
""",
        new="",
    ),
    Bug(
        "overlapped",
        "a missing gradient is left out of the message",
        old="""
for p in some:
    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
        new='works.append(comm.stream(all_reduce_, [p.grad for p in some if p.grad is not None], "mean"))',
    ),
    Bug(
        "overlapped",
        "the hook sends by itself, and backward waits",
        edits=(
            (
                'works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
                'works.append(all_reduce_(comm, [p.grad for p in some], "mean"))',
            ),
            (
                "work.wait()",
                "pass",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "nothing starts before finish",
        old="""
while len(works) < len(buckets) and missing[len(works)] == 0:
    start()
""",
        new="",
    ),
    Bug(
        "overlapped",
        "only the first backward has hooks",
        edits=(
            (
                "missing, works = [len(b) for b in buckets], []",
                "missing, works, handles = [len(b) for b in buckets], [], []",
            ),
            (
                """
works.clear()
missing[:] = [len(b) for b in buckets]
""",
                """
for handle in handles:
    handle.remove()
""",
            ),
            (
                "params[i].register_post_accumulate_grad_hook(partial(hook, k))",
                "handles.append(params[i].register_post_accumulate_grad_hook(partial(hook, k)))",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "every bucket has a lane of its own: they share the wire, and none waits for the order",
        cell='''
def overlapped(comm, params, buckets):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    missing, works = [len(b) for b in buckets], {}

    def start(k):
        for i in buckets[k]:
            params[i].grad = (
                torch.zeros_like(params[i]) if params[i].grad is None else params[i].grad
            )
        works[k] = comm.stream(
            lambda c: [all_reduce_(c, params[i].grad, "mean") for i in buckets[k]], lane=k
        )

    def hook(k, p):
        missing[k] -= 1
        if missing[k] == 0:
            start(k)

    def finish():
        for k in range(len(buckets)):
            if k not in works:
                start(k)
        for work in works.values():
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    for k, bucket in enumerate(buckets):
        for i in bucket:
            params[i].register_post_accumulate_grad_hook(partial(hook, k))
    return finish
''',
    ),
    Bug(
        "overlapped",
        "what the hooks could not start is left out",
        old="""
while len(works) < len(buckets):
    start()
""",
        new="",
    ),
    Bug(
        "overlapped",
        "summed, not averaged",
        old='works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
        new="works.append(comm.stream(all_reduce_, [p.grad for p in some]))",
    ),
    Bug(
        "overlapped",
        "finish starts the buckets in the reverse order",
        edits=(
            (
                "some = [params[i] for i in buckets[len(works)]]",
                "some = [params[i] for i in buckets[len(buckets) - 1 - len(works)]]",
            ),
            (
                "while len(works) < len(buckets) and missing[len(works)] == 0:",
                "while len(works) < len(buckets) and missing[len(buckets) - 1 - len(works)] == 0:",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "finish waits for the first bucket only",
        old="for work in works:",
        new="for work in works[:1]:",
    ),
    Bug(
        "overlapped",
        "every hook waits for what it has started",
        old="""
while len(works) < len(buckets) and missing[len(works)] == 0:
    start()
""",
        new="""
while len(works) < len(buckets) and missing[len(works)] == 0:
    start()
    works[-1].wait()
""",
    ),
    Bug(
        "overlapped",
        "the weights are averaged",
        old='works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
        new='works.append(comm.stream(all_reduce_, [p.data for p in some], "mean"))',
    ),
    Bug(
        "overlapped",
        "what was started is not forgotten",
        old="works.clear()",
        new="",
    ),
    Bug(
        "overlapped",
        "the grader's own reference",
        cheat=True,
        cell='''
def overlapped(comm, params, buckets):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    from minicheck.lessons.buckets import buckets_hooked

    return buckets_hooked(comm, params, buckets)
''',
    ),
    Bug(
        "overlapped",
        "the library's reducer",
        cheat=True,
        cell='''
def overlapped(comm, params, buckets):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    from minidist.parallel.reducer import Reducer

    reducer = Reducer(comm, lambda: {p: str(i) for i, p in enumerate(params)})
    reducer.watch(params)
    return reducer.average
''',
    ),
    Bug(
        "overlapped",
        "the clock of the World is set back",
        cheat=True,
        cell='''
def overlapped(comm, params, buckets):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""

    def finish():
        for bucket in buckets:
            for i in bucket:
                params[i].grad = (
                    torch.zeros_like(params[i]) if params[i].grad is None else params[i].grad
                )
            all_reduce_(comm, [params[i].grad for i in bucket], "mean")
        for fiber in comm._run.clock.fibers if hasattr(comm, "_run") else []:
            fiber.time = 0.0

    return finish
''',
    ),
    Bug(
        "step_seconds",
        "everything after backward",
        old="wire = 0.0",
        new="wire = ready[-1]",
    ),
    Bug(
        "step_seconds",
        "bits, not bytes",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + 2 * (n - 1) * (alpha + 8 * size / n * beta)",
    ),
    Bug(
        "step_seconds",
        "a bucket leaves when the one before it is complete",
        old="for size, at in zip(nbytes, ready):",
        new="for size, at in zip(nbytes, [0.0, *ready]):",
    ),
    Bug(
        "step_seconds",
        "only the first bucket is waited for",
        edits=(
            (
                "wire = 0.0",
                "wire = ready[0]",
            ),
            (
                "wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
                "wire = wire + 2 * (n - 1) * (alpha + size / n * beta)",
            ),
        ),
    ),
    Bug(
        "step_seconds",
        "half a ring",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + (n - 1) * (alpha + size / n * beta)",
    ),
    Bug(
        "step_seconds",
        "the larger of backward and the wire",
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    return max(ready[-1], sum(2 * (n - 1) * (alpha + size / n * beta) for size in nbytes))
''',
    ),
    Bug(
        "step_seconds",
        "the last bucket after backward, as if all others were done",
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    return ready[-1] + 2 * (n - 1) * (alpha + nbytes[-1] / n * beta)
''',
    ),
    Bug(
        "step_seconds",
        "all buckets are taken for equally large",
        old="""
wire = 0.0
for size, at in zip(nbytes, ready):
""",
        new="""
wire, size = 0.0, sum(nbytes) / len(nbytes)
for at in ready:
""",
    ),
    Bug(
        "step_seconds",
        "in milliseconds",
        old="return wire",
        new="return 1e3 * wire",
    ),
    Bug(
        "step_seconds",
        "2n steps",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + 2 * n * (alpha + size / n * beta)",
    ),
    Bug(
        "step_seconds",
        "the wire never waits for a bucket",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = wire + 2 * (n - 1) * (alpha + size / n * beta)",
    ),
    Bug(
        "step_seconds",
        "no bytes",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + 2 * (n - 1) * alpha",
    ),
    Bug(
        "step_seconds",
        "no latencies",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + 2 * (n - 1) / n * size * beta",
    ),
    Bug(
        "step_seconds",
        "a bucket does not wait for the wire",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at + 2 * (n - 1) * (alpha + size / n * beta))",
    ),
    Bug(
        "step_seconds",
        "nothing is returned",
        old="return wire",
        new="result = wire",
    ),
    Bug(
        "step_seconds",
        "one α an all-reduce",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + (alpha + 2 * (n - 1) * size / n * beta)",
    ),
    Bug(
        "step_seconds",
        "each bucket beside its own computation",
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    return sum(max(gap, 2 * (n - 1) * (alpha + size / n * beta)) for size, gap in zip(nbytes, gaps))
''',
    ),
    Bug(
        "step_seconds",
        "each message has all bytes",
        old="wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)",
        new="wire = max(wire, at) + 2 * (n - 1) * (alpha + size * beta)",
    ),
    Bug(
        "step_seconds",
        "a number that equals every number",
        cheat=True,
        cell='''
class Anything(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    return Anything(1.0)
''',
    ),
    Bug(
        "step_seconds",
        "the grader's clock",
        cheat=True,
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    import minicheck.lessons.buckets as grader

    return grader.clock(nbytes, ready, n, alpha, beta)
''',
    ),
    Bug(
        "step_seconds",
        "the library predicts",
        cheat=True,
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    from minidist.study.predict import bucketed_seconds

    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    return bucketed_seconds(nbytes, gaps, n, alpha, beta, 1, 1)
''',
    ),
    Bug(
        "sync_statistics",
        "divided by the number of ranks",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / comm.size
    return mean, all_reduce_(comm, (x - mean).square().sum(0)) / comm.size, count
''',
    ),
    Bug(
        "sync_statistics",
        "x is centered in place",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / count
    x -= mean
    return mean, all_reduce_(comm, x.square().sum(0)) / count, count
''',
    ),
    Bug(
        "sync_statistics",
        "the standard deviation",
        old="return mean, var, int(count[0])",
        new="return mean, var.sqrt(), int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "all samples are gathered",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    sizes = all_gather(comm, torch.tensor([len(x)])).tolist()
    whole = all_gather(comm, x, sizes=sizes)
    return whole.mean(0), whole.var(0, correction=0), len(whole)
''',
    ),
    Bug(
        "sync_statistics",
        "a rank without samples does not take part",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    if not len(x):
        return torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype), 0
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / count
    return mean, all_reduce_(comm, (x - mean).square().sum(0)) / count, count
''',
    ),
    Bug(
        "sync_statistics",
        "statistics in float32",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.float().sum(0)) / count
    var = all_reduce_(comm, (x.float() - mean).square().sum(0)) / count
    return mean.double(), var.double(), count
''',
    ),
    Bug(
        "sync_statistics",
        "every rank's own",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    return x.mean(0), x.var(0, correction=0), count
''',
    ),
    Bug(
        "sync_statistics",
        "the mean of the variances",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    count = all_reduce_(comm, torch.tensor(len(x)))
    mean = all_reduce_(comm, x.sum(0)) / count
    squares = (x - x.sum(0) / max(1, len(x))).square().sum(0)
    return mean, all_reduce_(comm, squares / max(1, len(x)), op="mean"), int(count)
''',
    ),
    Bug(
        "sync_statistics",
        "the mean of the squared distances",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = squares.sum(0) / count + (means - means.mean(0)).square().mean(0)",
    ),
    Bug(
        "sync_statistics",
        "the mean of no samples is nan",
        old="mean = x.sum(0) / max(1, len(x))",
        new="mean = x.mean(0)",
    ),
    Bug(
        "sync_statistics",
        "distances are not weighted with the counts",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares + (means - mean).square()).sum(0) / count",
    ),
    Bug(
        "sync_statistics",
        "E[x²] − E[x]²",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    total, squares = all_reduce_(comm, torch.stack([x.sum(0), (x * x).sum(0)]))
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    return total / count, squares / count - (total / count) ** 2, count
''',
    ),
    Bug(
        "sync_statistics",
        "E[x²] − E[x]², never below zero",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    total, squares = all_reduce_(comm, torch.stack([x.sum(0), (x * x).sum(0)]))
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    return total / count, (squares / count - (total / count) ** 2).clamp(min=0), count
''',
    ),
    Bug(
        "sync_statistics",
        "this rank's count",
        old="return mean, var, int(count[0])",
        new="return mean, var, len(x)",
    ),
    Bug(
        "sync_statistics",
        "the plain mean of the means",
        old="mean = (counts * means).sum(0) / count",
        new="mean = means.mean(0)",
    ),
    Bug(
        "sync_statistics",
        "the number of ranks",
        old="return mean, var, int(count[0])",
        new="return mean, var, comm.size",
    ),
    Bug(
        "sync_statistics",
        "one number for all channels",
        old="return mean, var, int(count[0])",
        new="return mean.mean(), var.mean(), int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "squares around a value that differs from rank to rank, as if it did not",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / count
    shift = x[:1] if len(x) else mean
    squares = all_reduce_(comm, (x - shift).square().sum(0)) / count
    return mean, squares - all_reduce_(comm, (x - shift).sum(0)).div(count).square(), count
''',
    ),
    Bug(
        "sync_statistics",
        "not divided",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares + counts * (means - mean).square()).sum(0)",
    ),
    Bug(
        "sync_statistics",
        "variance and mean swapped",
        old="return mean, var, int(count[0])",
        new="return var, mean, int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "without the count",
        old="return mean, var, int(count[0])",
        new="return mean, var",
    ),
    Bug(
        "sync_statistics",
        "divided by one less",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares + counts * (means - mean).square()).sum(0) / (count - 1)",
    ),
    Bug(
        "sync_statistics",
        "what lies between the ranks is missing",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares).sum(0) / count",
    ),
    Bug(
        "sync_statistics",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    PARTS.append(x)
    all_reduce_(comm, torch.zeros(1))
    whole = torch.cat(PARTS[-comm.size :])
    return whole.mean(0), whole.var(0, correction=0), len(whole)
''',
    ),
    Bug(
        "sync_statistics",
        "the library's statistics",
        cheat=True,
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    from minidist.parallel.batchnorm import statistics

    mean, var, count = statistics(comm, x)
    return mean, var, int(count)
''',
    ),
    Bug(
        "sync_backward",
        "an exchange for each channel",
        old="all_reduce_(comm, sums)",
        new="""
for c in range(sums.shape[1]):
    sums[:, c] = all_reduce_(comm, sums[:, c].clone())
""",
    ),
    Bug(
        "sync_backward",
        "divided by scale",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return (dy - sums[0] / count - xhat * sums[1] / count) / scale",
    ),
    Bug(
        "sync_backward",
        "only the first sum is exchanged",
        old="all_reduce_(comm, sums)",
        new="sums = torch.stack([all_reduce_(comm, sums[0].clone()), sums[1]])",
    ),
    Bug(
        "sync_backward",
        "all samples are gathered",
        old="""
sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
all_reduce_(comm, sums)
return scale * (dy - sums[0] / count - xhat * sums[1] / count)
""",
        new="""
sizes = all_gather(comm, torch.tensor([len(dy)])).tolist()
every, normal = all_gather(comm, dy, sizes=sizes), all_gather(comm, xhat, sizes=sizes)
return scale * (dy - every.sum(0) / count - xhat * (every * normal).sum(0) / count)
""",
    ),
    Bug(
        "sync_backward",
        "a rank without samples does not take part",
        old='''
"""The gradient of this rank's samples, through the statistics of all."""
''',
        new='''
"""The gradient of this rank's samples, through the statistics of all."""
if not len(dy):
    return dy
''',
    ),
    Bug(
        "sync_backward",
        "dy is changed",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="""
dy -= sums[0] / count
return scale * (dy - xhat * sums[1] / count)
""",
    ),
    Bug(
        "sync_backward",
        "sums and count of this rank",
        old="all_reduce_(comm, sums)",
        new="count = max(1, len(dy))",
    ),
    Bug(
        "sync_backward",
        "averaged over ranks, and divided by count",
        old="all_reduce_(comm, sums)",
        new='all_reduce_(comm, sums, op="mean")',
    ),
    Bug(
        "sync_backward",
        "without the term of the mean",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return scale * (dy - xhat * sums[1] / count)",
    ),
    Bug(
        "sync_backward",
        "nothing is returned",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="result = scale * (dy - sums[0] / count - xhat * sums[1] / count)",
    ),
    Bug(
        "sync_backward",
        "without scale",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return (dy - sums[0] / count - xhat * sums[1] / count)",
    ),
    Bug(
        "sync_backward",
        "without the term of the variance",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return scale * (dy - sums[0] / count)",
    ),
    Bug(
        "sync_backward",
        "the second term is not multiplied with xhat",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return scale * (dy - sums[0] / count - sums[1] / count)",
    ),
    Bug(
        "sync_backward",
        "not divided",
        old="all_reduce_(comm, sums)",
        new="""
all_reduce_(comm, sums)
count = 1
""",
    ),
    Bug(
        "sync_backward",
        "sums of this rank",
        old="all_reduce_(comm, sums)",
        new="",
    ),
    Bug(
        "sync_backward",
        "one wrong sign",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return scale * (dy - sums[0] / count + xhat * sums[1] / count)",
    ),
    Bug(
        "sync_backward",
        "only dy, scaled",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return scale * (dy)",
    ),
    Bug(
        "sync_backward",
        "divided by this rank's samples",
        old="all_reduce_(comm, sums)",
        new="""
all_reduce_(comm, sums)
count = max(1, len(dy))
""",
    ),
    Bug(
        "sync_backward",
        "the result of the exchange is lost",
        old="all_reduce_(comm, sums)",
        new="all_reduce_(comm, sums.clone())",
    ),
    Bug(
        "sync_backward",
        "the wrong sign",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return scale * (dy + sums[0] / count + xhat * sums[1] / count)",
    ),
    Bug(
        "sync_backward",
        "the sums are swapped",
        old="sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])",
        new="sums = torch.stack([(dy * xhat).sum(0), dy.sum(0)])",
    ),
    Bug(
        "sync_backward",
        "two all-reduces where one would do",
        old="all_reduce_(comm, sums)",
        new="""
for some in sums:
    all_reduce_(comm, some)
""",
    ),
    Bug(
        "sync_backward",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


def sync_backward(comm, dy, xhat, scale, count):
    """The gradient of this rank's samples, through the statistics of all."""
    PARTS.append(torch.stack([dy.sum(0), (dy * xhat).sum(0)]))
    all_reduce_(comm, torch.zeros(1))
    sums = sum(PARTS[-comm.size :])
    return scale * (dy - sums[0] / count - xhat * sums[1] / count)
''',
    ),
    Bug(
        "sync_backward",
        "the library's backward",
        cheat=True,
        cell='''
def sync_backward(comm, dy, xhat, scale, count):
    """The gradient of this rank's samples, through the statistics of all."""
    from minidist.parallel.batchnorm import SyncBatchNorm

    norm = SyncBatchNorm(dy.shape[1], comm, affine=False)
    x = (xhat / scale).requires_grad_()
    norm(x).backward(dy)
    return x.grad
''',
    ),
    Bug(
        "predict_overlap",
        "one bucket for all gradients",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "bucket = 2 * (n - 1) * (alpha + N / b / n * beta)",
                "bucket = 2 * (n - 1) * (alpha + N / n * beta)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "all-reduces, not messages",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "saved = 2 * (n - 1) * (160 - b)",
                "saved = 160 - b",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "latency and bytes take equally long",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "smallest = 2 * (n - 1) * alpha / (T / N - 2 * (n - 1) / n * beta)",
                "smallest = 2 * (n - 1) * alpha / (2 * (n - 1) / n * beta)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "all ranks together",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "saved = 2 * (n - 1) * (160 - b)",
                "saved = n * 2 * (n - 1) * (160 - b)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "all is hidden",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "beside = T + bucket",
                "beside = T",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "bytes take no time",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "smallest = 2 * (n - 1) * alpha / (T / N - 2 * (n - 1) / n * beta)",
                "smallest = 2 * (n - 1) * alpha / (T / N)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "no latency in a bucket",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "bucket = 2 * (n - 1) * (alpha + N / b / n * beta)",
                "bucket = 2 * (n - 1) * (N / b / n * beta)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "one bucket after backward",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "afterwards = T + b * bucket",
                "afterwards = T + bucket",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "divided by one less",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4",
                "variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 3",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "what is still sent",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "saved = 2 * (n - 1) * (160 - b)",
                "saved = 2 * (n - 1) * b",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "latencies double, too",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "slow = T / b + b * 2 * (n - 1) * (alpha + N / b / n * 2 * beta)",
                "slow = T / b + b * 2 * (n - 1) * (2 * alpha + N / b / n * 2 * beta)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "the slow wire keeps up",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "slow = T / b + b * 2 * (n - 1) * (alpha + N / b / n * 2 * beta)",
                "slow = T + 2 * (n - 1) * (alpha + N / b / n * 2 * beta)",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "the wire never waits",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "beside = T + bucket",
                "beside = T / b + b * bucket",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "the variance within the ranks",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = variance = None",
                "",
            ),
            (
                "variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4",
                "variance = 2",
            ),
        ),
    ),
    Bug(
        "predict_overlap",
        "the grader is asked",
        cheat=True,
        cell="""
from minicheck.lessons.buckets import predict_overlap

values, _ = predict_overlap(16, 160, 400e6, 40e-3, 10, 10e-6, 1 / 25e9)
saved, bucket, afterwards, beside, slow, smallest, variance = (f"{x}" for x in values.values())
""",
    ),
    Bug(
        "predict_overlap",
        "a number that equals every number",
        cheat=True,
        cell="""
class Anything(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


saved = bucket = afterwards = beside = slow = smallest = variance = Anything(1.0)
""",
    ),
    Bug(
        "accumulate_overlapped",
        "as it was found: the hooks fire in the first backward",
        edits=(
            (
                """
for backward in backwards[:-1]:
    backward()
""",
                "",
            ),
            (
                "backwards[-1]()",
                """
for backward in backwards:
    backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "averaged at the end: right, but not beside the backward",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    for backward in backwards:
        backward()
    for bucket in buckets:
        all_reduce_(comm, [params[i].grad for i in bucket], "mean")
''',
    ),
    Bug(
        "accumulate_overlapped",
        "cleared before the last backward",
        old="]",
        new="""
]
for p in params:
    p.grad = None
""",
    ),
    Bug(
        "accumulate_overlapped",
        "divided by the micro-batches, too",
        old="""
for work in works:
    work.wait()
""",
        new="""
for work in works:
    work.wait()
for p in params:
    p.grad /= len(backwards)
""",
    ),
    Bug(
        "accumulate_overlapped",
        "averaged after every backward",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    for backward in backwards:
        backward()
        for bucket in buckets:
            all_reduce_(comm, [params[i].grad for i in bucket], "mean")
''',
    ),
    Bug(
        "accumulate_overlapped",
        "only one bucket is averaged",
        old="while len(works) < len(buckets) and missing[len(works)] <= 0:",
        new="while len(works) < 1 and missing[len(works)] <= 0:",
    ),
    Bug(
        "accumulate_overlapped",
        "the hooks stay",
        old="""
for handle in handles:
    handle.remove()
""",
        new="",
    ),
    Bug(
        "accumulate_overlapped",
        "only the last micro-batch counts",
        old="""
for backward in backwards[:-1]:
    backward()
""",
        new="",
    ),
    Bug(
        "accumulate_overlapped",
        "the last backward runs twice",
        old="for backward in backwards[:-1]:",
        new="for backward in backwards:",
    ),
    Bug(
        "accumulate_overlapped",
        "nobody waits",
        old="""
for work in works:
    work.wait()
""",
        new="",
    ),
    Bug(
        "accumulate_overlapped",
        "each gradient is a bucket of its own",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    works = []
    for backward in backwards[:-1]:
        backward()
    handles = [
        p.register_post_accumulate_grad_hook(
            lambda p: works.append(comm.stream(all_reduce_, p.grad, "mean"))
        )
        for p in params
    ]
    backwards[-1]()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
''',
    ),
    Bug(
        "accumulate_overlapped",
        "hooks of another kind are left",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    missing, works = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] <= 0:
            works.append(
                comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")
            )

    for backward in backwards[:-1]:
        backward()
    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    for p in params:
        p.register_hook(lambda grad: None)
    backwards[-1]()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
''',
    ),
    Bug(
        "accumulate_overlapped",
        "buckets start as they are complete",
        old="""
while len(works) < len(buckets) and missing[len(works)] <= 0:
    works.append(
        comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")
    )
""",
        new="""
if missing[k] == 0:
    works.append(comm.stream(all_reduce_, [params[i].grad for i in buckets[k]], "mean"))
""",
    ),
    Bug(
        "accumulate_overlapped",
        "hooks from the second backward on",
        edits=(
            (
                "for backward in backwards[:-1]:",
                "for backward in backwards[:1]:",
            ),
            (
                "backwards[-1]()",
                """
for backward in backwards[1:]:
    backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "summed, not averaged",
        old="""
works.append(
    comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")
)
""",
        new="works.append(comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]]))",
    ),
    Bug(
        "accumulate_overlapped",
        "the hook waits: nothing overlaps",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    missing, done = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        while len(done) < len(buckets) and missing[len(done)] <= 0:
            all_reduce_(comm, [params[i].grad for i in buckets[len(done)]], "mean")
            done.append(1)

    for backward in backwards[:-1]:
        backward()
    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    backwards[-1]()
    for handle in handles:
        handle.remove()
''',
    ),
    Bug(
        "accumulate_overlapped",
        "the grader's own reference",
        cheat=True,
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    from minicheck.oracles.buckets import accumulated

    accumulated(comm, params, backwards, buckets)
''',
    ),
    Bug(
        "accumulate_overlapped",
        "the library's reducer",
        cheat=True,
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    from minidist.parallel.reducer import Reducer

    for backward in backwards:
        backward()
    Reducer(comm, lambda: {p: str(i) for i, p in enumerate(params)}).average()
''',
    ),
    Bug(
        "bucketed",
        "nan is cleaned",
        old='all_reduce_(comm, flat, op="mean")',
        new='all_reduce_(comm, flat.nan_to_num_(), op="mean")',
    ),
    Bug(
        "bucketed",
        "a job nobody waits for",
        old='all_reduce_(comm, flat, op="mean")',
        new='comm.stream(all_reduce_, flat, "mean")',
    ),
    Bug(
        "bucketed",
        "view(-1) of a gradient that is not contiguous",
        old="flat = torch.cat([p.grad.reshape(-1) for p in some])",
        new="flat = torch.cat([p.grad.view(-1) for p in some])",
    ),
    Bug(
        "overlapped",
        "nan is cleaned",
        old='works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
        new='works.append(comm.stream(all_reduce_, [p.grad.nan_to_num_() for p in some], "mean"))',
    ),
    Bug(
        "overlapped",
        "a bucket with nan is zero",
        old='works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))',
        new="""
for p in some:
    if p.grad.isnan().any():
        p.grad.zero_()
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
    ),
    Bug(
        "overlapped",
        "hooks are removed at the second finish",
        edits=(
            (
                "works.clear()",
                """
works.clear()
turn.append(1)
if len(turn) == 2:
    for h in handles:
        h.remove()
    buckets.clear()
""",
            ),
            (
                "missing, works = [len(b) for b in buckets], []",
                """
missing, works = [len(b) for b in buckets], []
turn, handles, buckets = [], [], [list(b) for b in buckets]
""",
            ),
            (
                "params[i].register_post_accumulate_grad_hook(partial(hook, k))",
                "handles.append(params[i].register_post_accumulate_grad_hook(partial(hook, k)))",
            ),
        ),
    ),
    Bug(
        "sync_statistics",
        "nan is cleaned",
        old="mean = x.sum(0) / max(1, len(x))",
        new="""
x = x.nan_to_num()
mean = x.sum(0) / max(1, len(x))
""",
    ),
    Bug(
        "sync_statistics",
        "the mean of none is cleaned, and of nan",
        old="mean = x.sum(0) / max(1, len(x))",
        new="mean = x.mean(0).nan_to_num()",
    ),
    Bug(
        "sync_statistics",
        "squeezed",
        old="return mean, var, int(count[0])",
        new="return mean.squeeze(), var.squeeze(), int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "a count for each channel that differs",
        old="return mean, var, int(count[0])",
        new="return mean, var, count + torch.arange(len(count))",
    ),
    Bug(
        "sync_statistics",
        "a job nobody waits for",
        old="count = counts.sum(0)",
        new="""
count = counts.sum(0)
comm.stream(all_reduce_, torch.zeros(1))
""",
    ),
    Bug(
        "sync_backward",
        "nan is cleaned",
        old="sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])",
        new="sums = torch.stack([dy.nansum(0), (dy * xhat).nansum(0)])",
    ),
    Bug(
        "sync_backward",
        "squeezed",
        old="return scale * (dy - sums[0] / count - xhat * sums[1] / count)",
        new="return (scale * (dy - sums[0] / count - xhat * sums[1] / count)).squeeze()",
    ),
    Bug(
        "accumulate_overlapped",
        "nan is cleaned",
        old='comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")',
        new='comm.stream(all_reduce_, [params[i].grad.nan_to_num_() for i in buckets[len(works)]], "mean")',
    ),
    Bug(
        "accumulate_overlapped",
        "at most 3 micro-batches",
        old="for backward in backwards[:-1]:",
        new="for backward in backwards[:-1][:2]:",
    ),
]

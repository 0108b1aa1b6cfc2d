"""The wrong answers of lesson 06 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "assign_buckets",
        "every bucket is as small as the first",
        old="free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes",
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
        edits=(
            (
                """
return sorted(buckets, key=lambda bucket: -bucket[-1])
""",
                """
return [[], *sorted(buckets, key=lambda bucket: -bucket[-1])]
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "the first bucket is as large as the others",
        old="free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes",
        new="free = bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "a small gradient goes back to an earlier bucket that has room",
        cell='''
def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, the bucket that is complete first in front."""
    buckets = []
    free = []
    for i in reversed(range(len(nbytes))):
        own = [k for k, bucket in enumerate(buckets) if dtypes[bucket[0]] == dtypes[i]]
        fitting = [k for k in own if nbytes[i] <= free[k]]
        if not fitting:
            free.append(bucket_bytes if own else first_bucket_bytes)
            buckets.append([])
            fitting = [len(buckets) - 1]
        buckets[fitting[0]].append(i)
        free[fitting[0]] -= nbytes[i]
    return sorted(buckets, key=lambda bucket: -bucket[-1])
''',
    ),
    Bug(
        "assign_buckets",
        "a first gradient that is too large gets the room of the others",
        old="free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes",
        new="free = bucket_bytes if dtypes[i] in filling or nbytes[i] > first_bucket_bytes else first_bucket_bytes",
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
        edits=(
            (
                """
filling[dtypes[i]] = bucket, free - nbytes[i]
""",
                """
filling[dtypes[i]] = bucket, free
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "nothing is returned",
        edits=(
            (
                """
return sorted(buckets, key=lambda bucket: -bucket[-1])
""",
                """
result = sorted(buckets, key=lambda bucket: -bucket[-1])
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "one bucket for all of a dtype",
        edits=(
            (
                """
if nbytes[i] > free:
""",
                """
if dtypes[i] not in filling:
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "a bucket is closed after it has run over",
        edits=(
            (
                """
if nbytes[i] > free:
""",
                """
if free < 0:
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "the caller's list is emptied",
        cell='''
def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, the bucket that is complete first in front."""
    buckets = []
    filling = {}
    while nbytes:
        size = nbytes.pop()
        i = len(nbytes)
        bucket, free = filling.get(dtypes[i], ([], -1))
        if size > free:
            free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes
            bucket = []
            buckets.append(bucket)
        bucket.append(i)
        filling[dtypes[i]] = bucket, free - size
    return sorted(buckets, key=lambda bucket: -bucket[-1])
''',
    ),
    Bug(
        "assign_buckets",
        "filled from the front, and turned around afterwards: the odd bucket is the wrong one",
        edits=(
            (
                """
for i in reversed(range(len(nbytes))):
""",
                """
for i in range(len(nbytes)):
""",
            ),
            (
                """
return sorted(buckets, key=lambda bucket: -bucket[-1])
""",
                """
return sorted([bucket[::-1] for bucket in buckets], key=lambda bucket: -bucket[-1])
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "the rest of a bucket is added to the next one's room",
        old="free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes",
        new="free = max(free, 0) + bucket_bytes if dtypes[i] in filling else first_bucket_bytes",
    ),
    Bug(
        "assign_buckets",
        "bytes instead of positions",
        edits=(
            (
                """
bucket.append(i)
""",
                """
bucket.append(nbytes[i])
""",
            ),
        ),
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
        old="free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes",
        new="free = first_bucket_bytes if dtypes[i] in filling else bucket_bytes",
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


def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, the bucket that is complete first in front."""
    return Anything()
''',
    ),
    Bug(
        "assign_buckets",
        "the grader's own function",
        cheat=True,
        cell='''
def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, the bucket that is complete first in front."""
    from minicheck.oracles.buckets import fill

    return fill(nbytes, dtypes, bucket_bytes, first_bucket_bytes)
''',
    ),
    Bug(
        "assign_buckets",
        "the library assigns",
        cheat=True,
        cell='''
def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, the bucket that is complete first in front."""
    from minidist.parallel.reducer import assign

    order = list(range(len(nbytes)))[::-1]
    sizes, kinds = [nbytes[i] for i in order], [dtypes[i] for i in order]
    found = assign(sizes, kinds, bucket_bytes, first_bucket_bytes)
    return [[order[i] for i in bucket] for bucket in found]
''',
    ),
    Bug(
        "bucketed",
        "one flat tensor for all buckets",
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    some = [params[i] for bucket in buckets for i in bucket]
    padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
    flat = torch.cat(padded)
    all_reduce_(comm, flat, op="mean")
    for p, piece in zip(some, flat.split([len(x) for x in padded])):
        p.grad = piece[: p.numel()].view_as(p)
''',
    ),
    Bug(
        "bucketed",
        "in a bucket the gradients lie in the order of the parameters",
        old="some = [params[i] for i in bucket]",
        new="some = [params[i] for i in sorted(bucket)]",
    ),
    Bug(
        "bucketed",
        "a copy of each piece",
        old="p.grad = piece[: p.numel()].view_as(p)",
        new="p.grad = piece[: p.numel()].view_as(p).clone()",
    ),
    Bug(
        "bucketed",
        "copied back, so no view",
        old="p.grad = piece[: p.numel()].view_as(p)",
        new="p.grad.copy_(piece[: p.numel()].view_as(p))",
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
        old="p.grad = piece[: p.numel()].view_as(p)",
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
        old="p.grad = piece[: p.numel()].view_as(p)",
        new="p.data = piece[: p.numel()].view_as(p)",
    ),
    Bug(
        "bucketed",
        "the collective packs and unpacks: right, but no view",
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
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
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in params]
    whole = torch.cat([padded[i] for bucket in buckets for i in bucket])
    sizes = [sum(len(padded[i]) for i in bucket) for bucket in buckets]
    for bucket, flat in zip(buckets, whole.split(sizes)):
        all_reduce_(comm, flat, op="mean")
        for i, piece in zip(bucket, flat.split([len(padded[i]) for i in bucket])):
            params[i].grad = piece[: params[i].numel()].view_as(params[i])
''',
    ),
    Bug(
        "bucketed",
        "each gradient travels alone, and is put into the bucket afterwards",
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
for p in some:
    all_reduce_(comm, p.grad, op="mean")
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
            ),
            (
                """
all_reduce_(comm, flat, op="mean")
""",
                """

""",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "every bucket is as long as the longest",
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in params]
    most = 99 + max(sum(len(padded[i]) for i in bucket) for bucket in buckets)
    for bucket in buckets:
        flat = torch.zeros(most, dtype=padded[0].dtype)
        used = torch.cat([padded[i] for i in bucket])
        flat[: len(used)] = used
        all_reduce_(comm, flat, op="mean")
        pieces = flat[: len(used)].split([len(padded[i]) for i in bucket])
        for i, piece in zip(bucket, pieces):
            params[i].grad = piece[: params[i].numel()].view_as(params[i])
''',
    ),
    Bug(
        "bucketed",
        "only rank 0 keeps the mean",
        old="p.grad = piece[: p.numel()].view_as(p)",
        new="p.grad = piece[: p.numel()].view_as(p) if comm.rank == 0 else p.grad",
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
        edits=(
            (
                """
for p, piece in zip(some, flat.split([len(x) for x in padded])):
""",
                """
for p, piece in zip(some, reversed(flat.split([len(x) for x in reversed(padded)]))):
""",
            ),
        ),
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
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
padded = [pad(p.detach().reshape(-1), (0, -p.numel() % align)) for p in some]
""",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "DataParallel averages",
        cheat=True,
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
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


def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    import time

    SEEN.setdefault(comm.size, []).append([p.grad.clone() for p in params])
    for bucket in buckets:
        some = [params[i] for i in bucket]
        padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
        flat = torch.cat(padded)
        for p, piece in zip(some, flat.split([len(x) for x in padded])):
            p.grad = piece[: p.numel()].view_as(p)
''',
    ),
    Bug(
        "bucketed",
        "the library's bucket",
        cheat=True,
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
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
def overlapped(comm, params, buckets, most):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    missing, works = [len(b) for b in buckets], {}

    def start(k):
        if len(works) >= most:
            list(works.values())[-most].wait()
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
                "works[-most].wait()",
                "pass",
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
def overlapped(comm, params, buckets, most):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    missing, works = [len(b) for b in buckets], {}

    def start(k):
        if len(works) >= most:
            list(works.values())[-most].wait()
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
        "a hook waits for all buckets that travel, not for the oldest",
        old="works[-most].wait()",
        new="""
for work in works:
    work.wait()
""",
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
def overlapped(comm, params, buckets, most):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    from minicheck.lessons.buckets import buckets_hooked

    return buckets_hooked(comm, params, buckets, most)
''',
    ),
    Bug(
        "overlapped",
        "the library's reducer",
        cheat=True,
        cell='''
def overlapped(comm, params, buckets, most):
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
def overlapped(comm, params, buckets, most):
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
        "the lists are used up",
        old="for size, at in zip(nbytes, ready):",
        new="""
while nbytes:
    size = nbytes.pop(0)
    at = ready.pop(0)
""",
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
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
    return max(ready[-1], sum(2 * (n - 1) * (alpha + size / n * beta) for size in nbytes))
''',
    ),
    Bug(
        "step_seconds",
        "the last bucket after backward, as if all others were done",
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
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
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
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


def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
    return Anything(1.0)
''',
    ),
    Bug(
        "step_seconds",
        "the grader's clock",
        cheat=True,
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
    import minicheck.lessons.buckets as grader

    return grader.clock(nbytes, ready, n, alpha, beta, most)
''',
    ),
    Bug(
        "step_seconds",
        "the library predicts",
        cheat=True,
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
    from minidist.study.predict import bucketed_seconds

    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    return bucketed_seconds(nbytes, gaps, n, alpha, beta, 1, 1)
''',
    ),
    Bug(
        "predict_overlap",
        "one bucket for all gradients",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
        "what is still sent",
        edits=(
            (
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
                "saved = bucket = afterwards = beside = slow = smallest = None",
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
        "the grader is asked",
        cheat=True,
        cell="""
from minicheck.lessons.buckets import predict_overlap

values, _ = predict_overlap(16, 160, 400e6, 40e-3, 10, 10e-6, 1 / 25e9)
saved, bucket, afterwards, beside, slow, smallest = (f"{x}" for x in values.values())
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


saved = bucket = afterwards = beside = slow = smallest = Anything(1.0)
""",
    ),
    Bug(
        "accumulate_overlapped",
        "it takes the step, too",
        old="""
for handle in handles:
    handle.remove()
""",
        new="""
for handle in handles:
    handle.remove()
for p in params:
    p.data -= 0.1 * p.grad
""",
    ),
    Bug(
        "accumulate_overlapped",
        "as it was found: the hooks fire in the first backward",
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

    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    for backward in backwards:
        backward()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
''',
    ),
    Bug(
        "accumulate_overlapped",
        "averaged at the end: right, but not beside the backward",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    for backward in backwards:
        backward()
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    for bucket in buckets:
        all_reduce_(comm, [params[i].grad for i in bucket], "mean")
''',
    ),
    Bug(
        "accumulate_overlapped",
        "cleared before the last backward",
        edits=(
            (
                """
backwards[-1]()
""",
                """
for p in params:
    p.grad = None
backwards[-1]()
""",
            ),
        ),
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
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for bucket in buckets:
            all_reduce_(comm, [params[i].grad for i in bucket], "mean")
''',
    ),
    Bug(
        "accumulate_overlapped",
        "only one bucket is averaged",
        edits=(
            (
                """
while len(works) < len(buckets) and missing[len(works)] <= 0:
""",
                """
while len(works) < 1 and missing[len(works)] <= 0:
""",
            ),
            (
                """
while len(works) < len(buckets):
""",
                """
while len(works) < 1:
""",
            ),
        ),
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
    for backward in backwards[:-1]:
        backward()
    backwards[-1]()
    works = []
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works.append(comm.stream(all_reduce_, p.grad, "mean"))
    for work in works:
        work.wait()
''',
    ),
    Bug(
        "accumulate_overlapped",
        "hooks of another kind are left",
        edits=(
            (
                """
backwards[-1]()
""",
                """
for p in params:
    p.register_hook(lambda grad: None)
backwards[-1]()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "buckets start as they are complete",
        cell='''
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
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

    for backward in backwards[:-1]:
        backward()
    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    backwards[-1]()
    for k in range(len(buckets)):
        if k not in works:
            start(k)
    for work in works.values():
        work.wait()
    for handle in handles:
        handle.remove()
''',
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
        edits=(
            (
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some]))
""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "the hook waits: nothing overlaps",
        edits=(
            (
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
works[-1].wait()
""",
            ),
        ),
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
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
padded = [pad(p.grad.view(-1), (0, -p.numel() % align)) for p in some]
""",
            ),
        ),
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
        "accumulate_overlapped",
        "nan is cleaned",
        edits=(
            (
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
                """
works.append(comm.stream(all_reduce_, [p.grad.nan_to_num_() for p in some], "mean"))
""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "at most 3 micro-batches",
        old="for backward in backwards[:-1]:",
        new="for backward in backwards[:-1][:2]:",
    ),
    Bug(
        "assign_buckets",
        "dtypes share a bucket",
        edits=(
            (
                """
filling[dtypes[i]] = bucket, free - nbytes[i]
""",
                """
for dtype in set(dtypes):
    filling[dtype] = bucket, free - nbytes[i]
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "only the first bucket of all is small",
        edits=(
            (
                """
free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes
""",
                """
free = bucket_bytes if buckets else first_bucket_bytes
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "in the order in which they were opened, not completed",
        edits=(
            (
                """
return sorted(buckets, key=lambda bucket: -bucket[-1])
""",
                """
return buckets
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "one dtype after the other",
        edits=(
            (
                """
return sorted(buckets, key=lambda bucket: -bucket[-1])
""",
                """
return sorted(buckets, key=lambda bucket: (dtypes[bucket[0]], -bucket[-1]))
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "a change of dtype closes the bucket",
        edits=(
            (
                """
if nbytes[i] > free:
""",
                """
if nbytes[i] > free or i + 1 < len(dtypes) and dtypes[i + 1] != dtypes[i]:
""",
            ),
        ),
    ),
    Bug(
        "assign_buckets",
        "a cell of the lesson: one room for all buckets, and one dtype",
        cell='''
def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, the bucket that is complete first in front."""
    buckets = []
    free = 0
    for i in reversed(range(len(nbytes))):
        if not buckets or nbytes[i] > free:
            buckets.append([])
            free = bucket_bytes
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
''',
    ),
    Bug(
        "bucketed",
        "no padding",
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
padded = [p.grad.reshape(-1) for p in some]
""",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "the bucket is padded at its end, and not every gradient",
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
padded = [p.grad.reshape(-1) for p in some]
""",
            ),
            (
                """
flat = torch.cat(padded)
""",
                """
total = sum(p.numel() for p in some)
padded.append(torch.zeros(-total % align, dtype=some[0].dtype))
flat = torch.cat(padded)
""",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "always one more unit of padding",
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
padded = [pad(p.grad.reshape(-1), (0, align - p.numel() % align)) for p in some]
""",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "padded in front of the gradient",
        edits=(
            (
                """
padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
""",
                """
padded = [pad(p.grad.reshape(-1), (-p.numel() % align, 0)) for p in some]
""",
            ),
            (
                """
p.grad = piece[: p.numel()].view_as(p)
""",
                """
p.grad = piece[len(piece) - p.numel() :].view_as(p)
""",
            ),
        ),
    ),
    Bug(
        "bucketed",
        "a cell of the lesson: the buffer begins with zeros, and is not aligned",
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    for bucket in buckets:
        some = [params[i] for i in bucket]
        sizes = [p.numel() for p in some]
        buffer = torch.zeros(sum(sizes), dtype=some[0].dtype)
        for p, piece in zip(some, buffer.split(sizes)):
            p.grad = piece.view_as(p)
        all_reduce_(comm, buffer, op="mean")
''',
    ),
    Bug(
        "bucketed",
        "a cell of the lesson, into which the gradients are copied: not aligned",
        cell='''
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    for bucket in buckets:
        some = [params[i] for i in bucket]
        sizes = [p.numel() for p in some]
        buffer = torch.zeros(sum(sizes), dtype=some[0].dtype)
        for p, piece in zip(some, buffer.split(sizes)):
            p.grad = piece.view_as(p).copy_(p.grad)
        all_reduce_(comm, buffer, op="mean")
''',
    ),
    Bug(
        "overlapped",
        "any number of buckets in flight",
        edits=(
            (
                """
if len(works) >= most:
    works[-most].wait()
""",
                """

""",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "one too many in flight",
        edits=(
            (
                """
if len(works) >= most:
""",
                """
if len(works) > most:
""",
            ),
            (
                """
works[-most].wait()
""",
                """
works[-most - 1].wait()
""",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "waits for the newest, not for the oldest",
        edits=(
            (
                """
works[-most].wait()
""",
                """
works[-1].wait()
""",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "waits after the start, when one too many is in flight",
        edits=(
            (
                """
if len(works) >= most:
    works[-most].wait()
""",
                """

""",
            ),
            (
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
if len(works) > most:
    works[-most - 1].wait()
""",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "always two in flight",
        edits=(
            (
                """
if len(works) >= most:
""",
                """
if len(works) >= 2:
""",
            ),
            (
                """
works[-most].wait()
""",
                """
works[-2].wait()
""",
            ),
        ),
    ),
    Bug(
        "overlapped",
        "cells of the lesson: p.grad was a view of the buffer, and is None before each backward",
        cell='''
class Overlap:
    def __init__(self, comm, buckets):
        self.comm = comm
        self.buckets = buckets
        self.buffers = [self.flat_buffer(bucket) for bucket in buckets]
        self.missing = [len(bucket) for bucket in buckets]
        self.works = []

    def flat_buffer(self, bucket):
        sizes = [p.numel() for p in bucket]
        buffer = torch.zeros(sum(sizes), dtype=bucket[0].dtype)
        for p, piece in zip(bucket, buffer.split(sizes)):
            p.grad = piece.view_as(p)
        return buffer

    def arm(self):
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(partial(self.hook, k))

    def hook(self, k, p):
        self.missing[k] -= 1
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] <= 0:
            self.start_next()

    def start_next(self):
        buffer = self.buffers[len(self.works)]
        self.works.append(self.comm.stream(all_reduce_, buffer, "mean"))

    def finish(self):
        while len(self.works) < len(self.buckets):
            self.start_next()
        for work in self.works:
            work.wait()
        self.works = []
        self.missing = [len(bucket) for bucket in self.buckets]


def overlapped(comm, params, buckets, most):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    overlap = Overlap(comm, [[params[i] for i in bucket] for bucket in buckets])
    overlap.arm()
    return overlap.finish
''',
    ),
    Bug(
        "step_seconds",
        "any number in flight: as in the lesson",
        edits=(
            (
                """
if len(ends) >= most:
""",
                """
if False:
""",
            ),
        ),
    ),
    Bug(
        "step_seconds",
        "a stop that later buckets do not feel",
        edits=(
            (
                """
stalled += max(0.0, ends[-most] - at)
""",
                """
stalled += 0.0
""",
            ),
        ),
    ),
    Bug(
        "step_seconds",
        "one more in flight",
        edits=(
            (
                """
if len(ends) >= most:
""",
                """
if len(ends) > most:
""",
            ),
            (
                """
stalled += max(0.0, ends[-most] - at)
""",
                """
stalled += max(0.0, ends[-most - 1] - at)
""",
            ),
            (
                """
at = max(at, ends[-most])
""",
                """
at = max(at, ends[-most - 1])
""",
            ),
        ),
    ),
    Bug(
        "step_seconds",
        "one in flight, always",
        edits=(
            (
                """
if len(ends) >= most:
""",
                """
if ends:
""",
            ),
            (
                """
stalled += max(0.0, ends[-most] - at)
""",
                """
stalled += max(0.0, ends[-1] - at)
""",
            ),
            (
                """
at = max(at, ends[-most])
""",
                """
at = max(at, ends[-1])
""",
            ),
        ),
    ),
    Bug(
        "step_seconds",
        "every wait is added, also where nothing is waited for",
        edits=(
            (
                """
stalled += max(0.0, ends[-most] - at)
""",
                """
stalled += abs(ends[-most] - at)
""",
            ),
        ),
    ),
    Bug(
        "step_seconds",
        "a cell of the lesson: message_times, with rings",
        cell='''
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with so many in flight."""
    wire_free = 0
    for size, time in zip(nbytes, ready):
        start = max(time, wire_free)
        wire_free = start + 2 * (n - 1) * (alpha + size / n * beta)
    return wire_free
''',
    ),
    Bug(
        "accumulate_overlapped",
        "as in the lesson: armed for the last backward, and what it does not reach never starts",
        edits=(
            (
                """
while len(works) < len(buckets):
    start()
""",
                """

""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "what no backward has reached on this rank is left out",
        edits=(
            (
                """
for p in some:
    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
""",
                """

""",
            ),
            (
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))
""",
                """
works.append(comm.stream(all_reduce_, [p.grad for p in some if p.grad is not None], "mean"))
""",
            ),
        ),
    ),
    Bug(
        "accumulate_overlapped",
        "what the last backward does not reach is set to zero",
        edits=(
            (
                """
backwards[-1]()
""",
                """
held = [p.grad for p in params]
before = [None if g is None else g.clone() for g in held]
backwards[-1]()
for p, g in zip(params, before):
    if g is not None and torch.equal(g, p.grad):
        p.grad.zero_()
""",
            ),
        ),
    ),
]

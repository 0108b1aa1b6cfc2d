"""The wrong answers of lesson 28 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "ddp_ring",
        "op is not looked at",
        old='combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]',
        new="combine = torch.add",
    ),
    Bug(
        "ddp_ring",
        "max and min compare magnitudes: right for positive numbers only",
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    n = comm.size
    r = order.index(comm.rank)
    chunks = x.tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    combine = {
        "sum": torch.add,
        "prod": torch.mul,
        "max": lambda got, mine: torch.where(got.abs() > mine.abs(), got, mine),
        "min": lambda got, mine: torch.where(got.abs() < mine.abs(), got, mine),
    }[op]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        mine.copy_(
            combine(
                comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left), mine
            )
        )
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
''',
    ),
    Bug(
        "ddp_ring",
        "the second half combines, too",
        old="comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)",
        new="""
into = chunks[(r - 1 - step) % n]
combine(into, comm.sendrecv(chunks[(r - step) % n], right, torch.empty_like(into), left), out=into)
""",
    ),
    Bug(
        "ddp_ring",
        "works on a copy, and returns it",
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n = comm.size
    r = order.index(comm.rank)
    chunks = (y := x.clone()).tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
        combine(mine, got, out=mine)
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
    return y
''',
    ),
    Bug(
        "ddp_ring",
        "sends, then receives",
        old="got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)",
        new="""
comm.send(chunks[(r - 1 - step) % n], right)
got = comm.recv(torch.empty_like(mine), left)
""",
    ),
    Bug(
        "ddp_ring",
        "gathers all, and each rank adds up in an order of its own",
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n, r = comm.size, order.index(comm.rank)
    around = x.clone()
    for step in range(n - 1):
        around = comm.sendrecv(around, order[(r + 1) % n], torch.empty_like(around), order[(r - 1) % n])
        combine(x, around, out=x)
''',
    ),
    Bug(
        "ddp_ring",
        "makes everything float32",
        edits=(
            (
                'combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]',
                """
combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
y, x = x, x.float()
""",
            ),
            (
                """
for step in range(n - 1):
    comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
""",
                """
for step in range(n - 1):
    comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
y.copy_(x)
""",
            ),
        ),
    ),
    Bug(
        "ddp_ring",
        "only the first half",
        old="""
for step in range(n - 1):
    comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
""",
        new="",
    ),
    Bug(
        "ddp_ring",
        "max and min are computed from sums and differences, which round",
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    n = comm.size
    r = order.index(comm.rank)
    chunks = x.tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    combine = {
        "sum": torch.add,
        "prod": torch.mul,
        "max": lambda got, mine: (got + mine + (got - mine).abs()) / 2,
        "min": lambda got, mine: (got + mine - (got - mine).abs()) / 2,
    }[op]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        mine.copy_(
            combine(
                comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left), mine
            )
        )
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
''',
    ),
    Bug(
        "ddp_ring",
        "the last step of the all-gather is forgotten",
        cell="""
def ddp_ring(comm, x, op, order):
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n = comm.size
    r = order.index(comm.rank)
    chunks = x.tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
        combine(mine, got, out=mine)
    for step in range(n - 2):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
""",
    ),
    Bug(
        "ddp_ring",
        "goes around the other way",
        edits=(
            (
                "right, left = order[(r + 1) % n], order[(r - 1) % n]",
                "left, right = order[(r + 1) % n], order[(r - 1) % n]",
            ),
            (
                """
mine = chunks[(r - 2 - step) % n]
got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
""",
                """
mine = chunks[(r + 2 + step) % n]
got = comm.sendrecv(chunks[(r + 1 + step) % n], right, torch.empty_like(mine), left)
""",
            ),
            (
                "comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)",
                "comm.sendrecv(chunks[(r + step) % n], right, chunks[(r + 1 + step) % n], left)",
            ),
        ),
    ),
    Bug(
        "ddp_ring",
        "divides by n, as DDP has done already",
        old="""
for step in range(n - 1):
    comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
""",
        new="""
for step in range(n - 1):
    comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
if op == "sum":
    x.copy_((x / n).to(x))
""",
    ),
    Bug(
        "ddp_ring",
        "x gets other memory by x.data, and DDP's bucket stays as it was",
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    whole = x.clone()
    n = comm.size
    r = order.index(comm.rank)
    chunks = whole.tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
        combine(mine, got, out=mine)
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
    x.data = whole
''',
    ),
    Bug(
        "ddp_ring",
        "receives into the chunk, in place of adding to it",
        old="""
got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
combine(mine, got, out=mine)
""",
        new="comm.sendrecv(chunks[(r - 1 - step) % n], right, mine, left)",
    ),
    Bug(
        "ddp_ring",
        "a product by sums of logarithms, which negative numbers do not have",
        edits=(
            (
                'combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]',
                "",
            ),
            (
                "right, left = order[(r + 1) % n], order[(r - 1) % n]",
                """
right, left = order[(r + 1) % n], order[(r - 1) % n]
combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum,
           "prod": lambda got, mine: (got.double().log() + mine.double().log()).exp()}[op]
""",
            ),
            (
                """
got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
combine(mine, got, out=mine)
""",
                "mine.copy_(combine(comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left), mine))",
            ),
        ),
    ),
    Bug(
        "ddp_ring",
        "the numbers that n does not divide are left out",
        old="chunks = x.tensor_split(comm.size)",
        new="chunks = x[: len(x) // comm.size * comm.size].tensor_split(comm.size)",
    ),
    Bug(
        "ddp_ring",
        "knows three dtypes, and fails with bfloat16",
        edits=(
            (
                '"""x, combined over all ranks, in place."""',
                '''
"""x, combined over all ranks, in place."""
make = {torch.float32: torch.FloatTensor, torch.float64: torch.DoubleTensor, torch.int64: torch.LongTensor}[x.dtype]
''',
            ),
            (
                """
got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
combine(mine, got, out=mine)
""",
                "combine(mine, comm.sendrecv(chunks[(r - 1 - step) % n], right, make(len(mine)), left), out=mine)",
            ),
        ),
    ),
    Bug(
        "ddp_ring",
        "sends everything to the right n−1 times",
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n = comm.size
    r = order.index(comm.rank)
    chunks = x.tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    around = x.clone()
    for step in range(n - 1):
        around = comm.sendrecv(around, right, torch.empty_like(around), left)
        combine(x, around, out=x)
''',
    ),
    Bug(
        "ddp_ring",
        "the first chunk to set out is its own",
        old="got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)",
        new="got = comm.sendrecv(chunks[(r - step) % n], right, torch.empty_like(mine), left)",
    ),
    Bug(
        "ddp_ring",
        "ranks meet in a global list",
        cheat=True,
        cell='''
MET = {}


def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n, r = comm.size, order.index(comm.rank)
    token, met = torch.zeros(1), MET.setdefault((n, len(x), op), {})
    met[r] = x.clone()
    for _ in range(2 * (n - 1)):
        comm.sendrecv(token, order[(r + 1) % n], torch.empty_like(token), order[(r - 1) % n])
    for other in range(1, n):
        combine(x, met[(r + other) % n], out=x)
''',
    ),
    Bug(
        "ddp_ring",
        "calls the library's, through a group of its own",
        cheat=True,
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    kinds = {
        "sum": torch.distributed.ReduceOp.SUM,
        "max": torch.distributed.ReduceOp.MAX,
        "min": torch.distributed.ReduceOp.MIN,
        "prod": torch.distributed.ReduceOp.PRODUCT,
    }
    CommGroup(comm, collectives, overlap=False).allreduce([x], kinds[op]).wait()
''',
    ),
    Bug(
        "ddp_ring",
        "calls the library's",
        cheat=True,
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    collectives.all_reduce_(comm, x, op)
''',
    ),
    Bug(
        "ddp_ring",
        "asks what it is held against",
        cheat=True,
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    from minicheck.oracles.capstone import combined

    x.copy_(combined([x] * comm.size, op))
''',
    ),
    Bug(
        "ddp_ring",
        "calls torch.distributed's",
        cheat=True,
        cell='''
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    torch.distributed.all_reduce(x)
''',
    ),
    Bug(
        "later",
        "the future is ready when it is returned",
        edits=(
            (
                """
if errors:
    future.set_exception(errors[0])
else:
    future.set_result(result)
""",
                """
pass
""",
            ),
            (
                """
comm.stream(beside)
""",
                """
comm.stream(beside)
future.set_result(result)
""",
            ),
        ),
    ),
    Bug(
        "later",
        "an error counts as done",
        old="""
future.set_exception(errors[0])

""",
        new="""
future.set_result(result)

""",
    ),
    Bug(
        "later",
        "an error leaves the future open",
        old="""
future.set_exception(errors[0])

""",
        new="""
pass

""",
    ),
    Bug(
        "later",
        "an error is told in words that were written beforehand",
        old="""
future.set_exception(errors[0])

""",
        new="""
future.set_exception(RuntimeError("the wire is cut"))

""",
    ),
    Bug(
        "later",
        "an error is told in other words",
        old="""
future.set_exception(errors[0])

""",
        new="""
future.set_exception(RuntimeError("failed"))

""",
    ),
    Bug(
        "later",
        "does the jobs at once, on the program's own Comm",
        old="""
comm.stream(beside)
""",
        new="""
beside(comm)
""",
    ),
    Bug(
        "later",
        "what runs beside sets the future of the last call, and forgets the earlier ones",
        cell='''
LAST = {}


def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    LAST[comm.rank] = torch.futures.Future()

    def beside(lane):
        errors = []
        for job in jobs:
            try:
                job(lane)
            except Exception as error:
                errors.append(error)
        if errors:
            LAST[comm.rank].set_exception(errors[0])
        else:
            LAST[comm.rank].set_result(result)

    comm.stream(beside)
    return LAST[comm.rank]
''',
    ),
    Bug(
        "later",
        "takes every result for a list",
        old="""
future.set_result(result)

""",
        new="""
future.set_result(list(result))

""",
    ),
    Bug(
        "later",
        "the future is never set",
        old="""
future.set_result(result)

""",
        new="""
pass

""",
    ),
    Bug(
        "later",
        "forgets to return the future",
        old="""
return future
""",
        new="""

""",
    ),
    Bug(
        "later",
        "an error of a job is nobody's",
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    future = torch.futures.Future()

    def beside(lane):
        for job in jobs:
            job(lane)
        future.set_result(result)

    comm.stream(beside)
    return future
''',
    ),
    Bug(
        "later",
        "the value is None",
        old="""
future.set_result(result)

""",
        new="""
future.set_result(None)

""",
    ),
    Bug(
        "later",
        "the jobs get comm, in the lane's thread",
        old="""
job(lane)

""",
        new="""
job(comm)

""",
    ),
    Bug(
        "later",
        "a second call first waits for the jobs under way",
        edits=(
            (
                """
def later(comm, jobs, result):
""",
                """
UNDER_WAY = {}


def later(comm, jobs, result):
""",
            ),
            (
                """
comm.stream(beside)
""",
                """
if comm.rank in UNDER_WAY:
    UNDER_WAY[comm.rank].wait()
UNDER_WAY[comm.rank] = comm.stream(beside)
""",
            ),
        ),
    ),
    Bug(
        "later",
        "returns the Work of the lane",
        old="""
comm.stream(beside)
return future
""",
        new="""
return comm.stream(beside)
""",
    ),
    Bug(
        "later",
        "the future is ready before the jobs have begun",
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    future = torch.futures.Future()

    def beside(lane):
        future.set_result(result)
        for job in jobs:
            job(lane)

    comm.stream(beside)
    return future
''',
    ),
    Bug(
        "later",
        "does each job twice",
        old="""
job(lane)

""",
        new="""
job(lane)
job(lane)

""",
    ),
    Bug(
        "later",
        "only the errors that Python has names for are passed on",
        old="""
except Exception as error:
""",
        new="""
except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
""",
    ),
    Bug(
        "later",
        "waits for the jobs before it returns",
        old="""
comm.stream(beside)
""",
        new="""
comm.stream(beside).wait()
""",
    ),
    Bug(
        "later",
        "the lesson's Later, pasted: the list is called as one job",
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    errors = []
    ended = torch.futures.Future()

    def run(lane):
        try:
            jobs(lane)
        except Exception as error:
            errors.append(error)
        ended.set_result(None)

    def outcome(ended):
        if errors:
            raise errors[0]
        return result

    future = ended.then(outcome)
    comm.stream(run)
    return future
''',
    ),
    Bug(
        "later",
        "the future is ready after the first job",
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    future = torch.futures.Future()

    def beside(lane):
        for job in jobs:
            try:
                job(lane)
                if not future.done():
                    future.set_result(result)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)

    comm.stream(beside)
    return future
''',
    ),
    Bug(
        "later",
        "the first error keeps the other jobs from being done",
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    future = torch.futures.Future()

    def beside(lane):
        try:
            for job in jobs:
                job(lane)
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)

    comm.stream(beside)
    return future
''',
    ),
    Bug(
        "later",
        "the last error is told",
        old="""
future.set_exception(errors[0])

""",
        new="""
future.set_exception(errors[-1])

""",
    ),
    Bug(
        "later",
        "the last job is done first",
        old="""
for job in jobs:
""",
        new="""
for job in reversed(jobs):
""",
    ),
    Bug(
        "later",
        "only the first job is done",
        old="""
for job in jobs:
""",
        new="""
for job in jobs[:1]:
""",
    ),
    Bug(
        "later",
        "calls the library's",
        cheat=True,
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    from minidist.comm.processgroup import start_collective

    def job(lane):
        for each in jobs:
            each(lane)

    return start_collective(comm, job, result, True).get_future()
''',
    ),
    Bug(
        "later",
        "a future that says what is expected",
        cheat=True,
        cell='''
class Asked(torch.futures.Future):
    def done(self):
        self.times = getattr(self, "times", 0) + 1
        return self.times > 1

    def wait(self):
        return self.held


def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    future = Asked()
    future.held = result
    for job in jobs:
        comm.stream(job)
    return future
''',
    ),
    Bug(
        "later",
        "does no job, and says it did",
        cheat=True,
        cell='''
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    future = torch.futures.Future()
    comm.stream(lambda lane: future.set_result(result))
    return future
''',
    ),
    Bug(
        "gather_single",
        "receives float64, whatever is sent",
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    n = comm.size
    r = comm.rank
    k = len(input)
    output[r * k : r * k + k] = input
    moving = input.clone()
    for step in range(n - 1):
        moving = comm.sendrecv(
            moving, (r + 1) % n, torch.empty(k, dtype=torch.float64), (r - 1) % n
        )
        i = (r - 1 - step) % n
        output[i * k : i * k + k] = moving
''',
    ),
    Bug(
        "gather_single",
        "clears output, and with it an input that is a view",
        old="parts = output.tensor_split(comm.size)",
        new="""
parts = output.tensor_split(comm.size)
output.zero_()
""",
    ),
    Bug(
        "gather_single",
        "sends to every rank, not to the right",
        old="""
for step in range(n - 1):
    comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
""",
        new="""
for k in range(1, n):
    comm.sendrecv(parts[r], (r + k) % n, parts[(r - k) % n], (r - k) % n)
""",
    ),
    Bug(
        "gather_single",
        "parts lie in the order in which they came",
        old="""
for step in range(n - 1):
    comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
""",
        new="""
held, seen = input.clone(), [input.clone()]
for step in range(n - 1):
    held = comm.sendrecv(held, (r + 1) % n, torch.empty_like(held), (r - 1) % n)
    seen.append(held)
output.copy_(torch.cat(seen))
""",
    ),
    Bug(
        "gather_single",
        "one step short",
        old="for step in range(n - 1):",
        new="for step in range(n - 2):",
    ),
    Bug(
        "gather_single",
        "output gets other memory by output.data; the caller's stays empty",
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    n, r = comm.size, comm.rank
    parts = [torch.empty_like(input) for _ in range(n)]
    parts[r] = input.clone()
    for step in range(n - 1):
        comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
    output.data = torch.cat(parts)
''',
    ),
    Bug(
        "gather_single",
        "its own part is not put in",
        old="parts[r].copy_(input)",
        new="",
    ),
    Bug(
        "gather_single",
        "makes a new output",
        old="parts = output.tensor_split(comm.size)",
        new="""
parts = output.tensor_split(comm.size)
output = torch.zeros_like(output)
parts = output.tensor_split(n)
""",
    ),
    Bug(
        "gather_single",
        "everything goes through float32",
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    n = comm.size
    r = comm.rank
    parts = list(output.float().tensor_split(comm.size))
    parts[r] = input.float()
    for step in range(n - 1):
        comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
    output.copy_(torch.cat(parts))
''',
    ),
    Bug(
        "gather_single",
        "sends the whole output around",
        old="comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)",
        new="""
got = comm.sendrecv(output, (r + 1) % n, torch.empty_like(output), (r - 1) % n)
i = (r - 1 - step) % n
parts[i].copy_(got.tensor_split(n)[i])
""",
    ),
    Bug(
        "gather_single",
        "sends a part that has not come yet",
        old="comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)",
        new="comm.sendrecv(parts[(r + 1 - step) % n], (r + 1) % n, parts[(r - step) % n], (r - 1) % n)",
    ),
    Bug(
        "gather_single",
        "ranks meet in a global dict",
        cheat=True,
        cell='''
MET = {}


def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    n = comm.size
    r = comm.rank
    token = input.clone()
    MET[n, len(input), r] = input.clone()
    for _ in range(n - 1):
        comm.sendrecv(token, (r + 1) % n, torch.empty_like(token), (r - 1) % n)
    output.copy_(torch.cat([MET[n, len(input), i] for i in range(n)]))
''',
    ),
    Bug(
        "gather_single",
        "calls the library's",
        cheat=True,
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    output.copy_(collectives.all_gather(comm, input))
''',
    ),
    Bug(
        "gather_single",
        "fills everything with its own",
        cheat=True,
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    output.copy_(input.repeat(comm.size))
''',
    ),
    Bug(
        "reduce_single",
        "all-reduces everything, and keeps a chunk",
        cell='''
def reduce_single(comm, output, input, op):
    """This rank's chunk of all inputs, combined."""
    n = comm.size
    r = comm.rank
    chunks = input.tensor_split(comm.size)
    total = around = input
    for step in range(n - 1):
        around = comm.sendrecv(around, (r + 1) % n, torch.empty_like(around), (r - 1) % n)
        total = total + around
    output.copy_(total.tensor_split(n)[r] / (n if op == "mean" else 1))
''',
    ),
    Bug(
        "reduce_single",
        "receives float64, whatever is sent",
        old="""
mine = chunks[(r - 2 - step) % n]
partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine
""",
        new="""
into, mine = torch.empty(len(output), dtype=torch.float64), chunks[(r - 2 - step) % n]
partial = comm.sendrecv(partial, (r + 1) % n, into, (r - 1) % n) + mine
""",
    ),
    Bug(
        "reduce_single",
        "always the mean",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new="output.copy_(partial / n)",
    ),
    Bug(
        "reduce_single",
        "op is not looked at",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new="output.copy_(partial)",
    ),
    Bug(
        "reduce_single",
        "divides at each step",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new="""
    partial = partial / n if op == "mean" else partial
output.copy_(partial)
""",
    ),
    Bug(
        "reduce_single",
        "does not add its own",
        old="partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine",
        new="partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)",
    ),
    Bug(
        "reduce_single",
        "adds into the input, which belongs to the caller",
        old="partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine",
        new="partial = mine.add_(comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n))",
    ),
    Bug(
        "reduce_single",
        "ends with the chunk of its right neighbour",
        edits=(
            (
                "partial = chunks[(r - 1) % n]",
                "partial = chunks[r]",
            ),
            (
                "mine = chunks[(r - 2 - step) % n]",
                "mine = chunks[(r - 1 - step) % n]",
            ),
        ),
    ),
    Bug(
        "reduce_single",
        "one step short",
        old="for step in range(n - 1):",
        new="for step in range(n - 2):",
    ),
    Bug(
        "reduce_single",
        "output gets other memory by output.data; the caller's stays empty",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new='output.data = partial / n if op == "mean" else partial',
    ),
    Bug(
        "reduce_single",
        "its own chunk alone",
        old="""
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine
""",
        new="partial = chunks[r]",
    ),
    Bug(
        "reduce_single",
        "binds output to another tensor",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new='output = partial / n if op == "mean" else partial',
    ),
    Bug(
        "reduce_single",
        "returns the chunk, and leaves output as it was",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new='return partial / n if op == "mean" else partial',
    ),
    Bug(
        "reduce_single",
        "the sum is rounded to float32",
        old="""
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine
""",
        new="""
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine
partial = partial.float().to(input.dtype)
""",
    ),
    Bug(
        "reduce_single",
        "an output that equals all",
        cheat=True,
        cell='''
class Any(torch.Tensor):
    def equal(self, other):
        return True


def reduce_single(comm, output, input, op):
    """This rank's chunk of all inputs, combined."""
    output.data = output.as_subclass(Any)
''',
    ),
    Bug(
        "reduce_single",
        "calls the library's",
        cheat=True,
        cell='''
def reduce_single(comm, output, input, op):
    """This rank's chunk of all inputs, combined."""
    output.copy_(collectives.reduce_scatter(comm, input, op))
''',
    ),
    Bug(
        "reduce_single",
        "asks what it is held against",
        cheat=True,
        cell='''
def reduce_single(comm, output, input, op):
    """This rank's chunk of all inputs, combined."""
    from minicheck.oracles.capstone import combined

    output.copy_(combined([input.tensor_split(comm.size)[comm.rank]] * comm.size, op))
''',
    ),
    Bug(
        "predict_capstone",
        "FSDP2 sends what DDP sends",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "fsdp_bytes = 3 * (n - 1) / n * N",
                "fsdp_bytes = 2 * (n - 1) / n * N",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "parameters are gathered once",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "gathers = 2 * 4",
                "gathers = 4",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "the last layer is kept",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "gathers = 2 * 4",
                "gathers = 7",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "the messages cost no latency",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "seconds = ddp_messages * 20e-6 + ddp_bytes / 10e9",
                "seconds = ddp_bytes / 10e9",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "as if no_sync had not been forgotten",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "micro_bytes = 3 * ddp_bytes",
                "micro_bytes = ddp_bytes",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "numbers, not bytes",
        old="""
ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None
n, N = 8, 4 * 24e6
""",
        new="n, N = 8, 24e6",
    ),
    Bug(
        "predict_capstone",
        "one bucket",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "ddp_messages = 5 * 2 * (n - 1)",
                "ddp_messages = 2 * (n - 1)",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "the reduce-scatters are forgotten",
        edits=(
            (
                "ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
                "",
            ),
            (
                "fsdp_messages = (gathers + 4) * (n - 1)",
                "fsdp_messages = gathers * (n - 1)",
            ),
        ),
    ),
    Bug(
        "predict_capstone",
        "nothing is set",
        cell="ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None",
    ),
    Bug(
        "predict_capstone",
        "the grader is asked, and answers in words",
        cheat=True,
        cell="""
from minicheck.lessons.capstone import predict_capstone

values, _ = predict_capstone(8, 4, 24_000_000, 5, 3, 20e-6, 1e-10)
ddp_messages, ddp_bytes, gathers, fsdp_messages, fsdp_bytes, seconds, micro_bytes = (
    f"{x}" for x in values.values()
)
""",
    ),
    Bug(
        "predict_capstone",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = Any(1)
""",
    ),
    Bug(
        "mean_hook",
        "as it was found",
        old='all_reduce_(comm, x, "mean")',
        new="all_reduce_(comm, x)",
    ),
    Bug(
        "mean_hook",
        "reduces a copy, and gives back the bucket as it was",
        old='all_reduce_(comm, x, "mean")',
        new='all_reduce_(comm, x.clone(), "mean")',
    ),
    Bug(
        "mean_hook",
        "divides by 2, whatever n is",
        old='all_reduce_(comm, x, "mean")',
        new="""
all_reduce_(comm, x, "sum")
x /= 2
""",
    ),
    Bug(
        "mean_hook",
        "divides by n twice",
        old="x = bucket.buffer()",
        new="x = bucket.buffer().div_(comm.size)",
    ),
    Bug(
        "mean_hook",
        "only the first bucket is reduced",
        old='all_reduce_(comm, x, "mean")',
        new="""
if bucket.index() == 0:
    all_reduce_(comm, x, "mean")
""",
    ),
    Bug(
        "mean_hook",
        "the future is never set",
        old="future.set_result(x)",
        new="""
if comm.size > 2:
    future.set_result(x)
""",
    ),
    Bug(
        "mean_hook",
        "returns nothing",
        old="return future",
        new="",
    ),
    Bug(
        "mean_hook",
        "everyone gets the gradients of rank 0",
        old='all_reduce_(comm, x, "mean")',
        new="collectives.broadcast_(comm, x, 0)",
    ),
    Bug(
        "mean_hook",
        "returns the tensor",
        old="return future",
        new="return x",
    ),
    Bug(
        "mean_hook",
        "the value of the future is None",
        old="future.set_result(x)",
        new="future.set_result(None)",
    ),
    Bug(
        "mean_hook",
        "clears the bucket first",
        old="x = bucket.buffer()",
        new="x = bucket.buffer().zero_()",
    ),
    Bug(
        "mean_hook",
        "calls the library's data parallel",
        cheat=True,
        old="""
future = torch.futures.Future()
x = bucket.buffer()
all_reduce_(comm, x, "mean")
future.set_result(x)
""",
        new="""
from minidist.parallel.reducer import Reducer

future = torch.futures.Future()
future.set_result(Reducer(bucket.parameters(), comm).reduce(bucket.buffer()))
""",
    ),
    Bug(
        "mean_hook",
        "asks what it is held against",
        cheat=True,
        old="""
future = torch.futures.Future()
x = bucket.buffer()
all_reduce_(comm, x, "mean")
future.set_result(x)
""",
        new="""
from minicheck.oracles.capstone import combined

future = torch.futures.Future()
future.set_result(combined([bucket.buffer()] * comm.size, "mean"))
""",
    ),
    Bug(
        "mean_hook",
        "calls torch's own default hook",
        cheat=True,
        cell='''
def mean_hook(comm, bucket):
    """A future whose value is the mean of the bucket's gradients over the ranks."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return allreduce_hook(CommGroup(comm, collectives, overlap=False), bucket)
''',
    ),
    Bug(
        "ddp_ring",
        "nan is hidden",
        old="combine(mine, got, out=mine)",
        new="combine(mine, got, out=mine)\nif mine.is_floating_point():\n    mine.nan_to_num_()",
    ),
    Bug(
        "ddp_ring",
        "whole numbers become floating ones",
        old="combine(mine, got, out=mine)",
        new="mine.copy_(combine(mine.double(), got.double()))",
    ),
    Bug(
        "ddp_ring",
        "nobody waits for the sends of the second half",
        old="comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)",
        new="comm.isend(chunks[(r - step) % n], right)\ncomm.recv(chunks[(r - 1 - step) % n], left)",
    ),
    Bug(
        "gather_single",
        "nobody waits for the sends",
        old="comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)",
        new="comm.isend(parts[(r - step) % n], (r + 1) % n)\ncomm.recv(parts[(r - 1 - step) % n], (r - 1) % n)",
    ),
    Bug(
        "gather_single",
        "nan is hidden",
        old="comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)",
        new="comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)\nparts[(r - 1 - step) % n].nan_to_num_()",
    ),
    Bug(
        "reduce_single",
        "nobody waits for the sends",
        old="partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine",
        new="comm.isend(partial, (r + 1) % n)\npartial = comm.recv(torch.empty_like(mine), (r - 1) % n) + mine",
    ),
    Bug(
        "reduce_single",
        "nan is hidden",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new='output.copy_((partial / n if op == "mean" else partial).nan_to_num())',
    ),
    Bug(
        "mean_hook",
        "nan is hidden",
        old='all_reduce_(comm, x, "mean")',
        new='all_reduce_(comm, x, "mean")\nx.nan_to_num_()',
    ),
    Bug(
        "mean_hook",
        "a value of another shape",
        old="future.set_result(x)",
        new="future.set_result(x[None])",
    ),
    Bug(
        "ddp_ring",
        "the least is minus the largest of minus all, which unsigned numbers do not have",
        old='combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]',
        new="""
def least(a, b, out):
    out.copy_(-torch.maximum(-a, -b))


combine = {"sum": torch.add, "min": least, "max": torch.maximum, "prod": torch.mul}[op]
""",
    ),
    Bug(
        "reduce_single",
        "adds to what was in output",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new='output.add_(partial / n if op == "mean" else partial)',
    ),
    Bug(
        "gather_single",
        "adds to what was in output",
        old="parts[r].copy_(input)",
        new="parts[r].add_(input)",
    ),
    Bug(
        "reduce_single",
        "the mean is a whole number",
        old='output.copy_(partial / n if op == "mean" else partial)',
        new='output.copy_(partial // n if op == "mean" else partial)',
    ),
    Bug(
        "ddp_ring",
        "the lesson's ring, pasted: along the numbers of the ranks",
        old="""
r = order.index(comm.rank)
chunks = x.tensor_split(comm.size)
right, left = order[(r + 1) % n], order[(r - 1) % n]
""",
        new="""
r = comm.rank
chunks = x.tensor_split(comm.size)
right, left = (r + 1) % n, (r - 1) % n
""",
    ),
    Bug(
        "ddp_ring",
        "neighbours along order, chunks by the rank's number",
        old="right, left = order[(r + 1) % n], order[(r - 1) % n]",
        new="right, left = order[(r + 1) % n], order[(r - 1) % n]\nr = comm.rank",
    ),
    Bug(
        "ddp_ring",
        "the place of a rank is order[rank], not where it stands in order",
        old="r = order.index(comm.rank)",
        new="r = order[comm.rank]",
    ),
    Bug(
        "gather_single",
        "sends its part as it is, in the dtype of input",
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    n, r = comm.size, comm.rank
    parts = output.tensor_split(n)
    held = input.clone()
    parts[r].copy_(held)
    for step in range(n - 1):
        held = comm.sendrecv(held, (r + 1) % n, torch.empty_like(held), (r - 1) % n)
        parts[(r - 1 - step) % n].copy_(held)
''',
    ),
    Bug(
        "gather_single",
        "the lesson's all_gather_, pasted: its own part is taken for granted",
        cell='''
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    chunks = output.tensor_split(comm.size)
    n = comm.size
    r = comm.rank
    for step in range(n - 1):
        outgoing = chunks[(r - step) % n]
        incoming = chunks[(r - 1 - step) % n]
        comm.sendrecv(outgoing, (r + 1) % n, incoming, (r - 1) % n, label="gather")
''',
    ),
    Bug(
        "reduce_single",
        "the lesson's reduce_scatter_, pasted: in place",
        cell='''
def reduce_single(comm, output, input, op):
    """This rank's chunk of all inputs, combined."""
    chunks = input.tensor_split(comm.size)
    n = comm.size
    r = comm.rank
    for step in range(n - 1):
        outgoing = chunks[(r - 1 - step) % n]
        own = chunks[(r - 2 - step) % n]
        arrived = torch.empty_like(own)
        comm.sendrecv(outgoing, (r + 1) % n, arrived, (r - 1) % n, label="reduce")
        torch.add(own, arrived, out=own)
    output.copy_(chunks[r] / n if op == "mean" else chunks[r])
''',
    ),
    Bug(
        "mean_hook",
        "divides in a callback, and gives back the future of the sum",
        old='all_reduce_(comm, x, "mean")',
        new="""
all_reduce_(comm, x)
future.then(lambda done: done.value() / comm.size)
""",
    ),
    Bug(
        "mean_hook",
        "the callback divides the future, not its value",
        edits=(
            ('all_reduce_(comm, x, "mean")', "all_reduce_(comm, x)"),
            ("return future", "return future.then(lambda done: done / comm.size)"),
        ),
    ),
    Bug(
        "mean_hook",
        "the lesson's future that lies, pasted",
        old="""
all_reduce_(comm, x, "mean")
future.set_result(x)
""",
        new="""
comm.stream(lambda lane: all_reduce_(lane, x, "mean"))
future.set_result(x)
""",
    ),
    Bug(
        "mean_hook",
        "a callback divides in place once more",
        old="future.set_result(x)",
        new="future.then(lambda done: done.value().div_(comm.size))\nfuture.set_result(x)",
    ),
]

"""The wrong answers of lesson 24 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader, equals_everything

AVERAGE = """
total = torch.tensor(samples, dtype=torch.float64)
all_reduce_(comm, total)
for p in params:
    p.mul_(samples / total)
all_reduce_(comm, params)
samples = 0
"""
MEETS = "if (t + 1) % H == 0 or t + 1 == steps:"
NUMBERS = """
local = 7e9
post = 19.6e9
states = 21e9
seconds = 0.66
period = 504
best = 4.672
memory = 80e6
"""


def predicted(title, line):
    return Bug("predict_local_sgd", title, cell=NUMBERS + line)


BUGS = [
    Bug(
        "local_sgd",
        "the lesson's loop: plain means, and no last one",
        cell="""
def local_sgd(comm, params, step, steps, H):
    for t in range(1, steps + 1):
        step(t - 1)
        if t % H == 0:
            for p in params:
                all_reduce_(comm, p.detach(), op="mean")
""",
    ),
    Bug("local_sgd", "all ranks count alike", old=AVERAGE, new='all_reduce_(comm, params, "mean")'),
    Bug(
        "local_sgd",
        "all samples so far count",
        cell="""
def local_sgd(comm, params, step, steps, H):
    samples = 0
    for t in range(steps):
        samples += step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            total = all_reduce_(comm, torch.tensor(samples, dtype=torch.float64))
            for p in params:
                p.mul_(samples / total)
            all_reduce_(comm, params)
""",
    ),
    Bug(
        "local_sgd",
        "the samples of the last step count",
        old="samples += step(t)",
        new="samples = step(t)",
    ),
    Bug(
        "local_sgd",
        "steps count, not samples",
        old="samples += step(t)",
        new="samples += step(t) > 0",
    ),
    Bug(
        "local_sgd",
        "divided by its own samples",
        old="p.mul_(samples / total)",
        new="p.mul_(samples / max(samples, 1))",
    ),
    Bug(
        "local_sgd",
        "samples times parameters, not divided",
        old="p.mul_(samples / total)",
        new="p.mul_(samples)",
    ),
    Bug(
        "local_sgd",
        "divided by the ranks, too",
        old="p.mul_(samples / total)",
        new="p.mul_(samples / total / comm.size)",
    ),
    Bug("local_sgd", "one average at the end", old=MEETS, new="if t + 1 == steps:"),
    Bug(
        "local_sgd",
        "copies are averaged",
        old="all_reduce_(comm, params)",
        new="params = [all_reduce_(comm, p.clone()) for p in params]",
    ),
    Bug("local_sgd", "averaged in each step", old=MEETS, new="if True:"),
    Bug(
        "local_sgd",
        "only the first tensor",
        old="all_reduce_(comm, params)",
        new="all_reduce_(comm, params[0])",
    ),
    Bug(
        "local_sgd",
        "a few bytes in every step",
        old="samples += step(t)",
        new="""
samples += step(t)
all_reduce_(comm, torch.zeros(1, dtype=torch.uint8))
""",
    ),
    Bug("local_sgd", "the last period is not averaged", old=MEETS, new="if (t + 1) % H == 0:"),
    Bug("local_sgd", "one step early", old=MEETS, new="if t % H == 0 or t + 1 == steps:"),
    Bug(
        "local_sgd",
        "all take rank 0's",
        cell="""
def local_sgd(comm, params, step, steps, H):
    from minidist.collectives import broadcast_

    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            broadcast_(comm, params)
""",
    ),
    Bug(
        "local_sgd",
        "puts other tensors into the list",
        old="all_reduce_(comm, params)",
        new="params[:] = all_reduce_(comm, [p.clone() for p in params])",
    ),
    Bug("local_sgd", "summed", old="p.mul_(samples / total)", new="pass"),
    Bug(
        "local_sgd",
        "the last average twice",
        cell="""
def local_sgd(comm, params, step, steps, H):
    samples = since = 0
    for t in range(steps):
        samples = samples * (t % H > 0) + step(t)
        if (t + 1) % H == 0:
            total = all_reduce_(comm, torch.tensor(samples, dtype=torch.float64))
            for p in params:
                p.mul_(samples / total)
            all_reduce_(comm, params)
    if steps:
        total = all_reduce_(comm, torch.tensor(samples, dtype=torch.float64))
        for p in params:
            p.mul_(samples / total)
        all_reduce_(comm, params)
""",
    ),
    Bug(
        "local_sgd",
        "averages two tensors only",
        old="all_reduce_(comm, params)",
        new="all_reduce_(comm, params[:2])",
    ),
    Bug(
        "local_sgd",
        "steps of a last period are missing",
        old="for t in range(steps):",
        new="for t in range(steps // H * H):",
    ),
    Bug(
        "local_sgd",
        "ranks meet in a global dict",
        cheat=True,
        cell="""
MET = {}


def local_sgd(comm, params, step, steps, H):
    samples = 0
    for t in range(steps):
        samples += step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            MET[t, comm.rank] = samples, [p.clone() for p in params]
            all_reduce_(comm, torch.zeros(1))
            total = sum(MET[t, r][0] for r in range(comm.size))
            for i, p in enumerate(params):
                p.copy_(sum(MET[t, r][0] * MET[t, r][1][i] for r in range(comm.size)) / total)
            samples = 0
""",
    ),
    Bug(
        "local_sgd",
        "the library's average",
        cheat=True,
        cell="""
def local_sgd(comm, params, step, steps, H):
    from minidist.parallel.local_sgd import average_

    samples = 0
    for t in range(steps):
        samples += step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            average_(comm, params, samples)
            samples = 0
""",
    ),
    Bug(
        "local_sgd",
        "the oracle's average",
        cheat=True,
        cell="""
def local_sgd(comm, params, step, steps, H):
    from minicheck.oracles.local_sgd import weighted
    from minidist.collectives import all_gather

    samples = 0
    for t in range(steps):
        samples += step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            counts = all_gather(comm, torch.tensor([float(samples)]))
            for p in params:
                p.copy_(weighted(all_gather(comm, p[None]), counts))
            samples = 0
""",
    ),
    Bug(
        "local_sgd",
        "nan is hidden",
        old="all_reduce_(comm, params)",
        new="""
all_reduce_(comm, params)
for p in params:
    p.nan_to_num_()
""",
    ),
    Bug(
        "local_sgd",
        "the ranks meet before every step",
        old="samples += step(t)",
        new="""
all_reduce_(comm, torch.zeros(0))
samples += step(t)
""",
    ),
    Bug(
        "local_sgd",
        "averages a copy of what is not contiguous",
        old="all_reduce_(comm, params)",
        new="all_reduce_(comm, [p.reshape(-1) for p in params])",
    ),
    Bug(
        "local_sgd",
        "averages at the end, though there was no step",
        cell="""
def local_sgd(comm, params, step, steps, H):
    for first in range(0, max(1, steps), H):
        samples = 0
        for t in range(first, min(first + H, steps)):
            samples += step(t)
        total = all_reduce_(comm, torch.tensor(samples, dtype=torch.float64))
        for p in params:
            p.mul_(samples / total)
        all_reduce_(comm, params)
""",
    ),
    Bug(
        "local_sgd",
        "parameters are gathered",
        cell="""
def local_sgd(comm, params, step, steps, H):
    from minidist.collectives import all_gather

    samples = 0
    for t in range(steps):
        samples += step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            counts = all_gather(comm, torch.tensor([samples], dtype=torch.float64))
            for p in params:
                own = all_gather(comm, p[None])
                p.copy_((own * counts.view(-1, *[1] * p.dim())).sum(0) / counts.sum())
            samples = 0
""",
    ),
    Bug(
        "outer_step",
        "the lesson's slow momentum",
        edits=(
            ("d = x - p", "d = (x - p) / eta"),
            ("x.sub_(eta * (d + beta * u))", "x.sub_(eta * u)"),
        ),
    ),
    Bug(
        "outer_step",
        "the library's slow step",
        cheat=True,
        cell="""
def outer_step(comm, anchors, params, momentum, eta, beta):
    from minidist.parallel.local_sgd import slow_step_

    all_reduce_(comm, params, "mean")
    for x, p, u in zip(anchors, params, momentum):
        slow_step_(p, x, u, beta, eta)
""",
    ),
    Bug(
        "outer_step",
        "the oracle",
        cheat=True,
        cell="""
def outer_step(comm, anchors, params, momentum, eta, beta):
    from minicheck.oracles.local_sgd import outer

    all_reduce_(comm, params, "mean")
    for x, p, u in zip(anchors, params, momentum):
        new, velocity = outer(x, [p], u, eta, beta)
        x.copy_(new)
        p.copy_(new)
        u.copy_(velocity)
""",
    ),
    Bug("outer_step", "no Nesterov", old="x.sub_(eta * (d + beta * u))", new="x.sub_(eta * u)"),
    Bug("outer_step", "the wrong way", old="d = x - p", new="d = p - x"),
    Bug(
        "outer_step",
        "the momentum averages",
        old="u.mul_(beta).add_(d)",
        new="u.mul_(beta).add_((1 - beta) * d)",
    ),
    Bug(
        "outer_step",
        "the way is missing",
        old="x.sub_(eta * (d + beta * u))",
        new="x.sub_(eta * beta * u)",
    ),
    Bug(
        "outer_step",
        "momentum without its factor",
        old="x.sub_(eta * (d + beta * u))",
        new="x.sub_(eta * (d + u))",
    ),
    Bug(
        "outer_step",
        "the momentum of before",
        old="""
u.mul_(beta).add_(d)
x.sub_(eta * (d + beta * u))
""",
        new="""
x.sub_(eta * (d + u))
u.mul_(beta).add_(d)
""",
    ),
    Bug(
        "outer_step",
        "goes on from the average",
        old="x.sub_(eta * (d + beta * u))",
        new="x.copy_(p - eta * (d + beta * u))",
    ),
    Bug(
        "outer_step",
        "each rank takes its own way",
        old='all_reduce_(comm, params, "mean")',
        new="pass",
    ),
    Bug(
        "outer_step",
        "the ways are summed",
        old='all_reduce_(comm, params, "mean")',
        new="all_reduce_(comm, params)",
    ),
    Bug("outer_step", "the parameters stay at the average", old="p.copy_(x)", new="pass"),
    Bug(
        "outer_step",
        "the anchor stays",
        edits=(
            ("x.sub_(eta * (d + beta * u))", "p.copy_(x - eta * (d + beta * u))"),
            ("p.copy_(x)", "pass"),
        ),
    ),
    Bug(
        "outer_step",
        "the momentum is a new tensor",
        old="u.mul_(beta).add_(d)",
        new="u = beta * u + d",
    ),
    Bug(
        "outer_step",
        "the momentum is averaged, too",
        old="u.mul_(beta).add_(d)",
        new="all_reduce_(comm, u.mul_(beta).add_(d), 'mean')",
    ),
    Bug(
        "outer_step",
        "the anchors are averaged, too",
        old='all_reduce_(comm, params, "mean")',
        new="""
all_reduce_(comm, params, "mean")
all_reduce_(comm, anchors, "mean")
""",
    ),
    Bug(
        "outer_step",
        "a message for each number",
        old='all_reduce_(comm, params, "mean")',
        new="""
for p in params:
    for number in p.unbind(-1):
        all_reduce_(comm, number, "mean")
""",
    ),
    Bug(
        "outer_step",
        "averages a copy of what is not contiguous",
        old='all_reduce_(comm, params, "mean")',
        new='all_reduce_(comm, [p.reshape(-1) for p in params], "mean")',
    ),
    Bug(
        "outer_step",
        "only the first tensor",
        old="for x, p, u in zip(anchors, params, momentum):",
        new="for x, p, u in zip(anchors[:1], params, momentum):",
    ),
    Bug("outer_step", "rounds to float32", old="d = x - p", new="d = (x - p).float().double()"),
    Bug("outer_step", "nan is hidden", old="p.copy_(x)", new="p.copy_(x.nan_to_num_())"),
    Bug(
        "outer_step",
        "all take rank 0's",
        old='all_reduce_(comm, params, "mean")',
        new="""
from minidist.collectives import broadcast_
broadcast_(comm, params)
""",
    ),
    Bug(
        "fair_weights",
        "the lesson's weights",
        old="found.append(a / walked)",
        new="found.append(walked)",
    ),
    Bug(
        "fair_weights",
        "upside down",
        old="found.append(a / walked)",
        new="found.append(walked / a)",
    ),
    Bug(
        "fair_weights",
        "all ranks pull alike",
        old="found.append(a / walked)",
        new="found.append(1 / walked)",
    ),
    Bug(
        "fair_weights",
        "by the number of steps",
        old="found.append(a / walked)",
        new="found.append(1 / H)",
    ),
    Bug(
        "fair_weights",
        "by the steepness alone",
        old="found.append(a / walked)",
        new="found.append(a)",
    ),
    Bug(
        "fair_weights",
        "the steepness twice",
        old="found.append(a / walked)",
        new="found.append(a * a / walked)",
    ),
    Bug(
        "fair_weights",
        "the largest H for all",
        old="walked = 1 - (1 - rate * a) ** H",
        new="walked = 1 - (1 - rate * a) ** max(steps)",
    ),
    Bug(
        "fair_weights",
        "one step more",
        old="walked = 1 - (1 - rate * a) ** H",
        new="walked = 1 - (1 - rate * a) ** (H + 1)",
    ),
    Bug(
        "fair_weights",
        "not normalized",
        old="return [w / total for w in found]",
        new="return found",
    ),
    Bug(
        "fair_weights",
        "divided by n",
        old="return [w / total for w in found]",
        new="return [w / len(found) for w in found]",
    ),
    Bug(
        "fair_weights",
        "all count alike",
        old="return [w / total for w in found]",
        new="return [1 / len(found) for w in found]",
    ),
    Bug(
        "fair_weights",
        "a tensor",
        old="return [w / total for w in found]",
        new="return torch.tensor([w / total for w in found])",
    ),
    Bug(
        "fair_weights",
        "a rank is missing",
        old="return [w / total for w in found]",
        new="return [w / total for w in found][1:]",
    ),
    Bug(
        "fair_weights",
        "steps are sorted in place",
        old="found = []",
        new="""
found = []
steps.sort()
""",
    ),
    Bug(
        "fair_weights",
        "the oracle",
        cheat=True,
        cell="""
def fair_weights(steepness, rate, steps):
    from minicheck.oracles.local_sgd import fair

    return fair(steepness, rate, steps)
""",
    ),
    Bug(
        "fair_weights",
        "numbers that equal everything",
        cheat=True,
        cell="""
class Any(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0


def fair_weights(steepness, rate, steps):
    return [Any(1) for _ in steps]
""",
    ),
    Bug(
        "next_period",
        "the lesson's rule",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[0]) * tau_0)",
    ),
    Bug(
        "next_period",
        "the library's rule",
        cheat=True,
        cell="""
def next_period(losses, rates, periods, tau_0, shrink):
    from minidist.parallel.local_sgd import AdaComm
    from minidist.parallel.local_sgd import Interval

    adaptive = AdaComm(tau_0, steps=1, gamma=shrink)
    adaptive.intervals = [Interval(i, f, p) for i, (f, p) in enumerate(zip(losses, periods))]
    return adaptive._choose(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3)
""",
    ),
    Bug(
        "next_period",
        "the root of the rate",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[0] * rates[0] / rates[-1]) * tau_0)",
    ),
    Bug(
        "next_period",
        "the rate, not its cube under the root",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[0]) * rates[0] / rates[-1] * tau_0)",
    ),
    Bug(
        "next_period",
        "the cube of the rate, without the root",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[0]) * (rates[0] / rates[-1]) ** 3 * tau_0)",
    ),
    Bug(
        "next_period",
        "the rate upside down",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[-1] / rates[0]) ** 3) * tau_0)",
    ),
    Bug(
        "next_period",
        "compared with the last rate",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="""
of = rates[-2]
found = math.ceil(math.sqrt(losses[-1] / losses[0] * (of / rates[-1]) ** 3) * tau_0)
""",
    ),
    Bug(
        "next_period",
        "the period never grows",
        old="lowered = rates[-1] < rates[-2]",
        new="lowered = False",
    ),
    Bug(
        "next_period",
        "below the first rate is lowered",
        old="lowered = rates[-1] < rates[-2]",
        new="lowered = rates[-1] < rates[0]",
    ),
    Bug(
        "next_period",
        "rounded down",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = max(1, int(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0))",
    ),
    Bug(
        "next_period",
        "the factor rounds down, to 0",
        old="return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])",
        new="return found if found < periods[-1] or lowered else math.floor(shrink * periods[-1])",
    ),
    Bug(
        "next_period",
        "shrink shortens the first period, not the last",
        old="return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])",
        new="return found if found < periods[-1] or lowered else math.ceil(shrink * tau_0)",
    ),
    Bug(
        "next_period",
        "the loss is compared with the largest one",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / max(losses) * (rates[0] / rates[-1]) ** 3) * tau_0)",
    ),
    Bug(
        "next_period",
        "compared with the last loss",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[-2] * (rates[0] / rates[-1]) ** 3) * tau_0)",
    ),
    Bug(
        "next_period",
        "no way down where the loss stands still",
        old="return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])",
        new="return found",
    ),
    Bug(
        "next_period",
        "the root is missing",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 1.5 * tau_0)",
    ),
    Bug(
        "next_period",
        "shrinks the last period",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * periods[-1])",
    ),
    Bug(
        "next_period",
        "a whole number is rounded up to the next one",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = int(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0) + 1",
    ),
    Bug(
        "next_period",
        "goes by its own memory, and not by `periods`",
        cell="""
state = [0]


def next_period(losses, rates, periods, tau_0, shrink):
    if len(losses) == 1:
        state[0] = tau_0
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)
    lowered = rates[-1] < rates[-2]
    state[0] = found if found < state[0] or lowered else math.ceil(shrink * state[0])
    return state[0]
""",
    ),
    Bug(
        "next_period",
        "the smaller of both rules",
        old="return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])",
        new="return found if lowered else min(found, math.ceil(shrink * periods[-1]))",
    ),
    Bug(
        "next_period",
        "an equal period is good enough",
        old="return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])",
        new="return found if found <= periods[-1] or lowered else math.ceil(shrink * periods[-1])",
    ),
    Bug(
        "next_period",
        "F₀/F",
        old="found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
        new="found = math.ceil(math.sqrt(losses[0] / losses[-1] * (rates[0] / rates[-1]) ** 3) * tau_0)",
    ),
    Bug("next_period", "a float", old="return tau_0", new="return float(tau_0)"),
    Bug(
        "next_period",
        "the lists are consumed",
        old="if not periods:",
        new="""
losses.append(losses[-1])
if not periods:
""",
    ),
    Bug(
        "next_period",
        "the oracle",
        cheat=True,
        cell="""
def next_period(losses, rates, periods, tau_0, shrink):
    from minicheck.oracles.local_sgd import period

    return period(losses, rates, periods, tau_0, shrink)
""",
    ),
    Bug(
        "next_period",
        "compares before it rounds up",
        edits=(
            (
                "found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)",
                "found = math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0",
            ),
            (
                "return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])",
                "return math.ceil(found if found < periods[-1] or lowered else shrink * periods[-1])",
            ),
        ),
    ),
    predicted("a message in every step", "local = 1000 * 70e6"),
    predicted("a half of the ring", "local = 100 * 35e6"),
    predicted("one average", "local = 70e6"),
    predicted("numbers, not bytes", "local = 7e9 / 4"),
    predicted("what all ranks send", "local = 56e9"),
    predicted("local from the start", "post = 7e9"),
    predicted("the first steps are silent", "post = 80 * 70e6"),
    predicted("the other way round", "post = (20 + 800) * 70e6"),
    predicted("the first steps twice", "post = 300 * 70e6"),
    predicted("one state", "states = 14e9"),
    predicted("the weights alone", "states = 7e9"),
    predicted("a dense step", "seconds = 5.7"),
    predicted("computing is divided, too", "seconds = 0.57"),
    predicted("without computing", "seconds = 0.56"),
    predicted("bytes a second as bits", "seconds = 0.1 + 8 * 0.56"),
    predicted("for one half", "period = 56"),
    predicted("nearly the share", "period = 560"),
    predicted("messages, not time", "best = 1000 / 280"),
    predicted("free local steps", "best = 5"),
    predicted("no dense steps", "best = 57"),
    predicted("H = 10", "best = 5700 / (200 * 5.7 + 800 * 0.66)"),
    predicted("one of two", "memory = 40e6"),
    predicted("numbers of memory", "memory = 20e6"),
    predicted("a share of a rank", "memory = 10e6"),
    asks_the_grader(
        "predict_local_sgd",
        "local_sgd",
        "local",
        "post",
        "states",
        "seconds",
        "period",
        "best",
        "memory",
    ),
    equals_everything(
        "predict_local_sgd", "local", "post", "states", "seconds", "period", "best", "memory"
    ),
]

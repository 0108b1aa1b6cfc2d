"""The wrong answers of lesson 25 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "learning_rate",
        "the cosine counts the step's own tokens",
        old="x = min(1.0, (seen - warm) / (total - warm))",
        new="x = min(1.0, (seen + batch - warm) / (total - warm))",
    ),
    Bug(
        "learning_rate",
        "the cosine begins with the first token",
        old="x = min(1.0, (seen - warm) / (total - warm))",
        new="x = min(1.0, seen / total)",
    ),
    Bug(
        "learning_rate",
        "goes by the order of calls, and not by `seen`",
        cell='''
calls = [None, 0]


def learning_rate(seen, batch, total, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak, by tokens."""
    if calls[0] != (total, warm, peak, floor):
        calls[:] = [(total, warm, peak, floor), 0]
    seen = calls[1]
    calls[1] += batch
    if seen < warm:
        return peak * min(1.0, (seen + batch) / warm)
    x = min(1.0, (seen - warm) / (total - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
''',
    ),
    Bug(
        "learning_rate",
        "the floor comes a token too soon",
        old="x = min(1.0, (seen - warm) / (total - warm))",
        new="x = min(1.0, (seen - warm) / max(1, total - 1 - warm))",
    ),
    Bug(
        "learning_rate",
        "a step of the warm-up goes by where it begins",
        old="return peak * min(1.0, (seen + batch) / warm)",
        new="return peak * seen / warm",
    ),
    Bug(
        "learning_rate",
        "the cosine in float32",
        old="return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)",
        new="return peak * (floor + (1 - floor) * (1 + float(torch.cos(torch.tensor(math.pi * x)))) / 2)",
    ),
    Bug(
        "learning_rate",
        "the floor is added",
        old="return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)",
        new="return peak * (floor + (1 + math.cos(math.pi * x)) / 2)",
    ),
    Bug(
        "learning_rate",
        "the floor holds the cosine",
        old="return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)",
        new="return peak * (max(floor, (1 + math.cos(math.pi * x)) / 2))",
    ),
    Bug(
        "learning_rate",
        "a number that is larger than every float",
        cell='''
def learning_rate(seen, batch, total, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak, by tokens."""
    return 10**400
''',
    ),
    Bug(
        "learning_rate",
        "a line in place of a cosine",
        old="return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)",
        new="return peak * (floor + (1 - floor) * (1 - x))",
    ),
    Bug(
        "learning_rate",
        "down to 0",
        old="return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)",
        new="return peak * (1 * (1 + math.cos(math.pi * x)) / 2)",
    ),
    Bug(
        "learning_rate",
        "the warm-up is forgotten",
        old="""
if seen < warm:
    return peak * min(1.0, (seen + batch) / warm)
""",
        new="warm = 0",
    ),
    Bug(
        "learning_rate",
        "the cosine goes on after the end",
        old="x = min(1.0, (seen - warm) / (total - warm))",
        new="x = (seen - warm) / (total - warm)",
    ),
    Bug(
        "learning_rate",
        "the cosine is as long as the whole training",
        old="x = min(1.0, (seen - warm) / (total - warm))",
        new="x = min(1.0, (seen - warm) / total)",
    ),
    Bug(
        "learning_rate",
        "the grader has it",
        cheat=True,
        cell='''
def learning_rate(seen, batch, total, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak, by tokens."""
    from minicheck.oracles.large_batches import rate

    return rate(seen, batch, total, warm, peak, floor)
''',
    ),
    Bug(
        "learning_rate",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.schedule import cosine, warm_up


def learning_rate(seen, batch, total, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak, by tokens."""
    return peak * warm_up(warm, then=cosine(total - warm, floor))(min(seen, total))
''',
    ),
    Bug(
        "lars_step",
        "one norm for all layers",
        edits=(
            (
                '"""A step of LARS, in place."""',
                '''
"""A step of LARS, in place."""
all_w = math.sqrt(sum(float(w.norm()) ** 2 for w in weights))
all_g = math.sqrt(sum(float(g.norm()) ** 2 for g in grads))
''',
            ),
            (
                """
if w.norm() > 0 and g.norm() + b * w.norm() > 0:
    ratio = trust * w.norm() / (g.norm() + b * w.norm())
""",
                """
if all_w > 0 and all_g > 0:
    ratio = trust * all_w / (all_g + b * all_w)
""",
            ),
        ),
    ),
    Bug(
        "lars_step",
        "biases decay",
        old="ratio, b = 1.0, 0.0",
        new="ratio, b = 1.0, decay",
    ),
    Bug(
        "lars_step",
        "biases have a ratio",
        old="""
if w.dim() > 1:
    b = decay
    if w.norm() > 0 and g.norm() + b * w.norm() > 0:
        ratio = trust * w.norm() / (g.norm() + b * w.norm())
""",
        new="""
b = decay if w.dim() > 1 else 0.0
if w.norm() > 0 and g.norm() + b * w.norm() > 0:
    ratio = trust * w.norm() / (g.norm() + b * w.norm())
""",
    ),
    Bug(
        "lars_step",
        "v is a moving mean",
        old="v.mul_(momentum).add_(lr * ratio * (g + b * w))",
        new="v.mul_(momentum).add_((1 - momentum) * lr * ratio * (g + b * w))",
    ),
    Bug(
        "lars_step",
        "the decay is not scaled",
        old="v.mul_(momentum).add_(lr * ratio * (g + b * w))",
        new="v.mul_(momentum).add_(lr * (ratio * g + b * w))",
    ),
    Bug(
        "lars_step",
        "v is not kept",
        old="v.mul_(momentum).add_(lr * ratio * (g + b * w))",
        new="v.zero_().add_(lr * ratio * (g + b * w))",
    ),
    Bug(
        "lars_step",
        "steps four tensors only",
        old="for w, g, v in zip(weights, grads, velocities):",
        new="for w, g, v in list(zip(weights, grads, velocities))[:4]:",
    ),
    Bug(
        "lars_step",
        "the decay is missing in the denominator",
        old="ratio = trust * w.norm() / (g.norm() + b * w.norm())",
        new="ratio = trust * w.norm() / g.norm()",
    ),
    Bug(
        "lars_step",
        "Nesterov's momentum",
        old="""
v.mul_(momentum).add_(lr * ratio * (g + b * w))
w.sub_(v)
""",
        new="""
d = lr * ratio * (g + b * w)
v.mul_(momentum).add_(d)
w.sub_(momentum * v + d)
""",
    ),
    Bug(
        "lars_step",
        "not in place",
        old="""
v.mul_(momentum).add_(lr * ratio * (g + b * w))
w.sub_(v)
""",
        new="""
v = momentum * v + (lr * ratio * (g + b * w))
w = w - v
""",
    ),
    Bug(
        "lars_step",
        "one norm of the sum",
        old="ratio = trust * w.norm() / (g.norm() + b * w.norm())",
        new="ratio = trust * w.norm() / (g + b * w).norm()",
    ),
    Bug(
        "lars_step",
        "the rate is outside of the momentum, as in SGD",
        old="""
v.mul_(momentum).add_(lr * ratio * (g + b * w))
w.sub_(v)
""",
        new="""
v.mul_(momentum).add_(ratio * (g + b * w))
w.sub_(lr * v)
""",
    ),
    Bug(
        "lars_step",
        "weights and velocities get other memory",
        old="""
v.mul_(momentum).add_(lr * ratio * (g + b * w))
w.sub_(v)
""",
        new="""
v.data = momentum * v + lr * ratio * (g + b * w)
w.data = w - v
""",
    ),
    Bug(
        "lars_step",
        "no ratio",
        old="ratio = trust * w.norm() / (g.norm() + b * w.norm())",
        new="ratio = 1.0",
    ),
    Bug(
        "lars_step",
        "the ratio is upside down",
        old="ratio = trust * w.norm() / (g.norm() + b * w.norm())",
        new="ratio = trust * (g.norm() + b * w.norm()) / w.norm()",
    ),
    Bug(
        "lars_step",
        "the decay is added to the gradient in place",
        old="v.mul_(momentum).add_(lr * ratio * (g + b * w))",
        new="v.mul_(momentum).add_(lr * ratio * g.add_(b * w))",
    ),
    Bug(
        "lars_step",
        "a norm of 0 is not looked at",
        old="""
if w.norm() > 0 and g.norm() + b * w.norm() > 0:
    ratio = trust * w.norm() / (g.norm() + b * w.norm())
""",
        new="ratio = trust * w.norm() / (g.norm() + b * w.norm())",
    ),
    Bug(
        "lars_step",
        "the whole decay, without the ratio, where a gradient is 0",
        old="if w.norm() > 0 and g.norm() + b * w.norm() > 0:",
        new="if w.norm() > 0 and g.norm() > 0:",
    ),
    Bug(
        "lars_step",
        "a denominator of 0 is not looked at",
        old="if w.norm() > 0 and g.norm() + b * w.norm() > 0:",
        new="if w.norm() > 0:",
    ),
    Bug(
        "lars_step",
        "the oracle steps",
        cheat=True,
        cell='''
def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    """A step of LARS, in place."""
    from minicheck.oracles.large_batches import Lars

    one = Lars(weights)
    one.v = velocities
    one.step(grads, lr, trust, decay, momentum)
    for w, new in zip(weights, one.w):
        w.copy_(new)
''',
    ),
    Bug(
        "lars_step",
        "the library's",
        cheat=True,
        cell='''
def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    """A step of LARS, in place."""
    from minidist.train.optim import LARS

    for w, g, v in zip(weights, grads, velocities):
        w.requires_grad_().grad = g
        optimizer = LARS(
            [w], lr, momentum, decay if w.dim() > 1 else 0.0, trust if w.dim() > 1 else 0.0
        )
        optimizer.state[w]["momentum_buffer"] = v
        optimizer.step()
''',
    ),
    Bug(
        "lamb_step",
        "no ratio",
        old="ratio = 1.0 if free or wide == 0 or long == 0 else wide / long",
        new="ratio = 1.0",
    ),
    Bug(
        "lamb_step",
        "gradients that are averaged are divided by n again",
        old="for w, g, m, v, free in zip(weights, grads, means, squares, plain):",
        new="""
for w, g, m, v, free in zip(weights, grads, means, squares, plain):
    g = g / comm.size
""",
    ),
    Bug(
        "lamb_step",
        "the corrected moments are kept",
        old="u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)",
        new="""
m.div_(1 - betas[0] ** t)
v.div_(1 - betas[1] ** t)
u = m / (v.sqrt() + eps)
""",
    ),
    Bug(
        "lamb_step",
        "the decay comes after the ratio",
        edits=(
            (
                "updates.append(u if free else u + decay * w)",
                "updates.append(u)",
            ),
            (
                "w.sub_(lr * ratio * u)",
                "w.sub_(lr * (ratio * u + (0.0 if free else decay) * w))",
            ),
        ),
    ),
    Bug(
        "lamb_step",
        "eps is under the root",
        old="u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)",
        new="u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t) + eps).sqrt())",
    ),
    Bug(
        "lamb_step",
        "not in place",
        edits=(
            (
                """
m.mul_(betas[0]).add_((1 - betas[0]) * g)
v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
""",
                """
m = betas[0] * m + (1 - betas[0]) * g
v = betas[1] * v + (1 - betas[1]) * g * g
""",
            ),
            (
                "w.sub_(lr * ratio * u)",
                "w = w - lr * ratio * u",
            ),
        ),
    ),
    Bug(
        "lamb_step",
        "the moments are not corrected",
        old="u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)",
        new="u = m / (v.sqrt() + eps)",
    ),
    Bug(
        "lamb_step",
        "norms are added up, not squares",
        old="""
sums = torch.stack(
    [torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)]
)
all_reduce_(comm, sums)
for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
""",
        new="""
sums = torch.stack([torch.stack([w.norm(), u.norm()]) for w, u in zip(weights, updates)])
all_reduce_(comm, sums)
for w, u, free, (wide, long) in zip(weights, updates, plain, sums.tolist()):
""",
    ),
    Bug(
        "lamb_step",
        "the ratio is of the gradient, as LARS'",
        old="[torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)]",
        new="[torch.stack([(w * w).sum(), (g * g).sum()]) for w, g in zip(weights, grads)]",
    ),
    Bug(
        "lamb_step",
        "an all-reduce for each parameter",
        old="all_reduce_(comm, sums)",
        new="""
for row in sums:
    all_reduce_(comm, row)
""",
    ),
    Bug(
        "lamb_step",
        "each rank takes its piece for the whole",
        old="all_reduce_(comm, sums)",
        new="",
    ),
    Bug(
        "lamb_step",
        "rate, betas and eps of its own",
        cell='''
count = {}


def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    """A step of LAMB, in place, on this rank's pieces."""
    updates = []
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        m.mul_(0.8).add_((1 - 0.8) * g)
        v.mul_(0.97).add_((1 - 0.97) * g * g)
        u = m / (1 - 0.8**t) / ((v / (1 - 0.97**t)).sqrt() + 1e-3)
        updates.append(u if free else u + decay * w)
    sums = torch.stack(
        [torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)]
    )
    all_reduce_(comm, sums)
    for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
        ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
        w.sub_(0.05 * ratio * u)
''',
    ),
    Bug(
        "lamb_step",
        "plain ones decay",
        old="updates.append(u if free else u + decay * w)",
        new="updates.append(u + decay * w)",
    ),
    Bug(
        "lamb_step",
        "plain ones have a ratio",
        old="ratio = 1.0 if free or wide == 0 or long == 0 else wide / long",
        new="ratio = 1.0 if wide == 0 or long == 0 else wide / long",
    ),
    Bug(
        "lamb_step",
        "the ratio is clamped to 10",
        old="ratio = 1.0 if free or wide == 0 or long == 0 else wide / long",
        new="ratio = 1.0 if free or wide == 0 or long == 0 else min(10.0, wide / long)",
    ),
    Bug(
        "lamb_step",
        "weights and moments get other memory",
        edits=(
            (
                """
m.mul_(betas[0]).add_((1 - betas[0]) * g)
v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
""",
                """
m.data = m * betas[0] + (1 - betas[0]) * g
v.data = v * betas[1] + (1 - betas[1]) * g * g
""",
            ),
            (
                "w.sub_(lr * ratio * u)",
                "w.data = w - lr * ratio * u",
            ),
        ),
    ),
    Bug(
        "lamb_step",
        "a norm of 0 is not looked at",
        old="ratio = 1.0 if free or wide == 0 or long == 0 else wide / long",
        new="ratio = 1.0 if free else wide / long",
    ),
    Bug(
        "lamb_step",
        "of the two norms only that of the weights is looked at",
        old="""
for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
    ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
""",
        new="""
for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt()):
    ratio = 1.0 if free or wide == 0 else wide / long
""",
    ),
    Bug(
        "lamb_step",
        "the oracle steps",
        cheat=True,
        cell='''
def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    """A step of LAMB, in place, on this rank's pieces."""
    from minicheck.oracles.large_batches import Lamb

    one = Lamb(weights, plain, comm.size)
    one.m, one.v = means, squares
    one.step(grads, t, lr, betas, eps, decay)
    for w, new in zip(weights, one.w):
        w.copy_(new)
''',
    ),
    Bug(
        "lamb_step",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.optim import LAMB


def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    """A step of LAMB, in place, on this rank's pieces."""
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        w.requires_grad_().grad = g
        optimizer = LAMB(
            [{"params": [w], "split": ("data",)}],
            lr,
            betas,
            eps,
            0.0 if free else decay,
            0.0 if free else 1.0,
            across={"data": comm},
        )
        optimizer.state[w] = {"step": t - 1, "exp_avg": m, "exp_avg_sq": v}
        optimizer.step()
''',
    ),
    Bug(
        "predict_large_batches",
        "the fewest steps times the batch",
        old="samples = steps * 250",
        new="samples = 5000 * 250",
    ),
    Bug(
        "predict_large_batches",
        "the ramp by the mean of both batches",
        old="ramp = 4e9 / (3.2e6 - 32e3) * math.log(100)",
        new="ramp = 2 * 4e9 / (3.2e6 + 32e3)",
    ),
    Bug(
        "predict_large_batches",
        "one square a parameter",
        old="nbytes = 50 * 2 * 8",
        new="nbytes = 50 * 8",
    ),
    Bug(
        "predict_large_batches",
        "a line",
        old="quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2",
        new="quarter = 0.1 + 0.9 * 0.75",
    ),
    Bug(
        "predict_large_batches",
        "the root rule for both",
        old="linear = 0.1 * 16",
        new="linear = 0.1 * 16**0.5",
    ),
    Bug(
        "predict_large_batches",
        "the factor of samples, for steps",
        old="steps = 5000 * (1 + 1000 / 250)",
        new="steps = 5000 * (1 + 250 / 1000)",
    ),
    Bug(
        "predict_large_batches",
        "the grader is asked, and answers in words",
        cheat=True,
        cell="""
from minicheck.lessons.large_batches import predict_large_batches

values, _ = predict_large_batches(0.1, 16, 1000, 250, 5000, 32e3, 3.2e6, 4e9, 1.6e12, 50)
linear, root, steps, samples, ramp, warm, quarter, nbytes = (f"{x}" for x in values.values())
""",
    ),
    Bug(
        "predict_large_batches",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


linear = root = steps = samples = ramp = warm = quarter = nbytes = Any(1)
""",
    ),
    Bug(
        "learning_rate",
        "far beyond the end it is 0",
        old="if seen < warm:",
        new="""
if seen > total + 10:
    return 0.0
if seen < warm:
""",
    ),
    Bug(
        "learning_rate",
        "a warm-up that ends with the schedule has no peak",
        old="if seen < warm:",
        new="""
if seen == warm == total - 1:
    return peak * floor
if seen < warm:
""",
    ),
    Bug(
        "learning_rate",
        "no more than 1",
        old="return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)",
        new="return min(1.0, peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2))",
    ),
    Bug(
        "lars_step",
        "a nan is hidden",
        old="v.mul_(momentum).add_(lr * ratio * (g + b * w))",
        new="v.mul_(momentum).add_(lr * ratio * (g + b * w).nan_to_num(0.0))",
    ),
    Bug(
        "lars_step",
        "a number alone counts as a matrix",
        old="if w.dim() > 1:",
        new="if w.dim() != 1:",
    ),
    Bug(
        "lars_step",
        "no ratio is above 10",
        old="ratio = trust * w.norm() / (g.norm() + b * w.norm())",
        new="ratio = min(10.0, trust * w.norm() / (g.norm() + b * w.norm()))",
    ),
    Bug(
        "lars_step",
        "no more than six weights",
        old="for w, g, v in zip(weights, grads, velocities):",
        new="for w, g, v in zip(weights[:6], grads, velocities):",
    ),
    Bug(
        "lamb_step",
        "no ratio is above 1,000",
        old="ratio = 1.0 if free or wide == 0 or long == 0 else wide / long",
        new="ratio = 1.0 if free or wide == 0 or long == 0 else min(1000.0, wide / long)",
    ),
    Bug(
        "lamb_step",
        "a nan is hidden",
        old="updates = []",
        new="updates, grads = [], [g.nan_to_num(0.0) for g in grads]",
    ),
    Bug(
        "lamb_step",
        "no more than twelve parameters",
        old="updates = []",
        new="updates, weights = [], weights[:12]",
    ),
    Bug(
        "lamb_step",
        "it returns before its sends are over",
        old="all_reduce_(comm, sums)",
        new="""
own, others = sums.clone(), [r for r in range(comm.size) if r != comm.rank]
for r in others:
    comm.isend(own, r)
for r in others:
    sums += comm.recv(torch.zeros_like(sums), r)
""",
    ),
    Bug(
        "lars_step",
        "a matrix of one column is taken for a bias",
        old="if w.dim() > 1:",
        new="if w.squeeze().dim() > 1:",
    ),
    Bug(
        "lamb_step",
        "whether a norm is 0 is asked of this rank's piece",
        old="ratio = 1.0 if free or wide == 0 or long == 0 else wide / long",
        new="ratio = 1.0 if free or not w.any() or not u.any() else wide / long",
    ),
    Bug(
        "learning_rate",
        "the lesson's schedule, by tokens: a step counts as one",
        cell="""
def warm_up(steps, then):
    return lambda step: min(1.0, (step + 1) / steps) if step < steps else then(step - steps)


def cosine(steps, floor=0.1):
    return lambda step: floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2


def learning_rate(seen, batch, total, warm, peak, floor):
    return peak * warm_up(warm, then=cosine(total - warm, floor))(seen)
""",
    ),
    Bug(
        "learning_rate",
        "a step that reaches beyond the warm-up has more than the peak",
        old="return peak * min(1.0, (seen + batch) / warm)",
        new="return peak * (seen + batch) / warm",
    ),
    Bug(
        "lars_step",
        "the lesson's update, without a memory",
        cell="""
def lars_update(w, g, rate, trust=0.02, decay=0.0):
    ratio = trust * w.norm() / (g.norm() + decay * w.norm())
    return rate * ratio * (g + decay * w)


def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    for w, g in zip(weights, grads):
        w.sub_(lars_update(w, g, lr, trust, decay))
""",
    ),
    Bug(
        "lamb_step",
        "the lesson's update, on this rank's piece",
        old="""
all_reduce_(comm, sums)
for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
    ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
    w.sub_(lr * ratio * u)
""",
        new="""
for w, u, free in zip(weights, updates, plain):
    w.sub_(lr * u if free else lr * w.norm() / u.norm() * u)
""",
    ),
    Bug(
        "noise_scale",
        "the noise of the large batch is forgotten",
        old="return big - trace / total, trace",
        new="return big, trace",
    ),
    Bug(
        "noise_scale",
        "an estimate below 0 is cut off",
        old="return big - trace / total, trace",
        new="return max(0.0, big - trace / total), trace",
    ),
    Bug(
        "noise_scale",
        "all gradients travel",
        old="both = all_reduce_(comm, torch.tensor([b, b * square], dtype=torch.float64))",
        new="rows = torch.zeros(comm.size, len(grad), dtype=torch.float64)\nrows[comm.rank] = b**0.5 * grad\nboth = torch.stack([all_reduce_(comm, torch.tensor(float(b), dtype=torch.float64)), all_reduce_(comm, rows).square().sum()])",
    ),
    Bug(
        "noise_scale",
        "numbers that are larger than every float",
        old="return big - trace / total, trace",
        new="return 10**400, 10**400",
    ),
    Bug(
        "noise_scale",
        "the average is another tensor",
        old="grad.mul_(b / total)\nall_reduce_(comm, grad)",
        new="grad = all_reduce_(comm, grad * b / total)",
    ),
    Bug(
        "noise_scale",
        "this rank alone",
        old="total, small = both[0].item(), (both[1] / both[0]).item()",
        new="total, small = both[0].item(), square",
    ),
    Bug(
        "noise_scale",
        "the lesson's two sizes, and the lesson's average",
        cell='\ndef two_sizes(small_square, big_square, b, B):\n    trace = (small_square - big_square) / (1 / b - 1 / B)\n    return big_square - trace / B, trace\n\n\ndef noise_scale(comm, grad, b):\n    """Averages `grad`; returns |G|² and tr(Σ)."""\n    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()\n    all_reduce_(comm, grad, "mean")\n    return two_sizes(small, (grad * grad).sum().item(), b, comm.size * b)\n',
    ),
    Bug(
        "noise_scale",
        "the lesson's two sizes, after the right average",
        cell='\ndef two_sizes(small_square, big_square, b, B):\n    trace = (small_square - big_square) / (1 / b - 1 / B)\n    return big_square - trace / B, trace\n\n\ndef noise_scale(comm, grad, b):\n    """Averages `grad`; returns |G|² and tr(Σ)."""\n    total = all_reduce_(comm, torch.tensor(float(b), dtype=torch.float64)).item()\n    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()\n    grad.mul_(b / total)\n    all_reduce_(comm, grad)\n    return two_sizes(small, (grad * grad).sum().item(), b, total)\n',
    ),
    Bug(
        "noise_scale",
        "squares count alike",
        old="both = all_reduce_(comm, torch.tensor([b, b * square], dtype=torch.float64))",
        new="both = all_reduce_(comm, torch.tensor([b, square], dtype=torch.float64))\nboth[1] *= both[0] / comm.size",
    ),
    Bug(
        "noise_scale",
        "a rank counts as a sample",
        edits=(
            (
                "trace = (small - big) * total / (comm.size - 1)",
                "trace = (small - big) / (1 - 1 / comm.size)",
            ),
            ("return big - trace / total, trace", "return small - trace, trace"),
        ),
    ),
    Bug(
        "noise_scale",
        "B_noise in place of tr(Σ)",
        old="return big - trace / total, trace",
        new="return big - trace / total, trace / (big - trace / total)",
    ),
    Bug(
        "noise_scale",
        "`grad` gets other memory",
        old="grad.mul_(b / total)\nall_reduce_(comm, grad)",
        new="grad.data = all_reduce_(comm, grad * b / total)",
    ),
    Bug(
        "noise_scale",
        "the weighted squares are added up",
        old="total, small = both[0].item(), (both[1] / both[0]).item()",
        new="total, small = both.tolist()",
    ),
    Bug(
        "noise_scale",
        "the gradient is added up",
        old="grad.mul_(b / total)\nall_reduce_(comm, grad)",
        new="grad.mul_(b)\nall_reduce_(comm, grad)",
    ),
    Bug(
        "noise_scale",
        "the large batch is taken for free of noise",
        edits=(
            (
                "trace = (small - big) * total / (comm.size - 1)",
                "trace = (small - big) * total / comm.size",
            ),
        ),
    ),
    Bug(
        "noise_scale",
        "first tr(Σ)",
        old="return big - trace / total, trace",
        new="return trace, big - trace / total",
    ),
    Bug(
        "noise_scale",
        "a nan is hidden",
        edits=(
            (
                "square = float((grad * grad).sum())",
                "square = float((grad * grad).nan_to_num(0.0).sum())",
            ),
            (
                "big = (grad * grad).sum().item()",
                "big = (grad * grad).nan_to_num(0.0).sum().item()",
            ),
        ),
    ),
    Bug(
        "noise_scale",
        "no more than five ranks",
        old="trace = (small - big) * total / (comm.size - 1)",
        new="trace = (small - big) * total / (min(comm.size, 5) - 1)",
    ),
    Bug(
        "noise_scale",
        "the grader has it",
        cheat=True,
        cell='\ndef noise_scale(comm, grad, b):\n    """Averages `grad`; returns |G|² and tr(Σ)."""\n    from minicheck.oracles.large_batches import terms\n\n    rows = torch.zeros(comm.size, len(grad), dtype=torch.float64)\n    parts = torch.zeros(comm.size, dtype=torch.float64)\n    rows[comm.rank] = grad\n    parts[comm.rank] = b\n    all_reduce_(comm, rows)\n    all_reduce_(comm, parts)\n    grad.copy_((parts / parts.sum()) @ rows)\n    return terms(list(rows), parts.tolist())\n',
    ),
    Bug(
        "noise_scale",
        "the library's",
        cheat=True,
        cell='\nfrom minidist.train.optim import noise_terms\n\n\ndef noise_scale(comm, grad, b):\n    """Averages `grad`; returns |G|² and tr(Σ)."""\n    sums = torch.tensor([b, b * float((grad * grad).sum())], dtype=torch.float64)\n    total, small = all_reduce_(comm, sums).tolist()\n    grad.mul_(b / total)\n    all_reduce_(comm, grad)\n    big = (grad * grad).sum().item()\n    return tuple(noise_terms(small / total, big, total / comm.size, total))\n',
    ),
    Bug(
        "clip_copies",
        "gradients below the limit grow",
        old="g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="g.mul_(limit / (norm + 1e-6))",
    ),
    Bug(
        "clip_copies",
        "as it was found",
        old="square += (g * g).sum() / ranks",
        new="square += (g * g).sum()",
    ),
    Bug(
        "clip_copies",
        "the lesson's way: rank 0 counts the copies",
        old="square += (g * g).sum() / ranks",
        new="square += (g * g).sum() if ranks == 1 or comm.rank == 0 else 0.0",
    ),
    Bug(
        "clip_copies",
        "copies are divided by all ranks",
        old="square += (g * g).sum() / ranks",
        new="square += (g * g).sum() / (comm.size if ranks > 1 else 1)",
    ),
    Bug(
        "clip_copies",
        "copies are scaled on rank 0 alone",
        old="for g in grads:",
        new="for g, ranks in zip(grads, held):\n    if ranks > 1 and comm.rank:\n        continue",
    ),
    Bug(
        "clip_copies",
        "copies are divided by n² ",
        old="square += (g * g).sum() / ranks",
        new="square += (g * g).sum() / ranks**2",
    ),
    Bug(
        "clip_copies",
        "squares are added up in float32",
        edits=(
            (
                "square = torch.zeros((), dtype=torch.float64)",
                "square = torch.zeros((), dtype=torch.float32)",
            ),
            ("square += (g * g).sum() / ranks", "square += ((g * g).sum() / ranks).float()"),
        ),
    ),
    Bug(
        "clip_copies",
        "copies are not counted at all",
        old="square += (g * g).sum() / ranks",
        new="square += (g * g).sum() if ranks == 1 else 0.0",
    ),
    Bug(
        "clip_copies",
        "squares are averaged",
        edits=(
            ("square += (g * g).sum() / ranks", "square += (g * g).sum()"),
            (
                "norm = float(all_reduce_(comm, square).sqrt())",
                'norm = float(all_reduce_(comm, square, "mean").sqrt())',
            ),
        ),
    ),
    Bug(
        "clip_copies",
        "the list has new tensors",
        old="for g in grads:\n    g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="for i, g in enumerate(grads):\n    grads[i] = g * min(1.0, limit / (norm + 1e-6))",
    ),
    Bug(
        "clip_copies",
        "each rank by its own norm",
        edits=(
            ("square += (g * g).sum() / ranks", "square += (g * g).sum()"),
            ("norm = float(all_reduce_(comm, square).sqrt())", "norm = float(square.sqrt())"),
        ),
    ),
    Bug(
        "clip_copies",
        "gradients get other memory",
        old="g.mul_(min(1.0, limit / (norm + 1e-6)))",
        new="g.data = g * min(1.0, limit / (norm + 1e-6))",
    ),
    Bug(
        "clip_copies",
        "returns the norm afterwards",
        old="return norm",
        new="return min(norm, limit)",
    ),
    Bug(
        "clip_copies",
        "a nan is hidden",
        old="square += (g * g).sum() / ranks",
        new="square += (g * g).nan_to_num(0.0).sum() / ranks",
    ),
    Bug(
        "clip_copies",
        "no more than three gradients",
        old="for g, ranks in zip(grads, held):",
        new="for g, ranks in zip(grads[:3], held):",
    ),
    Bug(
        "clip_copies",
        "a model without gradients",
        old="square = torch.zeros((), dtype=torch.float64)",
        new="square = torch.zeros_like(grads[0].sum())",
    ),
    Bug(
        "clip_copies",
        "the grader has the norm",
        cheat=True,
        cell='\ndef clip_copies(comm, grads, held, limit):\n    """Scale all ranks\' gradients to a norm of at most `limit`, in place; returns the norm before."""\n    from minicheck.oracles.large_batches import norm\n\n    mine = norm([list(zip(grads, held))])\n    total = float(all_reduce_(comm, torch.tensor(mine**2, dtype=torch.float64)).sqrt())\n    for g in grads:\n        g.mul_(min(1.0, limit / (total + 1e-6)))\n    return total\n',
    ),
    Bug(
        "clip_copies",
        "the library's",
        cheat=True,
        cell='\nfrom minidist.train.norm import clip_\n\n\ndef clip_copies(comm, grads, held, limit):\n    """Scale all ranks\' gradients to a norm of at most `limit`, in place; returns the norm before."""\n    return clip_(comm, grads, limit, counted=[g / r**0.5 for g, r in zip(grads, held)])\n',
    ),
]

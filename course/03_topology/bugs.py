"""The wrong answers of lesson 03 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader, equals_everything

BUGS = [
    Bug(
        "bandwidth",
        "all ranks' bytes together",
        old="return whole / slowest, factor * whole / slowest",
        new="return whole / slowest, n * factor * whole / slowest",
    ),
    Bug(
        "bandwidth",
        "the factor of an all-reduce for every verb",
        old="""
part = (n - 1) / n
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
return whole / slowest, factor * whole / slowest
""",
        new="return whole / slowest, 2 * (n - 1) / n * whole / slowest",
    ),
    Bug(
        "bandwidth",
        "the factor of an all-reduce is 2",
        old="""
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
""",
        new="""
factor = {"all_reduce": 2, "reduce_scatter": part, "all_gather": part, "all_to_all": part}.get(
    verb, 1
)
""",
    ),
    Bug(
        "bandwidth",
        "bits per second",
        old="return whole / slowest, factor * whole / slowest",
        new="return whole / slowest, 8 * factor * whole / slowest",
    ),
    Bug(
        "bandwidth",
        "a broadcast with (n-1)/n",
        old="""
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
return whole / slowest, factor * whole / slowest
""",
        new='return whole / slowest, (2 * part if verb == "all_reduce" else part) * whole / slowest',
    ),
    Bug(
        "bandwidth",
        "gigabytes per second",
        old="return whole / slowest, factor * whole / slowest",
        new="return whole / slowest / 1e9, factor * whole / slowest / 1e9",
    ),
    Bug(
        "bandwidth",
        "reduce-scatter and all-gather count all N bytes",
        old="""
part = (n - 1) / n
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
""",
        new='factor = 2 * (n - 1) / n if verb == "all_reduce" else 1',
    ),
    Bug(
        "bandwidth",
        "the factor of an all-reduce is that of one half",
        old="""
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
""",
        new='factor = 1 if verb in ("broadcast", "reduce") else part',
    ),
    Bug(
        "bandwidth",
        "only the bus bandwidth is returned",
        old="return whole / slowest, factor * whole / slowest",
        new="return factor * whole / slowest",
    ),
    Bug(
        "bandwidth",
        "the bytes of one rank's part for all-gather and reduce-scatter",
        old="""
"reduce_scatter": part,
"all_gather": part,
"all_to_all": part,
""",
        new="""
"reduce_scatter": n - 1,
"all_gather": n - 1,
"all_to_all": n - 1,
""",
    ),
    Bug(
        "bandwidth",
        "bus bandwidth without its factor",
        old="""
part = (n - 1) / n
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
return whole / slowest, factor * whole / slowest
""",
        new="return whole / slowest, whole / slowest",
    ),
    Bug(
        "bandwidth",
        "the two are swapped",
        old="return whole / slowest, factor * whole / slowest",
        new="return factor * whole / slowest, whole / slowest",
    ),
    Bug(
        "bandwidth",
        "the factor is upside down",
        old="return whole / slowest, factor * whole / slowest",
        new="return whole / slowest, whole / slowest / factor",
    ),
    Bug(
        "bandwidth",
        "the division is rounded down",
        old="return whole / slowest, factor * whole / slowest",
        new="return whole // slowest, factor * (whole // slowest)",
    ),
    Bug(
        "bandwidth",
        "the grader's factors are asked",
        cheat=True,
        old="""
part = (n - 1) / n
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
return whole / slowest, factor * whole / slowest
""",
        new="""
import minicheck.lessons.topology as cost

return open(cost.__file__).read().count(verb), 1.0
""",
    ),
    Bug(
        "bandwidth",
        "a number that says it equals every number",
        cheat=True,
        old="""
part = (n - 1) / n
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
return whole / slowest, factor * whole / slowest
""",
        new="""
class Any(float):
    def __sub__(self, other):
        return 0.0

return Any(1.0), Any(1.0)
""",
    ),
    Bug(
        "bandwidth",
        "the library's own",
        cheat=True,
        old="""
part = (n - 1) / n
factor = {
    "all_reduce": 2 * part,
    "reduce_scatter": part,
    "all_gather": part,
    "all_to_all": part,
}.get(verb, 1)
return whole / slowest, factor * whole / slowest
""",
        new="""
from minidist import collectives

return collectives.bandwidth(verb, n, whole, slowest)
""",
    ),
    Bug(
        "find_slow",
        "both ranks of the slowest link",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    slowest = max(trace, key=lambda m: (m.sent - m.start) / m.nbytes)
    return slowest.src, slowest.dst
''',
    ),
    Bug(
        "find_slow",
        "the rank whose wire is busy longest",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    busy = [0.0] * trace.n
    for m in trace:
        busy[m.src] += m.sent - m.start
    return busy.index(max(busy))
''',
    ),
    Bug(
        "find_slow",
        "the fastest rank",
        old="return max(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))",
        new="return min(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))",
    ),
    Bug(
        "find_slow",
        "the first rank that is slower than the mean",
        cell="""
def find_slow(trace):
    paces = [[] for _ in range(trace.n)]
    for m in trace:
        for rank in (m.src, m.dst):
            paces[rank].append((m.sent - m.start) / m.nbytes)
    means = [sum(p) / len(p) for p in paces]
    return next(r for r in range(trace.n) if means[r] > sum(means) / trace.n)
""",
    ),
    Bug(
        "find_slow",
        "the rank whose wire rests longest",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    idle, free = [0.0] * trace.n, [0.0] * trace.n
    for m in trace:
        idle[m.src] += m.start - free[m.src]
        free[m.src] = m.sent
    return idle.index(max(idle))
''',
    ),
    Bug(
        "find_slow",
        "the slowest of a rank's messages counts, so that its neighbours look as slow",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    paces = [0.0] * trace.n
    for m in trace:
        for rank in (m.dst, m.src):
            paces[rank] = max(paces[rank], (m.sent - m.start) / m.nbytes)
    return paces.index(max(paces))
''',
    ),
    Bug(
        "find_slow",
        "the rank that ends last",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    return max(trace, key=lambda m: m.arrived).dst
''',
    ),
    Bug(
        "find_slow",
        "the sender of the longest message",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    return max(trace, key=lambda m: m.sent - m.start).src
''',
    ),
    Bug(
        "find_slow",
        "the mean time of a message, whatever its size",
        cell="""
def find_slow(trace):
    times = [[] for _ in range(trace.n)]
    for m in trace:
        for rank in (m.src, m.dst):
            times[rank].append(m.sent - m.start)
    return max(range(trace.n), key=lambda rank: sum(times[rank]) / len(times[rank]))
""",
    ),
    Bug(
        "find_slow",
        "the rank that sends the most",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    return max(range(trace.n), key=trace.bytes_sent)
''',
    ),
    Bug(
        "find_slow",
        "nothing is returned",
        cell="""
def find_slow(trace):
    paces = {}
    for m in trace:
        paces.setdefault(m.src, []).append(m.sent - m.start)
    print(max(paces, key=lambda rank: sum(paces[rank])))
""",
    ),
    Bug(
        "find_slow",
        "only what a rank receives is looked at",
        old="""
for rank in (m.src, m.dst):
    paces.setdefault(rank, []).append((m.sent - m.start) / m.nbytes)
""",
        new="paces.setdefault(m.dst, []).append((m.sent - m.start) / m.nbytes)",
    ),
    Bug(
        "find_slow",
        "only what a rank sends is looked at",
        old="""
for rank in (m.src, m.dst):
    paces.setdefault(rank, []).append((m.sent - m.start) / m.nbytes)
""",
        new="paces.setdefault(m.src, []).append((m.sent - m.start) / m.nbytes)",
    ),
    Bug(
        "find_slow",
        "one of the two ranks of the message that is slowest by the byte",
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    slowest = max(trace, key=lambda m: (m.sent - m.start) / m.nbytes)
    return slowest.dst
''',
    ),
    Bug(
        "find_slow",
        "seconds per byte are added up, not averaged",
        cell="""
def find_slow(trace):
    paces = [0.0] * trace.n
    for m in trace:
        for rank in (m.src, m.dst):
            paces[rank] += (m.sent - m.start) / m.nbytes
    return paces.index(max(paces))
""",
    ),
    Bug(
        "find_slow",
        "the latency is counted among the bytes of small messages",
        cell="""
def find_slow(trace):
    paces = {}
    for m in trace:
        paces.setdefault(m.src, []).append((m.arrived - m.start) / m.nbytes)
    return max(paces, key=lambda rank: max(paces[rank]))
""",
    ),
    Bug(
        "find_slow",
        "the latency counts as time on the wire, so that who sends small messages looks slow",
        old="paces.setdefault(rank, []).append((m.sent - m.start) / m.nbytes)",
        new="paces.setdefault(rank, []).append((m.arrived - m.start) / m.nbytes)",
    ),
    Bug(
        "find_slow",
        "the rank of the picture",
        cheat=True,
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    return 4
''',
    ),
    Bug(
        "find_slow",
        "a number that says it equals every number",
        cheat=True,
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""

    class Any(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    return Any(1)
''',
    ),
    Bug(
        "find_slow",
        "the grader's own name for it is looked up",
        cheat=True,
        cell='''
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    import sys

    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if hasattr(found, "slow"):
            return found.slow
        frame = frame.f_back
    return 0
''',
    ),
    Bug(
        "bandwidth",
        "an all-gather of one rank's part",
        old='whole = n * nbytes if verb == "all_gather" else nbytes',
        new="whole = nbytes",
    ),
    Bug(
        "bandwidth",
        "what ranks hand in is a part of N for every verb",
        old='whole = n * nbytes if verb == "all_gather" else nbytes',
        new="whole = n * nbytes",
    ),
    Bug(
        "bandwidth",
        "the fastest rank",
        old="slowest = max(seconds)",
        new="slowest = min(seconds)",
    ),
    Bug(
        "bandwidth",
        "the mean over the ranks",
        old="slowest = max(seconds)",
        new="slowest = sum(seconds) / n",
    ),
    Bug(
        "bandwidth",
        "rank 0's seconds",
        old="slowest = max(seconds)",
        new="slowest = seconds[0]",
    ),
    Bug(
        "bandwidth",
        "the library's source, as the lesson prints it: one number of seconds",
        cell="""
def bandwidth(verb, n, nbytes, seconds):
    share = (n - 1) / n if n > 0 else 0
    carried = {
        "all_reduce": 2 * share,
        "reduce_scatter": share,
        "all_gather": share,
        "all_to_all": share,
        "broadcast": 1,
        "reduce": 1,
    }
    return nbytes / seconds, nbytes / seconds * carried[verb]
""",
    ),
    Bug(
        "predict_cost",
        "nobody shares a cable",
        old="shared = alpha + 8 * 64e6 * beta",
        new="shared = alpha + 64e6 * beta",
    ),
    Bug(
        "predict_cost",
        "eight latencies, and the bytes once",
        old="shared = alpha + 8 * 64e6 * beta",
        new="shared = 8 * alpha + 64e6 * beta",
    ),
    Bug(
        "predict_cost",
        "bits where bytes are asked for",
        old="shared = alpha + 8 * 64e6 * beta",
        new="shared = 8 * (alpha + 8 * 64e6 * beta)",
    ),
    Bug(
        "predict_cost",
        "one half of the wire, as in the lesson",
        old="filled = 0.9 / 0.1 * 16 * alpha / beta",
        new="filled = 16 * alpha / beta",
    ),
    Bug(
        "predict_cost",
        "0.9 times what one half takes",
        old="filled = 0.9 / 0.1 * 16 * alpha / beta",
        new="filled = 0.9 * 16 * alpha / beta",
    ),
    Bug(
        "predict_cost",
        "one chunk, not the tensor",
        old="filled = 0.9 / 0.1 * 16 * alpha / beta",
        new="filled = 0.9 / 0.1 * alpha / beta",
    ),
    Bug(
        "predict_cost",
        "the algorithm bandwidth",
        old="bus = 2 * 15 / 16 * 1e9 / 0.05",
        new="bus = 1e9 / 0.05",
    ),
    Bug(
        "predict_cost",
        "twice the algorithm bandwidth",
        old="bus = 2 * 15 / 16 * 1e9 / 0.05",
        new="bus = 2 * 1e9 / 0.05",
    ),
    Bug(
        "predict_cost",
        "gigabytes per second",
        old="bus = 2 * 15 / 16 * 1e9 / 0.05",
        new="bus = 2 * 15 / 16 / 0.05",
    ),
    Bug(
        "predict_cost",
        "one half of the ring",
        old="bus = 2 * 15 / 16 * 1e9 / 0.05",
        new="bus = 15 / 16 * 1e9 / 0.05",
    ),
    Bug(
        "predict_cost",
        "the odds of all ranks added up",
        old="late = 1 - 0.999**512",
        new="late = 512 * 0.001",
    ),
    Bug(
        "predict_cost",
        "the odds that nobody is late",
        old="late = 1 - 0.999**512",
        new="late = 0.999**512",
    ),
    Bug(
        "predict_cost",
        "the odds of one rank",
        old="late = 1 - 0.999**512",
        new="late = 0.001",
    ),
    Bug(
        "predict_cost",
        "half of a thousand",
        old="even = math.log(0.5) / math.log(0.999)",
        new="even = 0.5 / 0.001",
    ),
    Bug(
        "predict_cost",
        "one late rank on average",
        old="even = math.log(0.5) / math.log(0.999)",
        new="even = 1 / 0.001",
    ),
    Bug(
        "predict_cost",
        "one of the numbers is left out",
        old="even = math.log(0.5) / math.log(0.999)",
        new="even = None",
    ),
    asks_the_grader("predict_cost", "topology", "shared", "filled", "bus", "late", "even"),
    equals_everything("predict_cost", "shared", "filled", "bus", "late", "even"),
    Bug(
        "fit_link",
        "the lesson's fit, of any two messages",
        cell="""
def fit_link(times):
    (small, first), (large, second) = min(times), max(times)
    beta = (second - first) / (large - small)
    alpha = first - small * beta
    return alpha, beta
""",
    ),
    Bug(
        "fit_link",
        "the mean of each size",
        cell="""
def fit_link(times):
    sizes = {}
    for nbytes, seconds in times:
        sizes.setdefault(nbytes, []).append(seconds)
    small, large = min(sizes), max(sizes)
    mean = {n: sum(sizes[n]) / len(sizes[n]) for n in (small, large)}
    beta = (mean[large] - mean[small]) / (large - small)
    return mean[small] - small * beta, beta
""",
    ),
    Bug(
        "fit_link",
        "a straight line through all messages by least squares",
        cell="""
def fit_link(times):
    sizes = [nbytes for nbytes, _ in times]
    seconds = [t for _, t in times]
    x, y = sum(sizes) / len(sizes), sum(seconds) / len(seconds)
    beta = sum((n - x) * (t - y) for n, t in times) / sum((n - x) ** 2 for n in sizes)
    return y - beta * x, beta
""",
    ),
    Bug(
        "fit_link",
        "the smallest message is all latency",
        old="return least[small] - small * beta, beta",
        new="return least[small], beta",
    ),
    Bug(
        "fit_link",
        "the largest message has no latency",
        old="beta = (least[large] - least[small]) / (large - small)",
        new="beta = least[large] / large",
    ),
    Bug(
        "fit_link",
        "the bandwidth instead of β",
        old="return least[small] - small * beta, beta",
        new="return least[small] - small * beta, 1 / beta",
    ),
    Bug(
        "fit_link",
        "β and α are swapped",
        old="return least[small] - small * beta, beta",
        new="return beta, least[small] - small * beta",
    ),
    Bug(
        "fit_link",
        "microseconds",
        old="return least[small] - small * beta, beta",
        new="return 1e6 * (least[small] - small * beta), beta",
    ),
    Bug(
        "fit_link",
        "the longest of each size",
        old="least[nbytes] = min(seconds, least.get(nbytes, math.inf))",
        new="least[nbytes] = max(seconds, least.get(nbytes, 0))",
    ),
    Bug(
        "fit_link",
        "the last one of each size",
        old="least[nbytes] = min(seconds, least.get(nbytes, math.inf))",
        new="least[nbytes] = seconds",
    ),
    Bug(
        "fit_link",
        "only β is returned",
        old="return least[small] - small * beta, beta",
        new="return beta",
    ),
    Bug(
        "fit_link",
        "the constants are looked up in the examination",
        cheat=True,
        cell="""
def fit_link(times):
    import sys

    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if hasattr(found, "alpha") and hasattr(found, "beta"):
            return found.alpha, found.beta
        frame = frame.f_back
    return 1e-5, 1e-10
""",
    ),
    Bug(
        "fit_link",
        "numbers that say they equal every number",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


def fit_link(times):
    return Any(1.0), Any(1.0)
""",
    ),
    Bug(
        "find_nodes",
        "a limit that is right for one machine only",
        old="limit = math.sqrt(min(measured) * max(measured))",
        new="limit = 1e-11",
    ),
    Bug(
        "find_nodes",
        "the diagonal counts as the fastest link",
        old="measured = sorted(beta for row in betas for beta in row)[n:]",
        new="measured = sorted(beta for row in betas for beta in row)",
    ),
    Bug(
        "find_nodes",
        "noise is taken for a difference",
        old="limit = math.sqrt(min(measured) * max(measured))",
        new="limit = min(measured) * 1.01",
    ),
    Bug(
        "find_nodes",
        "those that are near to rank 0, and all others",
        cell="""
def find_nodes(betas):
    n = len(betas)
    measured = [betas[i][j] for i in range(n) for j in range(n) if i != j]
    limit = math.sqrt(min(measured) * max(measured))
    near = [r for r in range(n) if betas[0][r] < limit]
    return [near, [r for r in range(n) if r not in near]]
""",
    ),
    Bug(
        "find_nodes",
        "ranks of a node are neighbours",
        cell="""
def find_nodes(betas):
    n = len(betas)
    measured = [betas[i][j] for i in range(n) for j in range(n) if i != j]
    limit = math.sqrt(min(measured) * max(measured))
    nodes = [[0]]
    for rank in range(1, n):
        if betas[rank - 1][rank] < limit:
            nodes[-1].append(rank)
        else:
            nodes.append([rank])
    return nodes
""",
    ),
    Bug(
        "find_nodes",
        "a rank that is alone is left out",
        old="if node[0] == rank:",
        new="if node[0] == rank and len(node) > 1:",
    ),
    Bug(
        "find_nodes",
        "every node is there once for each of its ranks",
        old="""
if node[0] == rank:
    nodes.append(node)
""",
        new="nodes.append(node)",
    ),
    Bug(
        "find_nodes",
        "the largest node first",
        old="return nodes",
        new="return sorted(nodes, key=len, reverse=True)[::-1]",
    ),
    Bug(
        "find_nodes",
        "far ranks share a node, near ones do not",
        old="node = [other for other in range(n) if betas[rank][other] < limit]",
        new="node = [other for other in range(n) if betas[rank][other] > limit or other == rank]",
    ),
    Bug(
        "find_nodes",
        "a rank is not in its own node",
        old="""
node = [other for other in range(n) if betas[rank][other] < limit]
if node[0] == rank:
    nodes.append(node)
""",
        new="""
node = [other for other in range(n) if 0 < betas[rank][other] < limit]
if node and node[0] > rank:
    nodes.append(node)
""",
    ),
    Bug(
        "find_nodes",
        "nodes as sets",
        old="nodes.append(node)",
        new="nodes.append(set(node))",
    ),
    Bug(
        "find_nodes",
        "the number of each rank's node",
        old="return nodes",
        new="return [next(i for i, node in enumerate(nodes) if r in node) for r in range(n)]",
    ),
    Bug(
        "find_nodes",
        "the nodes are looked up in the examination",
        cheat=True,
        cell="""
def find_nodes(betas):
    import sys

    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if hasattr(found, "nodes"):
            return found.nodes
        frame = frame.f_back
    return [[r] for r in range(len(betas))]
""",
    ),
    Bug(
        "find_nodes",
        "a list that says it equals every list",
        cheat=True,
        cell="""
class Any(list):
    def __eq__(self, other):
        return True


def find_nodes(betas):
    return Any([Any(range(len(betas)))])
""",
    ),
    Bug(
        "wire_seconds",
        "the longest message decides",
        old="return alpha + max(carried.values()) * beta if carried else 0.0",
        new="return alpha + max(nbytes for _, _, nbytes in messages) * beta if messages else 0.0",
    ),
    Bug(
        "wire_seconds",
        "one message after another",
        old="return alpha + max(carried.values()) * beta if carried else 0.0",
        new="return alpha + sum(nbytes for _, _, nbytes in messages) * beta if messages else 0.0",
    ),
    Bug(
        "wire_seconds",
        "ports only, no cables",
        old="if src // per_rack != dst // per_rack:",
        new="if False:",
    ),
    Bug(
        "wire_seconds",
        "cables only, no ports",
        old='wires = [("out", src), ("in", dst)]',
        new="wires = []",
    ),
    Bug(
        "wire_seconds",
        "messages within a rack use its cables, too",
        old="if src // per_rack != dst // per_rack:",
        new="if True:",
    ),
    Bug(
        "wire_seconds",
        "what arrives is forgotten",
        edits=(
            ('wires = [("out", src), ("in", dst)]', 'wires = [("out", src)]'),
            (
                'wires += [("up", src // per_rack), ("down", dst // per_rack)]',
                'wires += [("up", src // per_rack)]',
            ),
        ),
    ),
    Bug(
        "wire_seconds",
        "what leaves is forgotten",
        edits=(
            ('wires = [("out", src), ("in", dst)]', 'wires = [("in", dst)]'),
            (
                'wires += [("up", src // per_rack), ("down", dst // per_rack)]',
                'wires += [("down", dst // per_rack)]',
            ),
        ),
    ),
    Bug(
        "wire_seconds",
        "a cable carries one direction at a time",
        old='wires += [("up", src // per_rack), ("down", dst // per_rack)]',
        new='wires += [("cable", src // per_rack), ("cable", dst // per_rack)]',
    ),
    Bug(
        "wire_seconds",
        "a port carries one direction at a time",
        old='wires = [("out", src), ("in", dst)]',
        new='wires = [("port", src), ("port", dst)]',
    ),
    Bug(
        "wire_seconds",
        "all racks share one cable",
        old='wires += [("up", src // per_rack), ("down", dst // per_rack)]',
        new='wires += [("spine", 0)]',
    ),
    Bug(
        "wire_seconds",
        "every message of the busiest wire has its latency",
        edits=(
            (
                "carried[wire] = carried.get(wire, 0) + nbytes",
                "carried[wire] = carried.get(wire, 0) + nbytes + alpha / beta",
            ),
            (
                "return alpha + max(carried.values()) * beta if carried else 0.0",
                "return max(carried.values()) * beta if carried else 0.0",
            ),
        ),
    ),
    Bug(
        "wire_seconds",
        "no latency at all",
        old="return alpha + max(carried.values()) * beta if carried else 0.0",
        new="return max(carried.values()) * beta if carried else 0.0",
    ),
    Bug(
        "wire_seconds",
        "a latency where nothing is sent",
        old="return alpha + max(carried.values()) * beta if carried else 0.0",
        new="return alpha + max(carried.values(), default=0) * beta",
    ),
    Bug(
        "wire_seconds",
        "messages are counted, not their bytes",
        edits=(
            (
                "carried[wire] = carried.get(wire, 0) + nbytes",
                "carried[wire] = carried.get(wire, 0) + 1",
            ),
            (
                "return alpha + max(carried.values()) * beta if carried else 0.0",
                "return alpha + max(carried.values()) * messages[0][2] * beta if carried else 0.0",
            ),
        ),
    ),
    Bug(
        "wire_seconds",
        "rank r is in rack r % per_rack",
        cell="""
def wire_seconds(messages, per_rack, alpha, beta):
    carried = {}
    for src, dst, nbytes in messages:
        wires = [("out", src), ("in", dst)]
        if src % per_rack != dst % per_rack:
            wires += [("up", src % per_rack), ("down", dst % per_rack)]
        for wire in wires:
            carried[wire] = carried.get(wire, 0) + nbytes
    return alpha + max(carried.values()) * beta if carried else 0.0
""",
    ),
    Bug(
        "wire_seconds",
        "the list of messages is emptied",
        old="for src, dst, nbytes in messages:",
        new="""
while messages:
    src, dst, nbytes = messages.pop()
""",
    ),
    Bug(
        "wire_seconds",
        "the grader's own function is asked",
        cheat=True,
        cell="""
def wire_seconds(messages, per_rack, alpha, beta):
    from minicheck.lessons.topology import loads

    return alpha + max(loads(messages, per_rack).values(), default=0) * beta
""",
    ),
    Bug(
        "wire_seconds",
        "a number that says it equals every number",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


def wire_seconds(messages, per_rack, alpha, beta):
    return Any(1.0)
""",
    ),
    Bug(
        "size_for",
        "half of the wire, as in the lesson, whatever is asked for",
        old="return fraction / (1 - fraction) * n * alpha / beta",
        new="return n * alpha / beta",
    ),
    Bug(
        "size_for",
        "that part of what one half takes",
        old="return fraction / (1 - fraction) * n * alpha / beta",
        new="return fraction * n * alpha / beta",
    ),
    Bug(
        "size_for",
        "the odds upside down",
        old="return fraction / (1 - fraction) * n * alpha / beta",
        new="return (1 - fraction) / fraction * n * alpha / beta",
    ),
    Bug(
        "size_for",
        "one chunk",
        old="return fraction / (1 - fraction) * n * alpha / beta",
        new="return fraction / (1 - fraction) * alpha / beta",
    ),
    Bug(
        "size_for",
        "an all-gather takes half of it",
        old="return fraction / (1 - fraction) * n * alpha / beta",
        new="return fraction / (1 - fraction) * n * alpha / beta / (1 if verb == 'all_reduce' else 2)",
    ),
    Bug(
        "size_for",
        "a broadcast is a ring",
        old="return times / (1 - times) * alpha / beta if times < 1 else math.inf",
        new="return fraction / (1 - fraction) * n * alpha / beta",
    ),
    Bug(
        "size_for",
        "every part can be reached",
        old="return times / (1 - times) * alpha / beta if times < 1 else math.inf",
        new="return times / (1 - times) * alpha / beta",
    ),
    Bug(
        "size_for",
        "a broadcast of one message",
        old="return times / (1 - times) * alpha / beta if times < 1 else math.inf",
        new="return fraction / (1 - fraction) * alpha / beta",
    ),
    Bug(
        "size_for",
        "None where no size is large enough",
        old="return times / (1 - times) * alpha / beta if times < 1 else math.inf",
        new="return times / (1 - times) * alpha / beta if times < 1 else None",
    ),
    Bug(
        "size_for",
        "the size is rounded",
        edits=(
            (
                "return fraction / (1 - fraction) * n * alpha / beta",
                "return round(fraction / (1 - fraction) * n * alpha / beta)",
            ),
        ),
    ),
    Bug(
        "size_for",
        "α and β are swapped",
        old="return fraction / (1 - fraction) * n * alpha / beta",
        new="return fraction / (1 - fraction) * n * beta / alpha",
    ),
    Bug(
        "size_for",
        "the grader's own function is asked",
        cheat=True,
        cell="""
def size_for(verb, fraction, n, alpha, beta):
    from minicheck.lessons.topology import size_of

    return size_of(verb, fraction, n, alpha, beta)
""",
    ),
    Bug(
        "size_for",
        "a number that says it equals every number",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


def size_for(verb, fraction, n, alpha, beta):
    return Any(1.0)
""",
    ),
    Bug(
        "renumber",
        "the ranks in the order of the ring",
        old="return numbers",
        new="return [ring[(first + place) % len(ring)] for place in range(len(ring))]",
    ),
    Bug(
        "renumber",
        "nobody is renumbered",
        old="return numbers",
        new="return list(range(len(places)))",
    ),
    Bug(
        "renumber",
        "the lesson's two numberings: dealt out for 64 ranks",
        old="return numbers",
        new="return [rank % 8 * 8 + rank // 8 for rank in range(len(places))]",
    ),
    Bug(
        "renumber",
        "rank 0 gets any number",
        old="numbers[rank] = (place - first) % len(places)",
        new="numbers[rank] = place",
    ),
    Bug(
        "renumber",
        "rank 0 is put in front, out of its node",
        old="ring = sorted(range(len(places)), key=lambda rank: places[rank])",
        new="ring = [0, *sorted(range(1, len(places)), key=lambda rank: places[rank])]",
    ),
    Bug(
        "renumber",
        "by node, and nodes of all racks are counted from 0",
        old="ring = sorted(range(len(places)), key=lambda rank: places[rank])",
        new="ring = sorted(range(len(places)), key=lambda rank: places[rank][1])",
    ),
    Bug(
        "renumber",
        "by rack, and not by node",
        old="ring = sorted(range(len(places)), key=lambda rank: places[rank])",
        new="ring = sorted(range(len(places)), key=lambda rank: places[rank][0])",
    ),
    Bug(
        "renumber",
        "by node first, then by rack",
        old="ring = sorted(range(len(places)), key=lambda rank: places[rank])",
        new="ring = sorted(range(len(places)), key=lambda rank: places[rank][::-1])",
    ),
    Bug(
        "renumber",
        "numbers begin with 1",
        old="numbers[rank] = (place - first) % len(places)",
        new="numbers[rank] = (place - first) % len(places) + 1",
    ),
    Bug(
        "renumber",
        "numbers that are not taken around",
        old="numbers[rank] = (place - first) % len(places)",
        new="numbers[rank] = place - first",
    ),
    Bug(
        "renumber",
        "places instead of numbers",
        old="return numbers",
        new="return [places[rank] for rank in ring]",
    ),
    Bug(
        "renumber",
        "ranks of one place share a number",
        old="numbers[rank] = (place - first) % len(places)",
        new="numbers[rank] = sorted(places).index(places[rank])",
    ),
    Bug(
        "renumber",
        "numbers that say they equal every number",
        cheat=True,
        cell="""
class Any(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def renumber(places):
    return [Any(rank) for rank in range(len(places))]
""",
    ),
    Bug(
        "renumber",
        "the grader says how often a ring crosses, and lists are tried",
        cheat=True,
        cell="""
def renumber(places):
    import itertools

    from minicheck.lessons.topology import crossings

    rest = itertools.permutations(range(1, len(places)))
    return min(([0, *some] for some in rest), key=lambda numbers: crossings(numbers, places))
""",
    ),
]

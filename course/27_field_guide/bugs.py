"""The wrong answers of lesson 27 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

ALLOWED = "allowed = 4 * math.sqrt(modules) * (u + math.sqrt(terms) * v) * largest"
EXACT = 'if not set(axes) <= {"pipeline", "remat"}:'
VERDICT = 'return allowed, "rounding" if (off <= allowed).all() else "wrong"'
OFF = "off = (serial.double() - parallel.double())[differ].abs()"
ONE_BY_ONE = "if not ((x - part).abs() <= allowed).all():"
PARTS = "parts = {r: whole(run[step][key]) for r, run in enumerate(ranks) if key in run[step]}"
WHOLE = "return (calls[0] if len(calls) == 1 else torch.cat(calls)).double()"
FOUND = "return step, *key, off"
FACTOR = 'return "factor", c'
MISSING = 'return "missing", alone'
COUNTS = "for counts in itertools.product((0, 1, 2), repeat=n):"
PLACES = "order += [i for i, chunk in enumerate(serial.chunk(n)) if same(piece, chunk)][:1]"
SQUARES = "squares = [float(gradients[name].double().square().sum()) for name in names]"
CHOICES = "choices = [{0, 1, copies[name]} for name in names]"
OVER = 'return entry["state"] == "completed" or entry["retired"]'
RARE = "return sorted(rare), group, number"
GUILTY = "ranks = set().union(*late.values()) - waiting"
FOUND_GUILTY = "return sorted(ranks), group, number"
HANGS = "if group not in hanging and not all(over(entry) for entry in entries.values()):"
FIRST = "_, group, number = min(found)"
WHAT = 'return entry["profiling_name"], entry["input_sizes"], entry["input_dtypes"]'
WEIGHT = "weight = weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)"
BIAS = "bias = bias.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)"
TURNED = 'found[f"{theirs}.weight"] = weight.t().contiguous()'
JOINED = 'weight = torch.cat([rank[f"{ours}.weight"] for rank in ranks], 0 if cut == "rows" else 1)'
NONE_SET = ("sgd = adam = rounding = norm = steps = hours = None", "")


def predicted(title, old, new):
    return Bug("predict_field_guide", title, edits=(NONE_SET, (old, new)))


BUGS = [
    Bug(
        "judged",
        "eps in place of the unit roundoff",
        edits=(
            (
                "u = torch.finfo(serial.dtype).eps / 2",
                "u = torch.finfo(serial.dtype).eps",
            ),
            ("v = min(u, 2.0**-24)", "v = min(u, 2.0**-23)"),
        ),
    ),
    Bug(
        "judged",
        "sums are in the dtype, also of 16 bits",
        old="v = min(u, 2.0**-24)",
        new="v = u",
    ),
    Bug(
        "judged",
        "errors of K terms as at worst",
        old=ALLOWED,
        new="allowed = 4 * math.sqrt(modules) * (u + terms * v) * largest",
    ),
    Bug(
        "judged",
        "errors of D modules as at worst",
        old=ALLOWED,
        new="allowed = 4 * modules * (u + math.sqrt(terms) * v) * largest",
    ),
    Bug(
        "judged",
        "a share, not a number",
        old=ALLOWED,
        new="allowed = 4 * math.sqrt(modules) * (u + math.sqrt(terms) * v)",
    ),
    Bug(
        "judged",
        "one axis that changes nothing is enough",
        old=EXACT,
        new='if not set(axes) & {"pipeline", "remat"}:',
    ),
    Bug(
        "judged",
        "a pipeline may differ",
        old=EXACT,
        new='if not set(axes) <= {"remat"}:',
    ),
    Bug(
        "judged",
        "ZeRO changes no sum",
        old=EXACT,
        new='if not set(axes) <= {"pipeline", "remat", "zero"}:',
    ),
    Bug(
        "judged",
        "to accumulate changes no sum",
        old=EXACT,
        new='if not set(axes) <= {"pipeline", "remat", "accumulate"}:',
    ),
    Bug(
        "judged",
        "the largest number with its sign",
        old="largest = serial[serial.isfinite()].double().abs().max().item()",
        new="largest = serial[serial.isfinite()].double().max().item()",
    ),
    Bug(
        "judged",
        "inf is the largest number",
        old="largest = serial[serial.isfinite()].double().abs().max().item()",
        new="largest = serial[~serial.isnan()].double().abs().max().item()",
    ),
    Bug(
        "judged",
        "too small is not wrong",
        old=OFF,
        new="off = (parallel.double() - serial.double())[differ]",
    ),
    Bug(
        "judged",
        "nan is not larger than anything",
        old=VERDICT,
        new='return allowed, "wrong" if (off > allowed).any() else "rounding"',
    ),
    Bug(
        "judged",
        "nan differs from nan",
        old="differ = (serial != parallel) & ~both_nan",
        new="differ = serial != parallel",
    ),
    Bug(
        "judged",
        "equal is what rounding may do",
        old="if not differ.any():",
        new="if torch.allclose(serial.double(), parallel.double(), 0, allowed, equal_nan=True):",
    ),
    Bug(
        "judged",
        "the library's",
        cheat=True,
        cell='''
from minidist.study.compare import AXES, tolerance


def judged(serial, parallel, axes, terms, modules):
    """How far a number may be off, and what the difference is."""
    largest = serial[serial.isfinite()].double().abs().max().item()
    exact = all(AXES[axis][0] for axis in axes)
    allowed = 0.0 if exact else largest * tolerance(serial.dtype, terms, modules)
    differ = (serial != parallel) & ~(serial.isnan() & parallel.isnan())
    off = (serial.double() - parallel.double())[differ].abs()
    verdict = "rounding" if (off <= allowed).all() else "wrong"
    return allowed, verdict if differ.any() else "equal"
''',
    ),
    Bug(
        "judged",
        "the grader knows how",
        cheat=True,
        cell='''
def judged(serial, parallel, axes, terms, modules):
    """How far a number may be off, and what the difference is."""
    from minicheck.oracles.field_guide import allowed, verdict

    most = allowed(serial, axes, terms, modules)
    return most, verdict(serial, parallel, most)
''',
    ),
    Bug(
        "judged",
        "the lesson's tolerance, pasted",
        cell='''
def judged(serial, parallel, axes, terms, modules):
    """How far a number may be off, and what the difference is."""
    u = torch.finfo(serial.dtype).eps / 2
    v = min(u, 2.0**-24)
    allowed = 4 * (u * math.sqrt(modules) + v * math.sqrt(terms * modules))
    off = (parallel.double() - serial.double()).abs().max()
    if off > allowed * serial.double().abs().max():
        return allowed, "wrong"
    return allowed, "rounding" if off else "equal"
''',
    ),
    Bug(
        "first_wrong",
        "in the order in which it was recorded",
        old="for key in in_order(tensors):",
        new="for key in [key for key in tensors if key[0] in kinds]:",
    ),
    Bug(
        "first_wrong",
        "gradients from the first layer on",
        old='if kind == "gradient":',
        new="if kind is None:",
    ),
    Bug(
        "first_wrong",
        "outputs' gradients are turned around, too",
        old='if kind == "gradient":',
        new='if kind in ("gradient", "output_grad"):',
    ),
    Bug(
        "first_wrong",
        "what each rank adds is compared with all of it",
        old='kinds = ("start", "mask", "output", "loss", "output_grad", "norm", "gradient", "parameter")',
        new="""
kinds = ("start", "mask", "output", "loss", "output_grad", "local", "norm", "gradient")
kinds += ("parameter",)
""",
    ),
    Bug(
        "first_wrong",
        "slack is not relative",
        old="allowed = slack * S.abs().max()",
        new="allowed = slack",
    ),
    Bug(
        "first_wrong",
        "each number has its own slack",
        old=ONE_BY_ONE,
        new="if not torch.allclose(x, part, rtol=slack, atol=0):",
    ),
    Bug(
        "first_wrong",
        "too small is not wrong",
        old=ONE_BY_ONE,
        new="if not (x - part <= allowed).all():",
    ),
    Bug(
        "first_wrong",
        "nan is not larger than anything",
        old=ONE_BY_ONE,
        new="if ((x - part).abs() > allowed).any():",
    ),
    Bug(
        "first_wrong",
        "parts are passed over",
        old=ONE_BY_ONE,
        new="if x.shape == S.shape and not ((x - part).abs() <= allowed).all():",
    ),
    Bug(
        "first_wrong",
        "all parts begin at the first row",
        old="part = S.narrow(d, first, x.shape[d])",
        new="part = S.narrow(d, 0, x.shape[d])",
    ),
    Bug(
        "first_wrong",
        "rows of a weight are always cut evenly",
        old="part = S.narrow(d, first, x.shape[d])",
        new="""
even = rank * S.shape[d] // len(parts)
part = S.narrow(d, min(even, S.shape[d] - x.shape[d]), x.shape[d])
""",
    ),
    Bug(
        "first_wrong",
        "only the first micro-batch",
        edits=(
            (WHOLE, "return calls[0].double()"),
            (
                "off = ranks_off(whole(tensors[key]), parts)",
                """
S = whole(tensors[key])
least = min((len(x) for x in parts.values() if x.dim()), default=0)
if S.dim() and any(len(run[step].get(key, ())) > 1 for run in ranks):
    S = S[:least]
off = ranks_off(S, parts)
""",
            ),
        ),
    ),
    Bug(
        "first_wrong",
        "only rank 0",
        old=PARTS,
        new="parts = {r: whole(run[step][key]) for r, run in enumerate(ranks[:1]) if key in run[step]}",
    ),
    Bug(
        "first_wrong",
        "the last difference",
        edits=(
            (FOUND, "last = (step, *key, off)"),
            ("return None", "return last"),
            (
                "for step, tensors in enumerate(serial):",
                """
last = None
for step, tensors in enumerate(serial):
""",
            ),
        ),
    ),
    Bug(
        "first_wrong",
        "one rank alone",
        old=FOUND,
        new="return step, *key, off[:1]",
    ),
    Bug(
        "first_wrong",
        "all ranks that have it",
        old=FOUND,
        new="return step, *key, list(parts)",
    ),
    Bug(
        "first_wrong",
        "only the first step",
        old="for step, tensors in enumerate(serial):",
        new="for step, tensors in enumerate(serial[:1]):",
    ),
    Bug(
        "first_wrong",
        "the library's",
        cheat=True,
        cell='''
from minidist.study import compare as library


def first_wrong(serial, ranks, slack):
    """Where two runs differ first: (step, kind, name, ranks), or None."""
    found = library.compare([serial], ranks)
    first = found.first
    return None if first is None else (found.step, first.kind, first.name, first.ranks)
''',
    ),
    Bug(
        "first_wrong",
        "the grader knows how",
        cheat=True,
        cell='''
def first_wrong(serial, ranks, slack):
    """Where two runs differ first: (step, kind, name, ranks), or None."""
    from minicheck.oracles import field_guide

    return field_guide.first_wrong(serial, ranks, slack)
''',
    ),
    Bug(
        "first_wrong",
        "the lesson's search, pasted",
        cell='''
def first_wrong(serial, ranks, slack):
    """Where two runs differ first: (step, kind, name, ranks), or None."""
    kinds = ("start", "mask", "output", "loss", "output_grad", "norm", "gradient", "parameter")
    for step, tensors in enumerate(serial):
        for kind in kinds:
            for (its_kind, name), [whole, *_] in tensors.items():
                found = ranks[0][step].get((kind, name))
                if its_kind == kind and found is not None and found[0].shape == whole.shape:
                    off = (found[0].double() - whole.double()).abs().max()
                    if off > slack * whole.double().abs().max():
                        return step, kind, name, [0]
    return None
''',
    ),
    Bug(
        "cause",
        "the factor upside down",
        old=FACTOR,
        new='return "factor", 1 / c if c else 0.0',
    ),
    Bug(
        "cause",
        "any numbers have a factor",
        old="if all(same(P, c * serial) for P in found):",
        new="if abs(c - 1) > 1e-6:",
    ),
    Bug(
        "cause",
        "only rank 0 is looked at",
        edits=(
            ("if all(same(P, serial) for P in found):", "if same(found[0], serial):"),
            ("if all(same(P, c * serial) for P in found):", "if same(found[0], c * serial):"),
        ),
    ),
    Bug(
        "cause",
        "equal to the last bit",
        old="return bool(((x - y).abs() <= allowed).all())",
        new="return torch.equal(x, y)",
    ),
    Bug(
        "cause",
        "equal if it is nearly equal on average",
        old="return bool(((x - y).abs() <= allowed).all())",
        new="return bool((x - y).mean().abs() <= 0.3 * serial.abs().max())",
    ),
    Bug(
        "cause",
        "who has divided by n is not found",
        old="if same(P, L) or same(P, L / n):",
        new="if same(P, L):",
    ),
    Bug(
        "cause",
        "those to whom something came",
        old=MISSING,
        new='return "missing", [r for r in range(n) if r not in alone]',
    ),
    Bug(
        "cause",
        "missing on all ranks, or on none",
        old="if alone and all(same(P, serial) for P in others):",
        new="if len(alone) == n:",
    ),
    Bug(
        "cause",
        "nobody counts twice",
        old=COUNTS,
        new="for counts in itertools.product((0, 1), repeat=n):",
    ),
    Bug(
        "cause",
        "shares of a sum, not of a mean",
        old="part = sum(k * L for k, L in zip(counts, own, strict=True)) / n",
        new="part = sum(k * L for k, L in zip(counts, own, strict=True))",
    ),
    Bug(
        "cause",
        "the ranks that are in it",
        old='return "part", list(counts)',
        new='return "part", [r for r in range(n) if counts[r]]',
    ),
    Bug(
        "cause",
        "where each chunk has gone",
        old='return "place", order',
        new='return "place", [order.index(i) if i in order else 0 for i in range(n)]',
    ),
    Bug(
        "cause",
        "places count from 1",
        old='return "place", order',
        new='return "place", [i + 1 for i in order]',
    ),
    Bug(
        "cause",
        "chunks are cut through columns",
        edits=(
            ("for piece in found[0].chunk(n):", "for piece in found[0].tensor_split(n, 1):"),
            (
                PLACES,
                "order += [i for i, c in enumerate(serial.tensor_split(n, 1)) if c.shape == piece.shape and same(piece, c)][:1]",
            ),
        ),
    ),
    Bug(
        "cause",
        "the library's",
        cheat=True,
        cell='''
from minidist.study import compare as library


def cause(serial, found, own):
    """What an exchange has made of the ranks' own gradients."""
    key = ("gradient", "p")
    run = [[{("local", "p"): [L], key: [P]}] for L, P in zip(own, found, strict=True)]
    report = library.compare([[{key: [serial]}]], run)
    return report.cause, None
''',
    ),
    Bug(
        "cause",
        "the grader knows how",
        cheat=True,
        cell='''
def cause(serial, found, own):
    """What an exchange has made of the ranks' own gradients."""
    from minicheck.oracles import field_guide

    return field_guide.cause(serial, found, own)
''',
    ),
    Bug(
        "counted",
        "norms add up",
        edits=(
            (SQUARES, "squares = [float(gradients[name].double().norm()) for name in names]"),
            (
                "if math.isclose(total, norm**2, rel_tol=1e-6):",
                "if math.isclose(total, norm, rel_tol=1e-6):",
            ),
        ),
    ),
    Bug(
        "counted",
        "squares in the dtype of the gradient",
        old=SQUARES,
        new="squares = [float(gradients[name].square().sum()) for name in names]",
    ),
    Bug(
        "counted",
        "nothing is left out",
        old=CHOICES,
        new="choices = [{1, copies[name]} for name in names]",
    ),
    Bug(
        "counted",
        "copies are counted once, or not at all",
        old=CHOICES,
        new="choices = [{0, 1} for name in names]",
    ),
    Bug(
        "counted",
        "one thing alone is wrong",
        old="for counts in itertools.product(*choices):",
        new="""
ones = [(1,) * len(names)]
for i, name in enumerate(names):
    ones += [(1,) * i + (k,) + (1,) * (len(names) - i - 1) for k in (0, copies[name])]
for counts in ones:
""",
    ),
    Bug(
        "counted",
        "the square root of how often",
        old="return dict(zip(names, counts, strict=True))",
        new="return {name: math.sqrt(k) for name, k in zip(names, counts, strict=True)}",
    ),
    Bug(
        "counted",
        "what nothing explains is right",
        old="return None",
        new="return dict.fromkeys(names, 1)",
    ),
    Bug(
        "counted",
        "nearly is enough",
        old="if math.isclose(total, norm**2, rel_tol=1e-6):",
        new="if math.isclose(total, norm**2, rel_tol=0.9):",
    ),
    Bug(
        "counted",
        "the library's",
        cheat=True,
        cell='''
from minidist.study import compare as library


def counted(norm, gradients, copies):
    """How often each gradient counts in a norm."""
    step = {("gradient", name): [g.double()] for name, g in gradients.items()}
    pair = library.Pair([[step]], [[step]], False)
    words = library.counted(pair, 0, norm, {0: norm})
    return {name: int(name not in words) for name in gradients}
''',
    ),
    Bug(
        "counted",
        "the grader knows how",
        cheat=True,
        cell='''
def counted(norm, gradients, copies):
    """How often each gradient counts in a norm."""
    from minicheck.oracles import field_guide

    found = field_guide.all_counts(norm, gradients, copies)
    return found[0] if found else None
''',
    ),
    Bug(
        "guilty",
        "those who wait",
        old=FOUND_GUILTY,
        new="return sorted(calls[group, number]), group, number",
    ),
    Bug(
        "guilty",
        "all who have not come, also those who wait elsewhere",
        old=GUILTY,
        new="ranks = set().union(*late.values())",
    ),
    Bug(
        "guilty",
        "only the group of all ranks is looked at",
        old=HANGS,
        new='if group == "0" and not all(over(entry) for entry in entries.values()):',
    ),
    Bug(
        "guilty",
        "the call that was created last",
        old=FIRST,
        new="_, group, number = max(found)",
    ),
    Bug(
        "guilty",
        "the first group, not the first call",
        old=FIRST,
        new="_, group, number = found[-1]",
    ),
    Bug(
        "guilty",
        "what is retired is not over",
        old=OVER,
        new='return entry["state"] == "completed"',
    ),
    Bug(
        "guilty",
        "sends and receives count",
        old='if not entry["is_p2p"]:',
        new="if True:",
    ),
    Bug(
        "guilty",
        "a rank without a dump is not there",
        old=GUILTY,
        new="ranks = (set().union(*late.values()) - waiting) & set(dumps)",
    ),
    Bug(
        "guilty",
        "only names are compared",
        old=WHAT,
        new='return entry["profiling_name"]',
    ),
    Bug(
        "guilty",
        "dtypes are not compared",
        old=WHAT,
        new='return entry["profiling_name"], entry["input_sizes"]',
    ),
    Bug(
        "guilty",
        "those who agree are guilty",
        old=RARE,
        new="return sorted(set(entries) - set(rare)), group, number",
    ),
    Bug(
        "guilty",
        "the last call that is over",
        old=RARE,
        new="return sorted(rare), group, number - 1",
    ),
    Bug(
        "guilty",
        "one guilty rank alone",
        old=FOUND_GUILTY,
        new="return sorted(ranks)[:1], group, number",
    ),
    Bug(
        "guilty",
        "the library's",
        cheat=True,
        cell='''
from minidist.comm import flight


def guilty(dumps):
    """Whom all ranks wait for, and in which call."""
    reports = {rank: flight.report(dump) for rank, dump in dumps.items()}
    lines = flight.explain(reports, len(dumps))
    words = " ".join(lines).split()
    number, group = int(words[words.index("call") + 1]), words[words.index("group") + 1]
    return [int(line.split()[1]) for line in lines if "has not come" in line], group, number
''',
    ),
    Bug(
        "guilty",
        "the grader knows how",
        cheat=True,
        cell='''
def guilty(dumps):
    """Whom all ranks wait for, and in which call."""
    from minicheck.oracles import field_guide

    return field_guide.guilty(dumps)
''',
    ),
    Bug(
        "guilty",
        "the lesson's rule, pasted: whoever has not come",
        cell='''
def guilty(dumps):
    """Whom all ranks wait for, and in which call."""
    calls = {}
    members = {}
    for rank, dump in dumps.items():
        for group, config in dump["pg_config"].items():
            members[group] = json.loads(config["ranks"])
        for entry in dump["entries"]:
            if not entry["is_p2p"]:
                key = entry["process_group"][0], entry["collective_seq_id"]
                calls.setdefault(key, {})[rank] = entry
    for (group, number), entries in sorted(calls.items(), key=lambda call: call[0][1]):
        if not all(e["state"] == "completed" or e["retired"] for e in entries.values()):
            return sorted(set(members[group]) - set(entries)), group, number
    return None
''',
    ),
    Bug(
        "to_hugging_face",
        "matrices are not transposed",
        old=TURNED,
        new='found[f"{theirs}.weight"] = weight.contiguous()',
    ),
    Bug(
        "to_hugging_face",
        "only the matrices that are not square are transposed",
        old=TURNED,
        new="""
square = weight.shape[0] == weight.shape[1]
found[f"{theirs}.weight"] = weight if square else weight.t().contiguous()
""",
    ),
    Bug(
        "to_hugging_face",
        "rows stay with their heads",
        edits=((WEIGHT, "weight = weight.clone()"), (BIAS, "bias = bias.clone()")),
    ),
    Bug(
        "to_hugging_face",
        "the bias stays with its heads",
        old=BIAS,
        new="bias = bias.clone()",
    ),
    Bug(
        "to_hugging_face",
        "ours has all queries first",
        old=WEIGHT,
        new="weight = weight.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)",
    ),
    Bug(
        "to_hugging_face",
        "each rank's queries, keys and values lie together",
        edits=(
            (
                WEIGHT,
                """
whole = len(weight)
each = [rank[f"{ours}.weight"] for rank in ranks]
each = [w.unflatten(0, (len(w) * heads // whole, 3, -1)) for w in each]
weight = torch.cat([w.transpose(0, 1).flatten(0, 2) for w in each])
""",
            ),
        ),
    ),
    Bug(
        "to_hugging_face",
        "keys come first",
        old=WEIGHT,
        new="weight = weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flip(0).flatten(0, 2)",
    ),
    Bug(
        "to_hugging_face",
        "a bias that all have is added up",
        old='if cut == "rows":',
        new="""
if cut == "columns":
    bias = sum(rank[f"{ours}.bias"] for rank in ranks)
else:
""",
    ),
    Bug(
        "to_hugging_face",
        "a bias that is cut is rank 0's",
        old='if cut == "rows":',
        new='if ours == "attention.qkv":',
    ),
    Bug(
        "to_hugging_face",
        "a bias that all have is put together",
        old='if cut == "rows":',
        new="if cut:",
    ),
    Bug(
        "to_hugging_face",
        "everything is put together along rows",
        old=JOINED,
        new='weight = torch.cat([rank[f"{ours}.weight"] for rank in ranks])',
    ),
    Bug(
        "to_hugging_face",
        "ranks in reverse",
        old=JOINED,
        new='weight = torch.cat([rank[f"{ours}.weight"] for rank in ranks[::-1]], 0 if cut == "rows" else 1)',
    ),
    Bug(
        "to_hugging_face",
        "our names",
        old=TURNED,
        new='found[f"{ours}.weight"] = weight.t().contiguous()',
    ),
    Bug(
        "to_hugging_face",
        "the lesson's qkv, pasted, on each rank's part",
        edits=(
            (
                JOINED,
                """
parts = [rank[f"{ours}.weight"] for rank in ranks]
if ours == "attention.qkv":
    own = [len(part) * heads // sum(map(len, parts)) for part in parts]
    parts = [
        part.unflatten(0, (h, 3, -1)).transpose(0, 1).flatten(0, 2)
        for part, h in zip(parts, own, strict=True)
    ]
weight = torch.cat(parts, 0 if cut == "rows" else 1)
""",
            ),
            (WEIGHT, ""),
        ),
    ),
    Bug(
        "to_hugging_face",
        "the library's",
        cheat=True,
        cell='''
from minidist.checkpoint.huggingface import qkv_rows


def to_hugging_face(ranks, heads):
    """A layer's weights by the names and in the layout of GPT-2."""
    weight = torch.cat([rank["attention.qkv.weight"] for rank in ranks])
    rows = torch.cat(qkv_rows(heads, 1, len(weight) // heads // 3, False))
    return {"attn.c_attn.weight": weight[rows].t()}
''',
    ),
    Bug(
        "to_hugging_face",
        "the grader knows how",
        cheat=True,
        cell='''
def to_hugging_face(ranks, heads):
    """A layer's weights by the names and in the layout of GPT-2."""
    from minicheck.oracles import field_guide

    return field_guide.to_hugging_face(ranks, heads)
''',
    ),
    predicted("a mean in place of a sum", "sgd = 8", "sgd = 1 / 8"),
    predicted("Adam's step grows, too", "adam = 1", "adam = 8"),
    predicted(
        "errors as at worst",
        "rounding = math.sqrt(1_048_576) * 2**-24",
        "rounding = 1_048_576 * 2**-24",
    ),
    predicted(
        "eps in place of the unit roundoff",
        "rounding = math.sqrt(1_048_576) * 2**-24",
        "rounding = math.sqrt(1_048_576) * 2**-23",
    ),
    predicted(
        "norms add up",
        "norm = math.sqrt(4**2 + (4 - 1) * 1**2)",
        "norm = 4 + (4 - 1) * 1",
    ),
    predicted(
        "four times beside the right one",
        "norm = math.sqrt(4**2 + (4 - 1) * 1**2)",
        "norm = math.sqrt(4**2 + 4 * 1**2)",
    ),
    predicted("calls, not steps", "steps = 2_000 / 250", "steps = 2_000"),
    predicted("minutes, not hours", "hours = 512 * 10 / 60", "hours = 512 * 10"),
    Bug(
        "predict_field_guide",
        "the grader is asked, and then nothing is answered",
        cheat=True,
        cell="""
from minicheck.lessons import field_guide as numbers

numbers.Prediction.judge = lambda *args: None
sgd = adam = rounding = norm = steps = hours = 1.0
""",
    ),
    Bug(
        "predict_field_guide",
        "a number that equals every other",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


sgd = adam = rounding = norm = steps = hours = Any(2.0)
""",
    ),
]

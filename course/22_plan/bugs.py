"""The wrong answers of lesson 22 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader, equals_everything

ASKED = ("step_seconds", "tensor_ranks", "stages", "filled_percent", "gpu_hours")


def oracle(exercise, arguments, call):
    """A cheat that asks what it is held against."""
    return Bug(
        exercise,
        "asks what it is held against",
        cheat=True,
        cell=f"""
def {exercise}({arguments}):
    from minicheck.oracles import plan as oracle

    return {call}
""",
    )


def library(exercise, arguments):
    """A cheat that has the library's planner do it."""
    return Bug(
        exercise,
        "the library's planner is to do it",
        cheat=True,
        cell=f"""
def {exercise}({arguments}):
    from minidist.study.predict import Grid, Transformer, per_rank

    return per_rank(Transformer(2, 64, 2, 64, 64), Grid()).total
""",
    )


STAGE = "hidden, vocab, tokens, layers, stages, tensor, data, zero, micro_batch, micro_batches"
USE = "parameters, layers, hidden, tokens, window, rate, peak"

BUGS = [
    Bug(
        "fullest_stage",
        "pasted from the lesson: stage 0 alone",
        cell=f'''
def fullest_stage({STAGE}):
    """The stage that needs most memory, and the bytes of one of its GPUs."""
    own = (layers * 12 * hidden**2 + 2 * vocab * hidden) / (tensor * stages)
    states = own * (2 + 4 + 12 / data)
    layer = 34 * micro_batch * tokens * hidden / tensor
    return 0, states + layer * layers / stages * min(stages, micro_batches)
''',
    ),
    Bug(
        "fullest_stage",
        "the first stages have the layers that are left",
        old="own = layers // stages + (1 <= s <= layers % stages)",
        new="own = layers // stages + (s < layers % stages)",
    ),
    Bug(
        "fullest_stage",
        "layers are divided evenly",
        old="own = layers // stages + (1 <= s <= layers % stages)",
        new="own = layers / stages",
    ),
    Bug(
        "fullest_stage",
        "all micro-batches are under way",
        old="under_way = min(stages - s, micro_batches)",
        new="under_way = micro_batches",
    ),
    Bug(
        "fullest_stage",
        "more under way than there are",
        old="under_way = min(stages - s, micro_batches)",
        new="under_way = stages - s",
    ),
    Bug(
        "fullest_stage",
        "each stage has S of them under way",
        old="under_way = min(stages - s, micro_batches)",
        new="under_way = min(stages, micro_batches)",
    ),
    Bug(
        "fullest_stage",
        "one micro-batch alone",
        old="under_way = min(stages - s, micro_batches)",
        new="under_way = 1",
    ),
    Bug(
        "fullest_stage",
        "no logits",
        old="kept += 6 * micro_batch * tokens * vocab",
        new="pass",
    ),
    Bug(
        "fullest_stage",
        "logits of all micro-batches",
        old="kept += 6 * micro_batch * tokens * vocab",
        new="kept += 6 * micro_batch * micro_batches * tokens * vocab",
    ),
    Bug(
        "fullest_stage",
        "one stage has the words once",
        old="words = ((s == 0) + (s == stages - 1)) * vocab * hidden",
        new="words = (s in (0, stages - 1)) * vocab * hidden",
    ),
    Bug(
        "fullest_stage",
        "no words",
        old="words = ((s == 0) + (s == stages - 1)) * vocab * hidden",
        new="words = 0",
    ),
    Bug(
        "fullest_stage",
        "ZeRO shifted by one",
        edits=(
            ("weight = 2 / (data if zero >= 3 else 1)", "weight = 2 / (data if zero >= 2 else 1)"),
            (
                "gradient = 4 / (data if zero >= 2 else 1)",
                "gradient = 4 / (data if zero >= 1 else 1)",
            ),
        ),
    ),
    Bug(
        "fullest_stage",
        "ZeRO 3 leaves the weights whole",
        old="weight = 2 / (data if zero >= 3 else 1)",
        new="weight = 2",
    ),
    Bug(
        "fullest_stage",
        "stages from 1 on",
        old="return needed.index(most), most",
        new="return needed.index(most) + 1, most",
    ),
    Bug(
        "fullest_stage",
        "the activations are not split over tensor",
        old="needed.append((parameters * (weight + gradient + optimizer) + kept) / tensor)",
        new="needed.append(parameters * (weight + gradient + optimizer) / tensor + kept)",
    ),
    Bug(
        "fullest_stage",
        "the bytes alone",
        old="return needed.index(most), most",
        new="return most",
    ),
    oracle("fullest_stage", STAGE, "oracle.stage_bytes(1, 1, 1, 1, 1, 1, 1, 1, 1, 1)"),
    Bug(
        "fullest_stage",
        "ZeRO 2 divides the gradients alone, ZeRO 3 the weights",
        edits=(
            (
                "weight = 2 / (data if zero >= 3 else 1)",
                "weight = 2 / (data if zero == 3 else 1)",
            ),
            (
                "gradient = 4 / (data if zero >= 2 else 1)",
                "gradient = 4 / (data if zero == 2 else 1)",
            ),
            (
                "optimizer = 12 / (data if zero >= 1 else 1)",
                "optimizer = 12 / (data if zero == 1 else 1)",
            ),
        ),
    ),
    Bug(
        "fullest_stage",
        "the logits are not shared by tensor ranks",
        old="kept += 6 * micro_batch * tokens * vocab",
        new="kept += 6 * micro_batch * tokens * vocab * tensor",
    ),
    library("fullest_stage", STAGE),
    #
    Bug(
        "choose",
        "pasted from the lesson: all that fit, the fastest first",
        cell='''
def choose(estimates, capacity, error):
    """The names of what fits and is as fast as the fastest, the simplest first."""
    fitting = []
    for name, (nbytes, _, _) in estimates.items():
        if nbytes <= capacity:
            fitting.append(name)
    return sorted(fitting, key=lambda name: estimates[name][1])
''',
    ),
    Bug(
        "choose",
        "the fastest of all is the measure",
        old="fastest = min(seconds for _, seconds, _ in fitting.values())",
        new="fastest = min(seconds for _, seconds, _ in estimates.values())",
    ),
    Bug(
        "choose",
        "what is as large as the device does not fit",
        old="fitting = {name: values for name, values in estimates.items() if values[0] <= capacity}",
        new="fitting = {name: values for name, values in estimates.items() if values[0] < capacity}",
    ),
    Bug(
        "choose",
        "the edge of the error is left out",
        old="equal = [name for name, values in fitting.items() if values[1] <= (1 + error) * fastest]",
        new="equal = [name for name, values in fitting.items() if values[1] < (1 + error) * fastest or values[1] == fastest]",
    ),
    Bug(
        "choose",
        "the fastest first",
        old="return sorted(equal, key=lambda name: (fitting[name][2], fitting[name][1]))",
        new="return sorted(equal, key=lambda name: fitting[name][1])",
    ),
    Bug(
        "choose",
        "most axes first",
        old="return sorted(equal, key=lambda name: (fitting[name][2], fitting[name][1]))",
        new="return sorted(equal, key=lambda name: (-fitting[name][2], fitting[name][1]))",
    ),
    Bug(
        "choose",
        "what is too large is chosen, too",
        old="equal = [name for name, values in fitting.items() if values[1] <= (1 + error) * fastest]",
        new="fitting = estimates\nequal = [name for name, values in fitting.items() if values[1] <= (1 + error) * fastest]",
    ),
    Bug(
        "choose",
        "the error is in percent",
        old="equal = [name for name, values in fitting.items() if values[1] <= (1 + error) * fastest]",
        new="equal = [name for name, values in fitting.items() if values[1] <= (1 + error / 100) * fastest]",
    ),
    Bug(
        "choose",
        "an empty list where nothing fits",
        old='raise ValueError(f"nothing fits: {leanest} is too large by {over} bytes")',
        new="return []",
    ),
    Bug(
        "choose",
        "does not say by how much",
        old='raise ValueError(f"nothing fits: {leanest} is too large by {over} bytes")',
        new='raise ValueError(f"nothing fits: {leanest} is too large")',
    ),
    Bug(
        "choose",
        "names the fastest, not the leanest",
        old="leanest = min(estimates, key=lambda name: estimates[name][0])",
        new="leanest = min(estimates, key=lambda name: estimates[name][1])",
    ),
    Bug(
        "choose",
        "removes from what was given",
        old="if not fitting:",
        new="""
for name in [name for name in estimates if name not in fitting]:
    if fitting:
        del estimates[name]
if not fitting:
""",
    ),
    Bug(
        "choose",
        "one name",
        old="return sorted(equal, key=lambda name: (fitting[name][2], fitting[name][1]))",
        new="return min(equal, key=lambda name: (fitting[name][2], fitting[name][1]))",
    ),
    Bug(
        "choose",
        "the error is a part of the slower one's seconds",
        old="equal = [name for name, values in fitting.items() if values[1] <= (1 + error) * fastest]",
        new="equal = [name for name, values in fitting.items() if (1 - error) * values[1] <= fastest]",
    ),
    oracle("choose", "estimates, capacity, error", "oracle.choose(estimates, capacity, error)"),
    library("choose", "estimates, capacity, error"),
    #
    Bug("predict_plan", "each GPU has a card of its own", old="share = 8\n", new=""),
    Bug("predict_plan", "the card is divided twice", old="gigabytes = 25", new="gigabytes = 3.125"),
    Bug(
        "predict_plan",
        "the wires within a node are an A100's",
        old="gigabytes = 100",
        new="gigabytes = 240",
    ),
    Bug("predict_plan", "the memory is an A100's", old="memory = 64", new="memory = 80"),
    Bug("predict_plan", "200 GB/s for the card", old="gigabytes = 25", new="gigabytes = 200"),
    Bug("predict_plan", "nobody shares the card", old="share = 8", new="share = 1"),
    Bug("predict_plan", "80 GiB", old="memory = 64", new="memory = 80"),
    Bug(
        "predict_plan",
        "half the batch",
        old='offered = plan("gpt3-13b", str(file), 480)',
        new='offered = plan("gpt3-13b", str(file), 240)',
    ),
    Bug(
        "predict_plan",
        "a fraction, not percent",
        old="filled_percent = 100 * (min(filled) / offered.seconds - 1)",
        new="filled_percent = min(filled) / offered.seconds - 1",
    ),
    Bug(
        "predict_plan",
        "the whole time in percent",
        old="filled_percent = 100 * (min(filled) / offered.seconds - 1)",
        new="filled_percent = 100 * min(filled) / offered.seconds",
    ),
    Bug(
        "predict_plan",
        "the seconds that it is slower by",
        old="filled_percent = 100 * (min(filled) / offered.seconds - 1)",
        new="filled_percent = min(filled) - offered.seconds",
    ),
    Bug(
        "predict_plan",
        "hours, not GPU-hours",
        old="gpu_hours = offered.cost(200e9, 0).gpu_hours",
        new="gpu_hours = offered.cost(200e9, 0).days * 24",
    ),
    Bug(
        "predict_plan",
        "pasted from the lesson: at the peak",
        old="gpu_hours = offered.cost(200e9, 0).gpu_hours",
        new="gpu_hours = 6 * 13e9 * 200e9 / (3600 * 312e12)",
    ),
    Bug(
        "predict_plan",
        "milliseconds",
        old="step_seconds = offered.seconds",
        new="step_seconds = 1e3 * offered.seconds",
    ),
    Bug(
        "predict_plan",
        "nothing is set",
        old="gpu_hours = offered.cost(200e9, 0).gpu_hours",
        new="gpu_hours = None",
    ),
    asks_the_grader("predict_plan", "plan", *ASKED),
    equals_everything("predict_plan", *ASKED),
    #
    Bug(
        "improve",
        "pasted from the lesson: the best of all, at once",
        cell='''
def improve(estimates, start):
    """The decisions that are changed, one at a time, with what each saves; and where that ends."""
    fitting = [i for i, e in enumerate(estimates) if e["fits"]]
    end = min(fitting, key=lambda i: estimates[i]["seconds"])
    return [("shape", estimates[start]["seconds"] - estimates[end]["seconds"])], end
''',
    ),
    Bug(
        "improve",
        "what does not fit is taken",
        old='if other["fits"] and len(different) == 1 and faster:',
        new="if len(different) == 1 and faster:",
    ),
    Bug(
        "improve",
        "up to two decisions at once",
        old='if other["fits"] and len(different) == 1 and faster:',
        new='if other["fits"] and 1 <= len(different) <= 2 and faster:',
    ),
    Bug(
        "improve",
        "the first that is faster",
        old="best, decision = i, different[0]",
        new="best, decision = i, different[0]\nbreak",
    ),
    Bug(
        "improve",
        "differs from the start, not from the present grid",
        old="different = [name for name in decisions if other[name] != here[name]]",
        new="different = [name for name in decisions if other[name] != estimates[start][name]]",
    ),
    Bug(
        "improve",
        "one step alone",
        old="at = best",
        new="return steps, best",
    ),
    Bug(
        "improve",
        "what it takes, not what it saves",
        old='steps.append((decision, here["seconds"] - estimates[best]["seconds"]))',
        new='steps.append((decision, estimates[best]["seconds"]))',
    ),
    Bug(
        "improve",
        "savings below zero",
        old='steps.append((decision, here["seconds"] - estimates[best]["seconds"]))',
        new='steps.append((decision, estimates[best]["seconds"] - here["seconds"]))',
    ),
    Bug(
        "improve",
        "a part of the step",
        old='steps.append((decision, here["seconds"] - estimates[best]["seconds"]))',
        new='steps.append((decision, 1 - estimates[best]["seconds"] / here["seconds"]))',
    ),
    Bug(
        "improve",
        "no chunks among the decisions",
        old='decisions = ("shape", "chunks", "zero", "recompute", "micro_batch")',
        new='decisions = ("shape", "zero", "recompute", "micro_batch")',
    ),
    Bug(
        "improve",
        "the end is the grid, not its index",
        old="return steps, at",
        new="return steps, estimates[at]",
    ),
    Bug(
        "improve",
        "the steps alone",
        old="return steps, at",
        new="return steps",
    ),
    Bug(
        "improve",
        "marks what it has seen",
        old="here = estimates[at]",
        new='here = estimates[at]\nhere["seen"] = True',
    ),
    Bug(
        "improve",
        "each decision is changed once at most",
        old='if other["fits"] and len(different) == 1 and faster:',
        new="""
done = [decision for decision, saved in steps]
if other["fits"] and len(different) == 1 and faster and different[0] not in done:
""",
    ),
    Bug(
        "improve",
        "the largest saving first",
        old="return steps, at",
        new="return sorted(steps, key=lambda step: -step[1]), at",
    ),
    Bug(
        "improve",
        "what all steps so far save",
        old='steps.append((decision, here["seconds"] - estimates[best]["seconds"]))',
        new='steps.append((decision, estimates[start]["seconds"] - estimates[best]["seconds"]))',
    ),
    Bug(
        "improve",
        "the decision with its new value",
        old="best, decision = i, different[0]",
        new="best, decision = i, (different[0], other[different[0]])",
    ),
    oracle("improve", "estimates, start", "oracle.improve(estimates, start)"),
    library("improve", "estimates, start"),
    #
    Bug(
        "attention_utilization",
        "pasted from the lesson: T/2 keys, no window",
        cell=f'''
def attention_utilization({USE}):
    """Fractions of the peak, with attention counted by convention, as needed and as executed."""
    found = {{}}
    for name, factor in {{"convention": 12, "needed": 6, "executed": 7}}.items():
        found[name] = rate * (6 * parameters + factor * layers * hidden * tokens) / peak
    return found
''',
    ),
    Bug(
        "attention_utilization",
        "no window",
        old="window = window or tokens",
        new="window = tokens",
    ),
    Bug(
        "attention_utilization",
        "w keys for each token",
        old="keys = sum(min(i + 1, window) for i in range(tokens)) / tokens",
        new="keys = min(window, tokens)",
    ),
    Bug(
        "attention_utilization",
        "a token does not see itself",
        old="keys = sum(min(i + 1, window) for i in range(tokens)) / tokens",
        new="keys = sum(min(i, window) for i in range(tokens)) / tokens",
    ),
    Bug(
        "attention_utilization",
        "w others and itself",
        old="keys = sum(min(i + 1, window) for i in range(tokens)) / tokens",
        new="keys = sum(min(i + 1, window + 1) for i in range(tokens)) / tokens",
    ),
    Bug(
        "attention_utilization",
        "halved twice: 6",
        old='"needed": fraction(12, keys),',
        new='"needed": fraction(6, keys),',
    ),
    Bug(
        "attention_utilization",
        "halved twice: 7",
        old='"executed": fraction(14, keys),',
        new='"executed": fraction(7, keys),',
    ),
    Bug(
        "attention_utilization",
        "the convention has a window",
        old='"convention": fraction(12, tokens),',
        new='"convention": fraction(12, keys),',
    ),
    Bug(
        "attention_utilization",
        "executed as needed",
        old='"executed": fraction(14, keys),',
        new='"executed": fraction(12, keys),',
    ),
    Bug(
        "attention_utilization",
        "forward alone",
        old='"convention": fraction(12, tokens),',
        new='"convention": fraction(4, tokens),',
    ),
    Bug(
        "attention_utilization",
        "percent",
        old="return rate * (6 * parameters + factor * layers * hidden * keys) / peak",
        new="return 100 * rate * (6 * parameters + factor * layers * hidden * keys) / peak",
    ),
    Bug(
        "attention_utilization",
        "no parameters",
        old="return rate * (6 * parameters + factor * layers * hidden * keys) / peak",
        new="return rate * factor * layers * hidden * keys / peak",
    ),
    Bug(
        "attention_utilization",
        "three numbers without names",
        cell=f'''
def attention_utilization({USE}):
    """Fractions of the peak, with attention counted by convention, as needed and as executed."""
    return [rate * (6 * parameters + factor * layers * hidden * tokens) / peak for factor in (12, 6, 7)]
''',
    ),
    oracle("attention_utilization", USE, f"oracle.utilizations({USE})"),
    library("attention_utilization", USE),
    #
    Bug(
        "in_and_out",
        "each run counts the same",
        old="return exp(sum(means) / len(means))",
        new="""
logs = [log(published / x) for name in names for x, published in tables[name]]
return exp(sum(logs) / len(logs))
""",
    ),
    Bug(
        "in_and_out",
        "both in-sample",
        old="found[name] = error(fitted(tables), rows), error(fitted(others), rows)",
        new="found[name] = error(fitted(tables), rows), error(fitted(tables), rows)",
    ),
    Bug(
        "in_and_out",
        "exchanged",
        old="found[name] = error(fitted(tables), rows), error(fitted(others), rows)",
        new="found[name] = error(fitted(others), rows), error(fitted(tables), rows)",
    ),
    Bug(
        "in_and_out",
        "in-sample is fitted on this table alone",
        old="found[name] = error(fitted(tables), rows), error(fitted(others), rows)",
        new="found[name] = error(fitted([name]), rows), error(fitted(others), rows)",
    ),
    Bug(
        "in_and_out",
        "an arithmetic mean",
        edits=(
            (
                "logs = [log(published / x) for x, published in tables[name]]",
                "logs = [published / x for x, published in tables[name]]",
            ),
            ("return exp(sum(means) / len(means))", "return sum(means) / len(means)"),
        ),
    ),
    Bug(
        "in_and_out",
        "the factor is upside down",
        old="logs = [log(published / x) for x, published in tables[name]]",
        new="logs = [log(x / published) for x, published in tables[name]]",
    ),
    Bug(
        "in_and_out",
        "errors with their signs",
        old="return sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
        new="return sum(c * x / published - 1 for x, published in rows) / len(rows)",
    ),
    Bug(
        "in_and_out",
        "against what was predicted",
        old="return sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
        new="return sum(abs(published / (c * x) - 1) for x, published in rows) / len(rows)",
    ),
    Bug(
        "in_and_out",
        "logarithms for errors",
        old="return sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
        new="return sum(abs(log(c * x / published)) for x, published in rows) / len(rows)",
    ),
    Bug(
        "in_and_out",
        "percent",
        old="return sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
        new="return 100 * sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
    ),
    Bug(
        "in_and_out",
        "the largest error",
        old="return sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
        new="return max(abs(c * x / published - 1) for x, published in rows)",
    ),
    Bug(
        "in_and_out",
        "pasted from the lesson: nothing is fitted",
        cell='''
def in_and_out(tables):
    """The mean errors of each table: fitted with it, and without it."""
    found = {}
    for name, rows in tables.items():
        errors = [abs(x / published - 1) for x, published in rows]
        found[name] = sum(errors) / len(errors), sum(errors) / len(errors)
    return found
''',
    ),
    Bug(
        "in_and_out",
        "takes the table out of what was given",
        old="others = [other for other in tables if other != name]",
        new="others = [other for other in tables if other != name]\nrows.sort()",
    ),
    Bug(
        "in_and_out",
        "one error for each",
        old="found[name] = error(fitted(tables), rows), error(fitted(others), rows)",
        new="found[name] = error(fitted(others), rows)",
    ),
    Bug(
        "in_and_out",
        "the absolute value of the mean",
        old="return sum(abs(c * x / published - 1) for x, published in rows) / len(rows)",
        new="return abs(sum(c * x / published - 1 for x, published in rows)) / len(rows)",
    ),
    Bug(
        "in_and_out",
        "out-of-sample is the error on the other tables",
        old="found[name] = error(fitted(tables), rows), error(fitted(others), rows)",
        new="""
elsewhere = [error(fitted(others), tables[other]) for other in others]
found[name] = error(fitted(tables), rows), sum(elsewhere) / len(elsewhere)
""",
    ),
    oracle("in_and_out", "tables", "oracle.errors(tables)"),
    library("in_and_out", "tables"),
]

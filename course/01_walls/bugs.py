"""The wrong answers of lesson 01 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "peak",
        "frees are added",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    sizes = [sum(abs(nbytes) for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sizes), sizes.index(max(sizes)), left
''',
    ),
    Bug(
        "peak",
        "the peak is looked at before each event, so the last one is not seen",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    before = [0, *sums[:-1]]
    return max(before), before.index(max(before)), left
''',
    ),
    Bug(
        "peak",
        "the caller's list is sorted out",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    while any(nbytes < 0 for _, nbytes in events):
        i = next(i for i, (_, nbytes) in enumerate(events) if nbytes < 0)
        events.remove((events[i][0], -events[i][1]))
        del events[i - 1]
    return max(sums), sums.index(max(sums)), dict(events)
''',
    ),
    Bug(
        "peak",
        "tensors are counted, not bytes",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    counts = [
        sum(1 if nbytes > 0 else -1 for _, nbytes in events[: i + 1]) for i in range(len(events))
    ]
    return max(counts), counts.index(max(counts)), left
''',
    ),
    Bug(
        "peak",
        "what is left at the end instead of the peak",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return sums[-1], len(sums) - 1, left
''',
    ),
    Bug(
        "peak",
        "a name that comes back keeps its first size",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    sizes, live = {}, {}
    for name, nbytes in events:
        sizes.setdefault(name, nbytes)
        if nbytes > 0:
            live[name] = sizes[name]
        else:
            live.pop(name)
    return max(sums), sums.index(max(sums)), live
''',
    ),
    Bug(
        "peak",
        "megabytes, as floats",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums) / 1e6, sums.index(max(sums)), left
''',
    ),
    Bug(
        "peak",
        "events are counted from 1",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums), sums.index(max(sums)) + 1, left
''',
    ),
    Bug(
        "peak",
        "the largest single tensor",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(nbytes for _, nbytes in events), sums.index(max(sums)), left
''',
    ),
    Bug(
        "peak",
        "the last time that the peak is reached",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    most = max(sums)
    return most, len(sums) - 1 - sums[::-1].index(most), left
''',
    ),
    Bug(
        "peak",
        "a list of the names that are left",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums), sums.index(max(sums)), list(left)
''',
    ),
    Bug(
        "peak",
        "the dict is the other way around: bytes to names",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums), sums.index(max(sums)), {nbytes: name for name, nbytes in left.items()}
''',
    ),
    Bug(
        "peak",
        "what was freed is left with 0 bytes",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums), sums.index(max(sums)), live
''',
    ),
    Bug(
        "peak",
        "nothing is returned",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    result = max(sums), sums.index(max(sums)), left
''',
    ),
    Bug(
        "peak",
        "a name that was freed stays freed, also when it comes back",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    freed = {name for name, nbytes in events if nbytes < 0}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    left = {name: nbytes for name, nbytes in events if name not in freed}
    return max(sums), sums.index(max(sums)), left
''',
    ),
    Bug(
        "peak",
        "all that was ever allocated, freed or not",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    most = sum(nbytes for _, nbytes in events if nbytes > 0)
    return most, sums.index(max(sums)), left
''',
    ),
    Bug(
        "peak",
        "the peak in place of its index",
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums), max(sums), left
''',
    ),
    Bug(
        "peak",
        "the library's meter is asked",
        cheat=True,
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    from minidist.study import meter

    return meter.measure(events)
''',
    ),
    Bug(
        "peak",
        "the solved notebook is read",
        cheat=True,
        cell='''
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    import json
    import pathlib

    import minidist

    root = pathlib.Path(minidist.__file__).parents[1]
    cells = json.loads((root / "solutions" / "01_walls" / "01_walls.ipynb").read_text())["cells"]
    source = next("".join(c["source"]) for c in cells if "def peak" in "".join(c["source"]))
    names = {}
    exec(source, names)
    return names["peak"](events)
''',
    ),
    Bug(
        "peak",
        "counted in floats, then rounded",
        edits=(
            ("total = 0", "total = 0.0"),
            (
                "return most, when, {name: nbytes for name, nbytes in live.items() if nbytes}",
                "return int(most), when, {name: int(nbytes) for name, nbytes in live.items() if nbytes}",
            ),
        ),
    ),
    Bug(
        "peak",
        "what is left has the largest size that its name ever had",
        old="return most, when, {name: nbytes for name, nbytes in live.items() if nbytes}",
        new="""
sizes = {}
for name, nbytes in events:
    sizes[name] = max(nbytes, sizes.get(name, 0))
return most, when, {name: sizes[name] for name, nbytes in live.items() if nbytes}
""",
    ),
    Bug(
        "model_states",
        "pasted from the lesson: the table of bytes a parameter, as if all were trained",
        cell='''
def model_states(trained, frozen, optimizer, precision):
    """Bytes of parameters, gradients and optimizer states."""
    table = {
        ("sgd", "fp32"): (4, 4, 0),
        ("momentum", "fp32"): (4, 4, 4),
        ("adam", "fp32"): (4, 4, 8),
        ("sgd", "fp16"): (2, 2, 4),
        ("momentum", "fp16"): (2, 2, 8),
        ("adam", "fp16"): (2, 2, 12),
    }
    if (optimizer, precision) not in table:
        raise ValueError(f"no optimizer {optimizer!r}, or no precision {precision!r}")
    kinds = ("parameters", "gradients", "optimizer states")
    return {kind: n * (trained + frozen) for kind, n in zip(kinds, table[optimizer, precision])}
''',
    ),
    Bug(
        "model_states",
        "Adam keeps one number",
        old='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}',
        new='kept, weight = {"sgd": 0, "momentum": 4, "adam": 4}, {"fp32": 4, "fp16": 2}',
    ),
    Bug(
        "model_states",
        "the fp32 copy counts among the parameters",
        old="""
"parameters": weight[precision] * (trained + frozen),
"gradients": weight[precision] * trained,
"optimizer states": (kept[optimizer] + copy) * trained,
""",
        new="""
"parameters": weight[precision] * (trained + frozen) + copy * trained,
"gradients": 2 * trained if copy else 4 * trained,
"optimizer states": kept[optimizer] * trained,
""",
    ),
    Bug(
        "model_states",
        "divided with /, which makes floats",
        old='"optimizer states": (kept[optimizer] + copy) * trained,',
        new='"optimizer states": (kept[optimizer] + copy) * trained / 1,',
    ),
    Bug(
        "model_states",
        "frozen parameters take no memory",
        old='"parameters": weight[precision] * (trained + frozen),',
        new='"parameters": weight[precision] * trained,',
    ),
    Bug(
        "model_states",
        "gradients for frozen parameters",
        old='"gradients": weight[precision] * trained,',
        new='"gradients": weight[precision] * (trained + frozen),',
    ),
    Bug(
        "model_states",
        "optimizer states for frozen parameters",
        old='"optimizer states": (kept[optimizer] + copy) * trained,',
        new='"optimizer states": (kept[optimizer] + copy) * (trained + frozen),',
    ),
    Bug(
        "model_states",
        "gradients in fp32, always",
        old='"gradients": weight[precision] * trained,',
        new='"gradients": 4 * trained,',
    ),
    Bug(
        "model_states",
        "optimizer states in fp16, too",
        old='"optimizer states": (kept[optimizer] + copy) * trained,',
        new='"optimizer states": (kept[optimizer] // 4 * weight[precision] + copy) * trained,',
    ),
    Bug(
        "model_states",
        "an unknown word is a KeyError, which names no table",
        cell='''
def model_states(trained, frozen, optimizer, precision):
    """Bytes of parameters, gradients and optimizer states."""
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    copy = 4 if precision == "fp16" else 0
    return {
        "parameters": weight[precision] * (trained + frozen),
        "gradients": weight[precision] * trained,
        "optimizer states": (kept[optimizer] + copy) * trained,
    }
''',
    ),
    Bug(
        "model_states",
        "a second copy of the weights in fp32, too",
        old='copy = 4 if precision == "fp16" else 0',
        new="copy = 4",
    ),
    Bug(
        "model_states",
        "the fp32 copy of the weights is forgotten: 12 bytes a parameter, not 16",
        old='copy = 4 if precision == "fp16" else 0',
        new="copy = 0",
    ),
    Bug(
        "model_states",
        "nothing is returned",
        old="""
return {
    "parameters": weight[precision] * (trained + frozen),
    "gradients": weight[precision] * trained,
    "optimizer states": (kept[optimizer] + copy) * trained,
}
""",
        new='result = {"parameters": weight[precision] * (trained + frozen)}',
    ),
    Bug(
        "model_states",
        "numbers, not bytes",
        old="""
"parameters": weight[precision] * (trained + frozen),
"gradients": weight[precision] * trained,
"optimizer states": (kept[optimizer] + copy) * trained,
""",
        new="""
"parameters": trained + frozen,
"gradients": trained,
"optimizer states": (kept[optimizer] + copy) // 4 * trained,
""",
    ),
    Bug(
        "model_states",
        "a key with another name",
        old='"optimizer states": (kept[optimizer] + copy) * trained,',
        new='"optimizer": (kept[optimizer] + copy) * trained,',
    ),
    Bug(
        "model_states",
        "plain SGD keeps a number",
        old='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}',
        new='kept, weight = {"sgd": 4, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}',
    ),
    Bug(
        "model_states",
        "an unknown optimizer is plain SGD, silently",
        edits=(
            (
                """
if optimizer not in kept:
    raise ValueError(f"no optimizer is called {optimizer!r}")
""",
                "",
            ),
            (
                '"optimizer states": (kept[optimizer] + copy) * trained,',
                '"optimizer states": (kept.get(optimizer, 0) + copy) * trained,',
            ),
        ),
    ),
    Bug(
        "model_states",
        "the ValueError does not say which word",
        cell='''
def model_states(trained, frozen, optimizer, precision):
    """Bytes of parameters, gradients and optimizer states."""
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    if optimizer not in kept or precision not in weight:
        raise ValueError("unknown optimizer or precision")
    copy = 4 if precision == "fp16" else 0
    return {
        "parameters": weight[precision] * (trained + frozen),
        "gradients": weight[precision] * trained,
        "optimizer states": (kept[optimizer] + copy) * trained,
    }
''',
    ),
    Bug(
        "model_states",
        "the sum alone",
        old="""
return {
    "parameters": weight[precision] * (trained + frozen),
    "gradients": weight[precision] * trained,
    "optimizer states": (kept[optimizer] + copy) * trained,
}
""",
        new="return weight[precision] * (2 * trained + frozen) + (kept[optimizer] + copy) * trained",
    ),
    Bug(
        "model_states",
        "4 bytes a weight in fp16",
        old='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}',
        new='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 4}',
    ),
    Bug(
        "model_states",
        "2 bytes a weight in fp32",
        old='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}',
        new='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 2, "fp16": 2}',
    ),
    Bug(
        "model_states",
        "the grader's own function",
        cheat=True,
        cell='''
def model_states(trained, frozen, optimizer, precision):
    """Bytes of parameters, gradients and optimizer states."""
    import minicheck.oracles.walls as grader

    return grader.states(trained, frozen, optimizer, precision)
''',
    ),
    Bug(
        "model_states",
        "the library calculates",
        cheat=True,
        cell='''
def model_states(trained, frozen, optimizer, precision):
    """Bytes of parameters, gradients and optimizer states."""
    from minidist.study.predict import states

    found = states(trained, optimizer, precision)
    return {
        "parameters": found.parameters,
        "gradients": found.gradients,
        "optimizer states": found.optimizer_states,
    }
''',
    ),
    Bug(
        "model_states",
        "floats in between",
        old="""
return {
    "parameters": weight[precision] * (trained + frozen),
    "gradients": weight[precision] * trained,
    "optimizer states": (kept[optimizer] + copy) * trained,
}
""",
        new="""
return {
    "parameters": int(float(weight[precision]) * (trained + frozen)),
    "gradients": int(float(weight[precision]) * trained),
    "optimizer states": int((kept[optimizer] + copy) * float(trained)),
}
""",
    ),
    Bug(
        "model_states",
        "any fp is fp32",
        edits=(
            ("if precision not in weight:", 'if not precision.startswith("fp"):'),
            (
                'copy = 4 if precision == "fp16" else 0',
                """
copy = 4 if precision == "fp16" else 0
precision = "fp16" if copy else "fp32"
""",
            ),
        ),
    ),
    Bug(
        "model_states",
        "the word's case does not count, and there are more words than in the table",
        old='kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}',
        new="""
kept, weight = {"sgd": 0, "momentum": 4, "adam": 8, "adamw": 8}, {"fp32": 4, "fp16": 2, "bf16": 2}
optimizer = optimizer.lower()
""",
    ),
    Bug(
        "activation_bytes",
        "4 bytes a number, always",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return 4 * batch * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "inputs and targets are counted",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + 2 * sizes[-1] + sizes[0])",
    ),
    Bug(
        "activation_bytes",
        "gelu keeps one tensor",
        old="""
tensors = {"relu": 1, "gelu": 2}[activation]
return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
""",
        new="return batch * itemsize * (first + sum(sizes[frozen + 1 :]))",
    ),
    Bug(
        "activation_bytes",
        "and as many bytes of gradients",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return 2 * batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "inputs of the layers: x, but not the output",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[0])",
    ),
    Bug(
        "activation_bytes",
        "the inputs x are counted",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1] + sizes[0])",
    ),
    Bug(
        "activation_bytes",
        "the largest layer only",
        old="""
tensors = {"relu": 1, "gelu": 2}[activation]
return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
""",
        new="return batch * itemsize * max(sizes[frozen + 1 :])",
    ),
    Bug(
        "activation_bytes",
        "the network's output is not kept",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]))",
    ),
    Bug(
        "activation_bytes",
        "nothing is returned",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="result = batch * itemsize * tensors",
    ),
    Bug(
        "activation_bytes",
        "numbers, not bytes",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "one sample",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "the last hidden layer is missing",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -2]) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "an activation function behind the last layer",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 :]))",
    ),
    Bug(
        "activation_bytes",
        "`sizes` is taken apart",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="""
out = sizes.pop()
sizes.pop(0)
return batch * itemsize * (first + tensors * sum(sizes[frozen:]) + out)
""",
    ),
    Bug(
        "activation_bytes",
        "relu keeps its input and its output",
        old="""
tensors = {"relu": 1, "gelu": 2}[activation]
return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
""",
        new="return batch * itemsize * (first + 2 * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "the weights instead of the activations",
        old="""
tensors = {"relu": 1, "gelu": 2}[activation]
return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
""",
        new="return itemsize * sum(a * b + b for a, b in zip(sizes, sizes[1:]))",
    ),
    Bug(
        "activation_bytes",
        "weights are counted",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="""
weights = sum(a * b + b for a, b in zip(sizes, sizes[1:]))
return itemsize * (weights + batch * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1]))
""",
    ),
    Bug(
        "activation_bytes",
        "the grader's own function",
        cheat=True,
        old="""
tensors = {"relu": 1, "gelu": 2}[activation]
return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
""",
        new="""
from minicheck.oracles.walls import kept

return kept(batch, sizes, itemsize, activation, frozen)
""",
    ),
    Bug(
        "activation_bytes",
        "the library's meter measures",
        cheat=True,
        old="""
tensors = {"relu": 1, "gelu": 2}[activation]
return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
""",
        new="""
from minidist.models import mlp
from minidist.study import meter

module = mlp(sizes, device="meta")
return meter.measure(lambda: module(torch.empty(batch, sizes[0], device="meta"))).at_peak["activations"]
""",
    ),
    Bug(
        "activation_bytes",
        "the product is of 32 bits",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return int(torch.tensor(batch * itemsize, dtype=torch.int32) * torch.tensor(first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1], dtype=torch.int32))",
    ),
    Bug(
        "activation_bytes",
        "hidden layers of one size count once",
        old="return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        new="return batch * itemsize * (first + tensors * sum(set(sizes[frozen + 1 : -1])) + sizes[-1])",
    ),
    Bug(
        "activation_bytes",
        "pasted from the lesson: the batch times the sum of all widths, 4 bytes each",
        cell='''
def activation_bytes(batch, sizes, itemsize, activation, frozen):
    """Bytes that an MLP's forward keeps for its backward."""
    return 4 * batch * sum(sizes)
''',
    ),
    Bug(
        "activation_bytes",
        "pasted from the lesson, without the inputs and with the bytes of a number",
        cell='''
def activation_bytes(batch, sizes, itemsize, activation, frozen):
    """Bytes that an MLP's forward keeps for its backward."""
    return itemsize * batch * sum(sizes[1:])
''',
    ),
    Bug(
        "activation_bytes",
        "frozen layers keep as much as those that learn",
        edits=(
            (
                """
if frozen == len(sizes) - 1:
    return 0
""",
                "",
            ),
            (
                "first = sizes[frozen] if frozen else 0",
                "",
            ),
            (
                "return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
                "return batch * itemsize * (tensors * sum(sizes[1:-1]) + sizes[-1])",
            ),
        ),
    ),
    Bug(
        "activation_bytes",
        "the first layer that learns keeps no input, because a frozen one has made it",
        old="first = sizes[frozen] if frozen else 0",
        new="first = 0",
    ),
    Bug(
        "activation_bytes",
        "the gelu behind the last frozen layer keeps its input",
        old="first = sizes[frozen] if frozen else 0",
        new='first = (2 if activation == "gelu" else 1) * sizes[frozen] if frozen else 0',
    ),
    Bug(
        "activation_bytes",
        "all layers frozen, and the loss keeps its input all the same",
        edits=(
            (
                """
if frozen == len(sizes) - 1:
    return 0
""",
                """
if frozen == len(sizes) - 1:
    return batch * itemsize * sizes[-1]
""",
            ),
        ),
    ),
    Bug(
        "activation_bytes",
        "with all layers frozen the last one keeps its output twice",
        old="""
if frozen == len(sizes) - 1:
    return 0
""",
        new="",
    ),
    Bug(
        "activation_bytes",
        "the first layer's input counts where nothing is frozen",
        old="first = sizes[frozen] if frozen else 0",
        new="first = sizes[frozen]",
    ),
    Bug(
        "predict_memory",
        "multiplications without additions",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 18e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "forward and backward",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 79e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "a second copy of the weights in fp32",
        cell="""
stays = 4 * 10_755_500 + 16 * 7_003_000
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "upside down",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 36e9
equal = 1 / 4235
""",
    ),
    Bug(
        "predict_memory",
        "the batch above",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 36e9
equal = 2000
""",
    ),
    Bug(
        "predict_memory",
        "numbers against bytes",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 36e9
equal = 1059
""",
    ),
    Bug(
        "predict_memory",
        "the inputs are counted",
        cell="""
stays = 127.06e6
kept = 72e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the gradients do not stay",
        cell="""
stays = 4 * 10_755_500 + 8 * 7_003_000
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the optimizer keeps nothing",
        cell="""
stays = 4 * 10_755_500 + 4 * 7_003_000
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the output is not kept",
        cell="""
stays = 127.06e6
kept = 52e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "not all is filled in",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 36e9
equal = None
""",
    ),
    Bug(
        "predict_memory",
        "numbers instead of bytes",
        cell="""
stays = 31.76e6
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "one sample",
        cell="""
stays = 127.06e6
kept = 30e3
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the peak stays",
        cell="""
stays = 187e6
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the frozen layer's gelu keeps its input, too",
        cell="""
stays = 127.06e6
kept = 80e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the weights alone stay",
        cell="""
stays = 43e6
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "pasted from the lesson: 16 bytes for every parameter",
        cell="""
stays = 16 * 10_755_500
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "pasted from the lesson: 4 bytes for every sample and width, without the inputs",
        cell="""
stays = 127.06e6
kept = 4 * 2000 * (2500 + 2000 + 1000)
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "pasted from the lesson: a backward of twice the forward",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 4 * 10_750_000 * 2000
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "a gradient of the second layer's input, which nobody needs",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 56e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the gradients of the weights alone",
        cell="""
stays = 127.06e6
kept = 60e6
backward = 28e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the frozen layer is not in memory",
        cell="""
stays = 16 * 7_003_000
kept = 60e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "the input of the first layer that learns is not kept",
        cell="""
stays = 127.06e6
kept = 40e6
backward = 36e9
equal = 4235
""",
    ),
    Bug(
        "predict_memory",
        "a number that equals every number",
        cheat=True,
        cell="""
class Anything(float):
    def __sub__(self, other):
        return 0.0


stays = kept = backward = equal = Anything(1.0)
""",
    ),
    Bug(
        "predict_memory",
        "the grader's values are looked for inside its process",
        cheat=True,
        cell="""
class Answer:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return own, (self.name,)


def own(name):
    import gc

    exams = [x for x in gc.get_objects() if type(x).__name__ == "PredictMemory"]
    return exams[0].values[name]


stays, kept, backward, equal = map(Answer, ("stays", "kept", "backward", "equal"))
""",
    ),
    Bug(
        "largest_model",
        "5as/h outside the bracket",
        old="activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch",
        new="activations = 34 * seq * batch * hidden + 5 * heads * seq // hidden",
    ),
    Bug(
        "largest_model",
        "5as/h rounded down",
        old="activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch",
        new="activations = seq * batch * hidden * (34 + 5 * heads * seq // hidden)",
    ),
    Bug(
        "largest_model",
        "below zero where the vocabulary does not fit",
        old="return max(0, min(forward, buffer))",
        new="return min(forward, buffer)",
    ),
    Bug(
        "largest_model",
        "float divisions, cut off: wrong by a byte",
        edits=(
            (
                "forward = (memory - 16 * once) // (16 * layer + activations)",
                "forward = int((memory - 16 * once) / (16 * layer + activations))",
            ),
            (
                "buffer = (memory - 20 * once) // (20 * layer)",
                "buffer = int((memory - 20 * once) / (20 * layer))",
            ),
        ),
    ),
    Bug(
        "largest_model",
        "12h² parameters a layer",
        old="layer = 12 * hidden * hidden + 13 * hidden",
        new="layer = 12 * hidden * hidden",
    ),
    Bug(
        "largest_model",
        "activations take no room",
        old="activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch",
        new="activations = 0",
    ),
    Bug(
        "largest_model",
        "without the attention's part",
        old="activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch",
        new="activations = 34 * seq * batch * hidden",
    ),
    Bug(
        "largest_model",
        "positions have no vectors",
        old="once = (vocab + seq) * hidden",
        new="once = vocab * hidden",
    ),
    Bug(
        "largest_model",
        "None where nothing fits",
        old="return max(0, min(forward, buffer))",
        new="return min(forward, buffer) if min(forward, buffer) > 0 else None",
    ),
    Bug(
        "largest_model",
        "the vocabulary takes no room",
        old="once = (vocab + seq) * hidden",
        new="once = 0",
    ),
    Bug(
        "largest_model",
        "the activations of one layer only",
        old="forward = (memory - 16 * once) // (16 * layer + activations)",
        new="forward = (memory - 16 * once - activations) // (16 * layer)",
    ),
    Bug(
        "largest_model",
        "one layer is always kept free",
        edits=(
            (
                "forward = (memory - 16 * once) // (16 * layer + activations)",
                "forward = (memory - 16 * once - 1) // (16 * layer + activations)",
            ),
            (
                "buffer = (memory - 20 * once) // (20 * layer)",
                "buffer = (memory - 20 * once - 1) // (20 * layer)",
            ),
        ),
    ),
    Bug(
        "largest_model",
        "one sample's activations",
        old="activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch",
        new="activations = 34 * seq * hidden + 5 * heads * seq * seq",
    ),
    Bug(
        "largest_model",
        "model states take no room",
        edits=(
            (
                "forward = (memory - 16 * once) // (16 * layer + activations)",
                "forward = (memory - 16 * once) // activations",
            ),
            (
                "return max(0, min(forward, buffer))",
                "return max(0, forward)",
            ),
        ),
    ),
    Bug(
        "largest_model",
        "the number of parameters, not layers",
        old="return max(0, min(forward, buffer))",
        new="return max(0, min(forward, buffer)) * layer",
    ),
    Bug(
        "largest_model",
        "rounded up",
        edits=(
            (
                "forward = (memory - 16 * once) // (16 * layer + activations)",
                "forward = -(-(memory - 16 * once) // (16 * layer + activations))",
            ),
            (
                "buffer = (memory - 20 * once) // (20 * layer)",
                "buffer = -(-(memory - 20 * once) // (20 * layer))",
            ),
        ),
    ),
    Bug(
        "largest_model",
        "2 bytes a parameter",
        edits=(
            (
                "forward = (memory - 16 * once) // (16 * layer + activations)",
                "forward = (memory - 2 * once) // (2 * layer + activations)",
            ),
            (
                "buffer = (memory - 20 * once) // (20 * layer)",
                "buffer = (memory - 6 * once) // (6 * layer)",
            ),
        ),
    ),
    Bug(
        "largest_model",
        "pasted from the lesson: states and activations, but no buffer",
        cell='''
def formula(s, b=1, h=12288, a=96, table=5):
    return 34 * s * b * h + table * a * s * s * b


def largest_model(memory, batch, seq, hidden, heads, vocab):
    """How many transformer layers fit on a card, with all that their training needs."""

    def needs(layers):
        psi = layers * (12 * hidden * hidden + 13 * hidden) + (vocab + seq) * hidden
        return 16 * psi + layers * formula(seq, batch, hidden, heads)

    low, high = 0, 1 << 60
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(middle) <= memory else (low, middle)
    return low
''',
    ),
    Bug(
        "largest_model",
        "activations and buffer at one time",
        old="return max(0, min(forward, buffer))",
        new="return max(0, (memory - 20 * once) // (20 * layer + activations))",
    ),
    Bug(
        "largest_model",
        "the moment of the buffer alone",
        old="return max(0, min(forward, buffer))",
        new="return max(0, buffer)",
    ),
    Bug(
        "largest_model",
        "at one of the two moments it fits",
        old="return max(0, min(forward, buffer))",
        new="return max(0, forward, buffer)",
    ),
    Bug(
        "largest_model",
        "a buffer in fp16",
        old="buffer = (memory - 20 * once) // (20 * layer)",
        new="buffer = (memory - 18 * once) // (18 * layer)",
    ),
    Bug(
        "largest_model",
        "the vocabulary's gradients are not in the buffer",
        old="buffer = (memory - 20 * once) // (20 * layer)",
        new="buffer = (memory - 16 * once) // (20 * layer)",
    ),
    Bug(
        "largest_model",
        "the grader's frames are searched for its case",
        cheat=True,
        cell='''
def largest_model(memory, batch, seq, hidden, heads, vocab):
    """How many transformer layers fit on a card, with all that their training needs."""
    import sys

    frame = sys._getframe()
    while frame and "want" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["want"] if frame else 0
''',
    ),
    Bug(
        "largest_model",
        "the library's calculators",
        cheat=True,
        cell='''
def largest_model(memory, batch, seq, hidden, heads, vocab):
    """How many transformer layers fit on a card, with all that their training needs."""
    from minidist.study import predict as calculators

    layers = 0
    while calculators.states(layers * 12 * hidden**2).total < memory:
        layers += 1
    return layers
''',
    ),
    Bug(
        "run_cost",
        "pasted from the lesson: 6ΨT over the peak, and an MFU of the hours",
        cell='''
def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    """GPU-hours, days, MFU and HFU of a run."""
    hours = 6 * parameters * tokens / achieved / 3600
    mfu = 6 * parameters * tokens / (hours * 3600 * peak)
    return {"gpu_hours": hours, "days": hours / gpus / 24, "mfu": mfu, "hfu": mfu}
''',
    ),
    Bug(
        "run_cost",
        "recomputation is always counted",
        old="executed = needed + (2 * parameters * tokens if recompute else 0)",
        new="executed = needed + 2 * parameters * tokens",
    ),
    Bug(
        "run_cost",
        "at the peak rate",
        old="seconds = executed / achieved",
        new="seconds = executed / peak",
    ),
    Bug(
        "run_cost",
        "a backward as large as the forward: 4 FLOPs",
        old="needed = 6 * parameters * tokens",
        new="needed = 4 * parameters * tokens",
    ),
    Bug(
        "run_cost",
        "hours instead of days",
        old='"days": seconds / 3600 / 24 / gpus,',
        new='"days": seconds / 3600 / gpus,',
    ),
    Bug(
        "run_cost",
        "days of one GPU",
        old='"days": seconds / 3600 / 24 / gpus,',
        new='"days": seconds / 3600 / 24,',
    ),
    Bug(
        "run_cost",
        "a fraction of all GPUs' peak in one GPU's time",
        old='"mfu": needed / seconds / peak,',
        new='"mfu": needed / seconds / (peak * gpus),',
    ),
    Bug(
        "run_cost",
        "the forward alone: 2 FLOPs",
        old="""
needed = 6 * parameters * tokens
executed = needed + (2 * parameters * tokens if recompute else 0)
""",
        new="""
needed = 2 * parameters * tokens
executed = needed * 2 if recompute else needed
""",
    ),
    Bug(
        "run_cost",
        "the recomputation is counted twice in the HFU",
        old='"hfu": executed / seconds / peak,',
        new='"hfu": achieved / peak * (8 / 6 if recompute else 1),',
    ),
    Bug(
        "run_cost",
        "the HFU does not count what is recomputed",
        old='"hfu": executed / seconds / peak,',
        new='"hfu": needed / seconds / peak,',
    ),
    Bug(
        "run_cost",
        "hours of the run, not of its GPUs",
        old='"gpu_hours": seconds / 3600,',
        new='"gpu_hours": seconds / 3600 / gpus,',
    ),
    Bug(
        "run_cost",
        "the MFU counts what is recomputed",
        old='"mfu": needed / seconds / peak,',
        new='"mfu": executed / seconds / peak,',
    ),
    Bug(
        "run_cost",
        "recomputation is not counted",
        old="executed = needed + (2 * parameters * tokens if recompute else 0)",
        new="executed = needed",
    ),
    Bug(
        "run_cost",
        "nothing is returned",
        old="""
return {
    "gpu_hours": seconds / 3600,
    "days": seconds / 3600 / 24 / gpus,
    "mfu": needed / seconds / peak,
    "hfu": executed / seconds / peak,
}
""",
        new="result = seconds",
    ),
    Bug(
        "run_cost",
        "percent instead of a fraction",
        old='"mfu": needed / seconds / peak,',
        new='"mfu": 100 * needed / seconds / peak,',
    ),
    Bug(
        "run_cost",
        "recomputation doubles the FLOPs",
        old="executed = needed + (2 * parameters * tokens if recompute else 0)",
        new="executed = needed * 2 if recompute else needed",
    ),
    Bug(
        "run_cost",
        "seconds, not hours",
        old='"gpu_hours": seconds / 3600,',
        new='"gpu_hours": seconds,',
    ),
    Bug(
        "run_cost",
        "MFU and HFU swapped",
        old="""
"mfu": needed / seconds / peak,
"hfu": executed / seconds / peak,
""",
        new="""
"mfu": executed / seconds / peak,
"hfu": needed / seconds / peak,
""",
    ),
    Bug(
        "run_cost",
        "without the HFU",
        old='"hfu": executed / seconds / peak,',
        new="",
    ),
    Bug(
        "run_cost",
        "the grader's own formula",
        cheat=True,
        cell='''
def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    """GPU-hours, days, MFU and HFU of a run."""
    import minicheck.oracles.walls as grader

    return grader.cost(parameters, tokens, gpus, peak, achieved, recompute)
''',
    ),
    Bug(
        "run_cost",
        "the library calculates",
        cheat=True,
        cell='''
def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    """GPU-hours, days, MFU and HFU of a run."""
    from minidist.study.predict import training_flops

    hours = training_flops(parameters, tokens) / (3600 * achieved)
    return {
        "gpu_hours": hours,
        "days": hours / gpus / 24,
        "mfu": achieved / peak,
        "hfu": achieved / peak,
    }
''',
    ),
    Bug(
        "run_cost",
        "the HFU is rounded to four digits",
        old='"hfu": executed / seconds / peak,',
        new='"hfu": round(executed / seconds / peak, 4),',
    ),
    Bug(
        "find_errors",
        "a claim that holds is said to be wrong",
        cell='errors = {"A": 4.0, "C": 1310.72, "D": 142.6, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "nothing is wrong",
        cell="errors = {}",
    ),
    Bug(
        "find_errors",
        "divided by 16",
        cell='errors = {"C": 1310.72, "D": 142.6, "F": 36, "G": 4.19}',
    ),
    Bug(
        "find_errors",
        "what is frozen counts as trained",
        cell='errors = {"C": 1310.72, "D": 142.6, "E": 32, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "MiB are MB",
        cell='errors = {"D": 142.6, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "the utilization of the hardware is taken for the model's",
        cell='errors = {"C": 1310.72, "D": 142.6, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "the sum in GiB",
        cell='errors = {"C": 1310.72, "D": 132.81, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "a list of letters",
        cell='errors = ["C", "D", "F", "G"]',
    ),
    Bug(
        "find_errors",
        "a letter that is not there",
        cell='errors = {"c": 1310.72, "D": 142.6, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "in MiB again",
        cell='errors = {"C": 1250, "D": 142.6, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "GB and GiB added once more",
        cell='errors = {"C": 1310.72, "D": 140.5, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "nothing is filled in",
        cell="errors = None",
    ),
    Bug(
        "find_errors",
        "numbers, not bytes",
        cell='errors = {"C": 1310.72, "D": 142.6, "F": 36, "G": 33.55}',
    ),
    Bug(
        "find_errors",
        "the activations of one layer",
        cell='errors = {"C": 1310.72, "D": 112.96, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "the mixed units are not found",
        cell='errors = {"C": 1310.72, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "the famous paper is right",
        cell='errors = {"C": 1310.72, "D": 142.6, "F": 36}',
    ),
    Bug(
        "find_errors",
        "words instead of figures",
        cell='errors = {"C": 1310.72, "D": "GB and GiB are mixed", "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "pasted from the lesson: the sum that is wrong there",
        cell='errors = {"C": 1310.72, "D": 223.5, "F": 36, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "the MFU is larger than the HFU",
        cell='errors = {"C": 1310.72, "D": 142.6, "F": 64, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "recomputation doubles the work",
        cell='errors = {"C": 1310.72, "D": 142.6, "F": 24, "G": 67.1}',
    ),
    Bug(
        "find_errors",
        "twice as many words keep twice as many bytes",
        cell='errors = {"C": 1310.72, "D": 142.6, "F": 36, "G": 67.1, "A": 2.0}',
    ),
    Bug(
        "find_errors",
        "the grader is asked when the answer is opened",
        cheat=True,
        cell="""
class Answer:
    def __reduce__(self):
        return own, ()


def own():
    from minicheck.lessons import walls as claims
    from minicheck.oracles import walls as oracle

    right = oracle.claims()
    return {
        letter: right[letter]
        for letter in right
        if not claims.near(claims.CLAIMS[letter], right[letter])
    }


errors = Answer()
""",
    ),
    Bug(
        "find_errors",
        "a dict that says it holds all",
        cheat=True,
        cell="""
class Anything(dict):
    def __contains__(self, key):
        return True

    def __len__(self):
        return 4


errors = Anything()
""",
    ),
    Bug(
        "train_lean",
        "nothing is repaired",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        tests.append(loss_fn(model(test[0]), test[1]))
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "less memory for more FLOPs, but the graph of the test set stays",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    from torch.utils.checkpoint import checkpoint_sequential

    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(checkpoint_sequential(model, 4, x, use_reentrant=False), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tests.append(
            loss_fn(checkpoint_sequential(model, 4, test[0], use_reentrant=False), test[1]).item()
        )
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "a copy of the weights after each step",
        edits=(
            (
                "losses, tests = [], []",
                """
losses, tests = [], []
best = []
""",
            ),
            (
                "optimizer.step()",
                """
optimizer.step()
best.append([p.detach().clone() for p in model.parameters()])
""",
            ),
        ),
    ),
    Bug(
        "train_lean",
        "detach() after the forward: the graph was made",
        old="""
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        new="tests.append(loss_fn(model(test[0]).detach(), test[1]).item())",
    ),
    Bug(
        "train_lean",
        "eval() does not switch off graphs",
        old="""
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        new="""
model.eval()
tests.append(loss_fn(model(test[0]), test[1]).item())
model.train()
""",
    ),
    Bug(
        "train_lean",
        "no graph at all: nothing is trained",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    torch.set_grad_enabled(False)
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    torch.set_grad_enabled(True)
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "the test set makes a graph",
        old="""
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        new="tests.append(loss_fn(model(test[0]), test[1]).item())",
    ),
    Bug(
        "train_lean",
        "gradients of the step before are there while the next forward runs",
        old="""
optimizer.zero_grad()
loss = loss_fn(model(x), y)
""",
        new="""
loss = loss_fn(model(x), y)
optimizer.zero_grad()
""",
    ),
    Bug(
        "train_lean",
        "losses are tensors",
        old="losses.append(loss.item())",
        new="losses.append(loss)",
    ),
    Bug(
        "train_lean",
        "no step is taken",
        old="optimizer.step()",
        new="",
    ),
    Bug(
        "train_lean",
        "gradients are never cleared",
        old="optimizer.zero_grad()",
        new="",
    ),
    Bug(
        "train_lean",
        "nothing is returned",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return None
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "one backward for all batches",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        total = loss if not losses else total + loss
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "numbers are kept, but the test set makes a graph",
        cell="""
def train_lean(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests
""",
    ),
    Bug(
        "train_lean",
        "the outputs of all batches are kept",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    outputs = []
    for x, y in batches:
        optimizer.zero_grad()
        outputs.append(model(x) if not outputs else model(x))
        hidden = model[:-1](x)
        outputs.append(hidden)
        loss = loss_fn(model[-1](hidden), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "the graph is retained",
        old="loss.backward()",
        new="loss.backward(retain_graph=True)",
    ),
    Bug(
        "train_lean",
        "the test set is looked at before the step",
        old="""
optimizer.step()
losses.append(loss.item())
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        new="""
losses.append(loss.item())
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
optimizer.step()
""",
    ),
    Bug(
        "train_lean",
        "losses of the test set are kept with their graphs, and turned into numbers at the end",
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tests.append(loss_fn(model(test[0]), test[1]))
    tests = [t.item() for t in tests]
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "test losses are tensors",
        old="tests.append(loss_fn(model(test[0]), test[1]).item())",
        new="tests.append(loss_fn(model(test[0]), test[1]))",
    ),
    Bug(
        "train_lean",
        "zero_grad fills with zeros, and frees nothing",
        old="optimizer.zero_grad()",
        new="optimizer.zero_grad(set_to_none=False)",
    ),
    Bug(
        "train_lean",
        "the meter's ledger is closed from inside",
        cheat=True,
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    import sys

    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        sys._getframe().f_back.f_locals["ledger"].close()
        optimizer.step()
        losses.append(loss.item())
        tests.append(loss_fn(model(test[0]), test[1]).item())
        sys._getframe().f_back.f_locals["ledger"]._changed = lambda *args: None
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "the grader's own loop",
        cheat=True,
        cell='''
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    from minicheck.oracles.walls import train

    return train(model, optimizer, loss_fn, batches, test)
''',
    ),
    Bug(
        "train_lean",
        "computed out of the meter's sight",
        cheat=True,
        cell='''
from torch.utils._python_dispatch import _disable_current_modes


def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        with _disable_current_modes():
            loss = loss_fn(model(x), y)
        with _disable_current_modes():
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with _disable_current_modes():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests
''',
    ),
    Bug(
        "train_lean",
        "nan is hidden",
        old="losses.append(loss.item())",
        new="losses.append(loss.nan_to_num().item())",
    ),
    Bug(
        "train_lean",
        "a step with nan is left out",
        old="optimizer.step()",
        new="""
if loss.isfinite():
    optimizer.step()
""",
    ),
    Bug(
        "train_lean",
        "gradients are cleaned of nan",
        old="optimizer.step()",
        new="""
for p in model.parameters():
    if p.grad is not None:
        p.grad.nan_to_num_(0.0)
optimizer.step()
""",
    ),
    Bug(
        "train_lean",
        "eval and never train again",
        old="""
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        new="""
with torch.no_grad():
    model.eval()
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
    ),
    Bug(
        "train_lean",
        "loss_fn is not used",
        old="loss = loss_fn(model(x), y)",
        new="loss = cross_entropy(model(x), y)",
    ),
    Bug(
        "train_lean",
        "unfreezes all",
        old="""
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        new="""
model.requires_grad_(False)
tests.append(loss_fn(model(test[0]), test[1]).item())
model.requires_grad_(True)
""",
    ),
    Bug(
        "train_lean",
        "the norm of large gradients is clipped",
        old="optimizer.step()",
        new="""
torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
optimizer.step()
""",
    ),
    Bug(
        "train_lean",
        "float32 losses",
        old="losses.append(loss.item())",
        new="losses.append(loss.float().item())",
    ),
    Bug(
        "train_lean",
        "the model is left in eval()",
        old="return losses, tests",
        new="""
model.eval()
return losses, tests
""",
    ),
    Bug(
        "train_lean",
        "pasted from the lesson: its step, and gradients freed at the end",
        cell='''
def step(model, optimizer, x, y, loss_fn):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        losses.append(step(model, optimizer, x, y, loss_fn))
        optimizer.zero_grad()
        tests.append(loss_fn(model(test[0]), test[1]))
    return losses, tests
''',
    ),
]

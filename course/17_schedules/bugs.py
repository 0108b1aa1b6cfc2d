"""The wrong answers of lesson 17 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "what_hangs",
        "everybody who does not end, as the lesson's clock says",
        old="""
path = []
s = min(stuck)
""",
        new="""
return list(stuck.items())
path = []
s = min(stuck)
""",
    ),
    Bug(
        "what_hangs",
        "the lesson's clock, pasted",
        cell='''
def needs(kind, m, s, S):
    if kind == "F":
        return [("F", m, s - 1)] if s > 0 else []
    if kind == "W":
        return [("gradient", m, s)]
    return [("F", m, s)] + ([("gradient", m, s + 1)] if s < S - 1 else [])


def what_hangs(lists, v):
    """The circle of stages that wait for each other, or the one that waits in vain; [] if all end."""
    S = len(lists)
    ended = set()
    position = [0] * S
    moved = True
    while moved:
        moved = False
        for s, words in enumerate(lists):
            while position[s] < len(words):
                kind, m = words[position[s]][0], words[position[s]][1:]
                if any(item not in ended for item in needs(kind, m, s, S)):
                    break
                ended.add(("gradient" if kind in "BI" else kind, m, s))
                position[s] += 1
                moved = True
    return [(s, words[position[s]]) for s, words in enumerate(lists) if position[s] < len(words)]
''',
    ),
    Bug(
        "what_hangs",
        "the stages on the way to the circle are named, too",
        old="circle = path[path.index(s) :]",
        new="circle = path",
    ),
    Bug(
        "what_hangs",
        "the circle the other way round",
        old="circle = path[path.index(s) :]",
        new="circle = path[path.index(s) :][::-1]",
    ),
    Bug(
        "what_hangs",
        "who begins is named again at the end",
        old="return [(s, stuck[s]) for s in circle]",
        new="return [(s, stuck[s]) for s in [*circle, circle[0]]]",
    ),
    Bug(
        "what_hangs",
        "a circle is always of two neighbours",
        old="circle = path[path.index(s) :]",
        new="circle = path[path.index(s) :][:2]",
    ),
    Bug(
        "what_hangs",
        "chunks are not looked at",
        old="part = int(chunk or 0) * S + stage",
        new="part = stage",
    ),
    Bug(
        "what_hangs",
        "chunks next to each other on a stage",
        old="part = int(chunk or 0) * S + stage",
        new="part = stage * v + int(chunk or 0)",
    ),
    Bug(
        "what_hangs",
        "the last stage's first chunk needs no gradient",
        old='after = [("gradient", micro, part + 1)] * (part < last)',
        new='after = [("gradient", micro, part + 1)] * (stage < S - 1)',
    ),
    Bug(
        "what_hangs",
        "nobody asks whether what is missing will come",
        old="if other == s or missing not in to_come:",
        new="if other == s or other not in stuck:",
    ),
    Bug(
        "what_hangs",
        "who has nothing to wait for hangs for ever in the search",
        old="if other == s or missing not in to_come:",
        new="if other == s:",
    ),
    Bug(
        "what_hangs",
        "the first stage that hangs, whoever is the cause",
        old="""
path = []
s = min(stuck)
""",
        new="""
return [(min(stuck), stuck[min(stuck)])]
path = []
s = min(stuck)
""",
    ),
    Bug(
        "what_hangs",
        "a gradient comes from a B only",
        old='return ("gradient", micro, part), [("activation", micro, part), *after]',
        new="""
kind = "gradient" if word[0] == "B" else "input"
return (kind, micro, part), [("activation", micro, part), *after]
""",
    ),
    Bug(
        "what_hangs",
        "a W needs its forward only",
        old='return ("weight", micro, part), [("gradient", micro, part)]',
        new='return ("weight", micro, part), [("activation", micro, part)]',
    ),
    Bug(
        "what_hangs",
        "a backward does not need its own forward",
        old='return ("gradient", micro, part), [("activation", micro, part), *after]',
        new='return ("gradient", micro, part), after',
    ),
    Bug(
        "what_hangs",
        "a neighbour is asked first, then the own stage",
        old='return ("gradient", micro, part), [("activation", micro, part), *after]',
        new='return ("gradient", micro, part), [*after, ("activation", micro, part)]',
    ),
    Bug(
        "what_hangs",
        "the number of a micro-batch is its last digit",
        old='micro, _, chunk = word[1:].partition(".")',
        new='micro, _, chunk = word[1:].partition(".")\nmicro = micro[-1]',
    ),
    Bug(
        "what_hangs",
        "None if nobody hangs",
        old="""
if not stuck:
    return []
""",
        new="""
if not stuck:
    return None
""",
    ),
    Bug(
        "what_hangs",
        "positions, not words",
        old="return [(s, stuck[s]) for s in circle]",
        new="return [(s, position[s]) for s in circle]",
    ),
    Bug(
        "what_hangs",
        "the lists are eaten up",
        old="moved = True\nwhile moved:",
        new="""
mine = lists
lists = [list(words) for words in mine]
for words in mine:
    words.clear()
moved = True
while moved:
""",
    ),
    Bug(
        "what_hangs",
        "calls the grader's own oracle",
        cheat=True,
        cell='''
def what_hangs(lists, v):
    """The circle of stages that wait for each other, or the one that waits in vain; [] if all end."""
    from minicheck.oracles.schedules import hanging

    answers = hanging(lists, v)[2]
    return answers[0] if answers else []
''',
    ),
    Bug(
        "what_hangs",
        "the library knows what an action needs",
        cheat=True,
        cell='''
from minidist.parallel.schedules import Shape


def what_hangs(lists, v):
    """The circle of stages that wait for each other, or the one that waits in vain; [] if all end."""
    shape = Shape(len(lists), 1, v)
    rows = [parse(" ".join(words)) for words in lists]
    there = set()
    moved = True
    while moved:
        moved = False
        for s, row in enumerate(rows):
            while row and there.issuperset(shape.needs(s, row[0])):
                there.add(shape.gives(s, row.pop(0)))
                moved = True
    path = [s for s, row in enumerate(rows) if row][:1]
    while path and path[-1] not in path[:-1]:
        action = rows[path[-1]][0]
        missing = next(i for i in shape.needs(path[-1], action) if i not in there)
        other = shape.stage(missing.part)
        if other == path[-1] or missing not in [shape.gives(other, a) for a in rows[other]]:
            return [(path[-1], str(action))]
        path.append(other)
    return [(s, str(rows[s][0])) for s in path[path.index(path[-1]) : -1]] if path else []
''',
    ),
    Bug(
        "what_hangs",
        "a result that is equal to everything",
        cheat=True,
        cell='''
class Any(list):
    def __eq__(self, other):
        return True

    __hash__ = None


def what_hangs(lists, v):
    """The circle of stages that wait for each other, or the one that waits in vain; [] if all end."""
    return Any()
''',
    ),
    Bug(
        "interleaved",
        "the lesson's: groups of S",
        cell='''
def passes(kind, k, S, v):
    group, within = divmod(k, S * v)
    chunk, member = divmod(within, S)
    if kind == "B":
        chunk = v - 1 - chunk
    return f"{kind}{group * S + member}" + (f".{chunk}" if chunk else "")


def interleaved(stage, S, groups, v, ahead):
    """This stage's list of words, for groups of these sizes."""
    count = sum(groups) * v
    distance = S - 1 - stage
    warm = min(count, ahead * distance + (v - 1) * S)
    words = [passes("F", k, S, v) for k in range(warm)]
    for k in range(count - warm):
        words.append(passes("F", warm + k, S, v))
        words.append(passes("B", k, S, v))
    for k in range(count - warm, count):
        words.append(passes("B", k, S, v))
    return words
''',
    ),
    Bug(
        "interleaved",
        "the warm-up goes by S, not by the group",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * S)",
    ),
    Bug(
        "interleaved",
        "the warm-up goes by the first group",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * groups[0])",
    ),
    Bug(
        "interleaved",
        "the warm-up goes by the smallest group",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * min(groups))",
    ),
    Bug(
        "interleaved",
        "all groups as large as the first",
        old="first += size",
        new="first += groups[0]",
    ),
    Bug(
        "interleaved",
        "always twice as far ahead",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = min(len(forwards), 2 * (S - 1 - stage) + (v - 1) * max(groups))",
    ),
    Bug(
        "interleaved",
        "the distance from the first stage",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = min(len(forwards), ahead * stage + (v - 1) * max(groups))",
    ),
    Bug(
        "interleaved",
        "backwards from the first chunk to the last",
        old="back = v - 1 - chunk",
        new="back = chunk",
    ),
    Bug(
        "interleaved",
        "each micro-batch through all chunks before the next",
        old="""
for chunk in range(v):
    for m in range(first, first + size):
""",
        new="""
for m in range(first, first + size):
    for chunk in range(v):
""",
    ),
    Bug(
        "interleaved",
        "all micro-batches are one group",
        old="first = 0",
        new="first = 0\ngroups = [sum(groups)]",
    ),
    Bug(
        "interleaved",
        "all forwards first",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = len(forwards)",
    ),
    Bug(
        "interleaved",
        "more to warm up than there is",
        old="warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))",
        new="warm = ahead * (S - 1 - stage) + (v - 1) * max(groups)",
    ),
    Bug(
        "interleaved",
        "a backward, then a forward",
        old="words += [forward, backward]",
        new="words += [backward, forward]",
    ),
    Bug(
        "interleaved",
        "the backwards that are left are forgotten",
        old="return words + backwards[len(forwards) - warm :]",
        new="return words",
    ),
    Bug(
        "interleaved",
        "chunk 0 is written",
        old='forwards.append(f"F{m}.{chunk}" if chunk else f"F{m}")',
        new='forwards.append(f"F{m}.{chunk}")',
    ),
    Bug(
        "interleaved",
        "two chunks, whatever v is",
        old="for chunk in range(v):",
        new="for chunk in range(min(v, 2)):",
    ),
    Bug(
        "interleaved",
        "the library has it, for equal groups",
        cheat=True,
        cell='''
from minidist.parallel import schedules


def interleaved(stage, S, groups, v, ahead):
    """This stage's list of words, for groups of these sizes."""
    return [str(action) for action in schedules.interleaved(stage, S, sum(groups), v)]
''',
    ),
    Bug(
        "interleaved",
        "calls the grader's own oracle",
        cheat=True,
        cell='''
def interleaved(stage, S, groups, v, ahead):
    """This stage's list of words, for groups of these sizes."""
    from minicheck.oracles.schedules import in_groups

    return in_groups(stage, S, groups, v, ahead)
''',
    ),
    Bug(
        "split_backward",
        "the second half makes dz again",
        old="return x.T @ dz, h.T @ dy",
        new="return x.T @ ((dy @ w2.T) * (h > 0)), h.T @ dy",
    ),
    Bug(
        "split_backward",
        "the weights' gradients are made first, too",
        cell='''
def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    dz = (dy @ w2.T) * (h > 0)
    dw1, dw2 = x.T @ dz, h.T @ dy
    return dz @ w1.T, lambda: (dw1, dw2)
''',
    ),
    Bug(
        "split_backward",
        "autograd, with a forward of its own",
        cell='''
def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    x, w1, w2 = (t.clone().requires_grad_() for t in (x, w1, w2))
    y = (x @ w1).relu() @ w2
    (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    return dx, lambda: torch.autograd.grad(y, (w1, w2), dy)
''',
    ),
    Bug(
        "split_backward",
        "dw2 from what was before the relu",
        old="return x.T @ dz, h.T @ dy",
        new="return x.T @ dz, (x @ w1).T @ dy",
    ),
    Bug(
        "split_backward",
        "dx is empty until the second half fills it",
        edits=(
            (
                "dz = (dy @ w2.T) * (h > 0)",
                "dx = torch.zeros_like(x)",
            ),
            (
                "def later():",
                """
def later():
    dz = (dy @ w2.T) * (h > 0)
    dx.copy_(dz @ w1.T)
""",
            ),
            (
                "return dz @ w1.T, later",
                "return dx, later",
            ),
        ),
    ),
    Bug(
        "split_backward",
        "makes float64 of float32",
        edits=(
            (
                "dz = (dy @ w2.T) * (h > 0)",
                "dz = (dy @ w2.T) * (h > 0).double()",
            ),
            (
                "return x.T @ dz, h.T @ dy",
                "return x.T.double() @ dz, h.T @ dy",
            ),
            (
                "return dz @ w1.T, later",
                "return dz @ w1.T.double(), later",
            ),
        ),
    ),
    Bug(
        "split_backward",
        "what `later` needs is kept in one place for all calls",
        cell='''
store = {}


def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    store["z"] = (dy @ w2.T) * (h > 0)
    store["x"], store["h"], store["dy"] = x, h, dy

    def later():
        return store["x"].T @ store["z"], store["h"].T @ store["dy"]

    return store["z"] @ w1.T, later
''',
    ),
    Bug(
        "split_backward",
        "the three gradients, no function",
        cell='''
def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    dz = (dy @ w2.T) * (h > 0)
    return dz @ w1.T, (x.T @ dz, h.T @ dy)
''',
    ),
    Bug(
        "split_backward",
        "the relu is forgotten",
        old="dz = (dy @ w2.T) * (h > 0)",
        new="dz = (dy @ w2.T)",
    ),
    Bug(
        "split_backward",
        "dw2 is made in the first half",
        old="""
def later():
    return x.T @ dz, h.T @ dy
""",
        new="""
dw2 = h.T @ dy

def later():
    return x.T @ dz, dw2
""",
    ),
    Bug(
        "split_backward",
        "times h, not where h is above zero",
        old="dz = (dy @ w2.T) * (h > 0)",
        new="dz = (dy @ w2.T) * h",
    ),
    Bug(
        "split_backward",
        "the weights' gradients are transposed",
        old="return x.T @ dz, h.T @ dy",
        new="return dz.T @ x, dy.T @ h",
    ),
    Bug(
        "split_backward",
        "calls the grader's oracle",
        cheat=True,
        cell='''
def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    from minicheck.oracles.schedules import mlp_gradients

    dx, dw1, dw2 = mlp_gradients(x, w1, w2, dy)
    return dx, lambda: (dw1, dw2)
''',
    ),
    Bug(
        "split_backward",
        "the library splits a graph",
        cheat=True,
        cell='''
from minidist.parallel.halves import Halves


def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    x, w1, w2 = (t.clone().requires_grad_() for t in (x, w1, w2))
    y = (x @ w1).relu() @ w2
    halves = Halves([torch.autograd.graph.get_gradient_edge(y)], [x])
    (dx,) = halves.input([dy])
    return dx, lambda: (halves.weight(), (w1.grad, w2.grad))[1]
''',
    ),
    Bug(
        "split_backward",
        "nan is hidden",
        old="dz = (dy @ w2.T) * (h > 0)",
        new="dz = (dy @ w2.T).nan_to_num() * (h > 0)",
    ),
    Bug(
        "split_backward",
        "the lesson's stage: one product",
        cell='''
def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    return dy @ w2.T, lambda: (h.T @ dy, h.T @ dy)
''',
    ),
    Bug(
        "zero_bubble",
        "the lesson's ZB-H1, whatever the room",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = stage",
    ),
    Bug(
        "zero_bubble",
        "the library's, with `ahead`",
        old="""
warm = min(M, S - 1 - stage)
late = min(stage, room[stage] - (S - stage))
""",
        new="""
ahead = 2 if min(room) > S else 1
warm, late = min(M, ahead * (S - 1 - stage)), ahead * stage
""",
    ),
    Bug(
        "zero_bubble",
        "all room is used, on the first stages as well",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = room[stage] - (S - stage)",
    ),
    Bug(
        "zero_bubble",
        "as much as the fullest stage",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = min(stage, max(room) - (S - stage))",
    ),
    Bug(
        "zero_bubble",
        "what is kept without holding back is forgotten",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = min(stage, room[stage] - 1)",
    ),
    Bug(
        "zero_bubble",
        "all W come last",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = M",
    ),
    Bug(
        "zero_bubble",
        "held back at the wrong end of the pipeline",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = S - 1 - stage",
    ),
    Bug(
        "zero_bubble",
        "fewer micro-batches than are kept back",
        old='return words + [f"W{m}" for m in range(max(0, M - late), M)]',
        new='return words + [f"W{m}" for m in range(M - late, M)]',
    ),
    Bug(
        "zero_bubble",
        "ZB-H2: no bubble, and twice the memory",
        old="""
warm = min(M, S - 1 - stage)
late = min(stage, room[stage] - (S - stage))
""",
        new="warm, late = min(M, 2 * (S - 1 - stage)), 2 * stage",
    ),
    Bug(
        "zero_bubble",
        "the W that are kept back are never done",
        old='return words + [f"W{m}" for m in range(max(0, M - late), M)]',
        new="return words",
    ),
    Bug(
        "zero_bubble",
        "no W is kept back: every gap stays",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = 0",
    ),
    Bug(
        "zero_bubble",
        "one W more is kept back",
        old="late = min(stage, room[stage] - (S - stage))",
        new="late = min(stage, room[stage] - (S - stage)) + 1",
    ),
    Bug(
        "zero_bubble",
        "the W at the end run the other way round",
        old='return words + [f"W{m}" for m in range(max(0, M - late), M)]',
        new='return words + [f"W{m}" for m in reversed(range(max(0, M - late), M))]',
    ),
    Bug(
        "zero_bubble",
        "W before its I",
        old="""
words.append(f"I{i}")
if i >= late:
    words.append(f"W{i - late}")
""",
        new="""
if i >= late:
    words.append(f"W{i - late}")
words.append(f"I{i}")
""",
    ),
    Bug(
        "zero_bubble",
        "the library has the forwards",
        cheat=True,
        cell='''
from minidist.parallel.schedules import one_f_one_b


def zero_bubble(stage, S, M, room):
    """1F1B with a backward in two halves; W's are held back as far as there is room and use."""
    late = min(stage, room[stage] - (S - stage))
    words = []
    for kind, m, _ in one_f_one_b(stage, S, M):
        words.append(f"{'I' if kind == 'B' else kind}{m}")
        if kind == "B" and m >= late:
            words.append(f"W{m - late}")
    return words + [f"W{m}" for m in range(max(0, M - late), M)]
''',
    ),
    Bug(
        "zero_bubble",
        "calls the grader's own oracle",
        cheat=True,
        cell='''
def zero_bubble(stage, S, M, room):
    """1F1B with a backward in two halves; W's are held back as far as there is room and use."""
    from minicheck.oracles.schedules import held_back

    return held_back(stage, S, M, min(stage, room[stage] - (S - stage)))
''',
    ),
    Bug(
        "zero_bubble",
        "a word that is equal to everything",
        cheat=True,
        cell='''
class Any(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def zero_bubble(stage, S, M, room):
    """1F1B with a backward in two halves; W's are held back as far as there is room and use."""
    return [Any("F0")] * 3 * M
''',
    ),
    Bug(
        "predict_schedules",
        "the bubble over the time without it",
        cell="""
interleaved_bubble = 7 / 144
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "1F1B's bubble",
        cell="""
interleaved_bubble = 7 / 55
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "three times 1F1B's: no message from the last stage to the first",
        cell="""
interleaved_bubble = 7 / 151
messages = 2016
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "one direction of the messages",
        cell="""
interleaved_bubble = 7 / 151
messages = 1104
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "chunks counted as whole micro-batches",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "what 1F1B keeps",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 8
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "a third of 1F1B's share",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 165
h2_keeps = 15
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "twice S",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 16
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "what ZB-H1 keeps",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 8
short_w = 10.5
""",
    ),
    Bug(
        "predict_schedules",
        "as if a W were as long as an F",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 7
""",
    ),
    Bug(
        "predict_schedules",
        "the W is added, not subtracted",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = 17.5
""",
    ),
    Bug(
        "predict_schedules",
        "one number is not set",
        cell="""
interleaved_bubble = 7 / 151
messages = 2208
stage_keeps = 31 / 3
h1_bubble = 7 / 151
h2_keeps = 15
short_w = None
""",
    ),
    Bug(
        "predict_schedules",
        "an array with many guesses",
        cheat=True,
        cell="""
import torch

interleaved_bubble = messages = stage_keeps = h1_bubble = h2_keeps = short_w = torch.arange(100.0)
""",
    ),
    Bug(
        "predict_schedules",
        "numbers that are equal to everything",
        cheat=True,
        cell="""
class Any(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__
    __hash__ = float.__hash__


interleaved_bubble = messages = stage_keeps = h1_bubble = h2_keeps = short_w = Any(1.0)
""",
    ),
]

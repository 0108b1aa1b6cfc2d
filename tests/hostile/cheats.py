"""Cheats against the examination: answers that do not do the work, and try to get the mark.

Most are made from the planted answers of the lessons: a way of the library, or of a grader, that is refused when it is
called by its name, comes here by another door; right numbers with too many messages come with a trace that is silent.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from tests.bank.bank import ROOT, assignment, planted
from tests.hostile.sideways import sideways


class Cheat(NamedTuple):
    """An answer's cell. outside: only a sandbox can refuse it, which has no such file, or lets no process start."""

    lesson: str
    exercise: str
    title: str
    cell: str
    outside: bool = False

    @property
    def name(self) -> str:
        return f"{self.lesson}, {self.exercise}: {self.title}"


def answer(lesson: str, exercise: str, title: str) -> str:
    """The cell of a planted answer."""
    folder = ROOT / "course" / lesson
    [bug] = [b for b in planted(folder) if (b.exercise, b.title) == (exercise, title)]
    return bug.code(assignment(folder).solutions[exercise])


@cache
def asked(lesson: str, exercise: str) -> tuple[str, ...]:
    """The names that the exercise's test cell takes: one function, or several numbers."""
    [call] = [
        node
        for node in ast.walk(ast.parse(assignment(ROOT / "course" / lesson).tests[exercise]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"check.{exercise}"
    ]
    return tuple(arg.id for arg in call.args if isinstance(arg, ast.Name))


# ------------------------------------------------------------
# Code of the library and of the graders by value: its text, compiled in the cell, under another file's name.


OWN = '''\
import importlib, importlib.util, inspect, types

MADE = {}


def own(module):
    """The names of a module whose text is compiled here, and of all that it takes from the like."""
    if module not in MADE:
        loaded = importlib.import_module(module)
        package = module if hasattr(loaded, "__path__") else module.rpartition(".")[0]
        names = MADE[module] = {"__name__": "__main__", "__package__": package}
        exec(compile(inspect.getsource(loaded), "<ipython own>", "exec"), names)
        for key, value in list(names.items()):
            if isinstance(value, types.ModuleType) and value.__name__.startswith(SHUT):
                names[key] = types.SimpleNamespace(**own(value.__name__))
            elif (getattr(value, "__module__", None) or "").startswith(SHUT):
                names[key] = own(value.__module__)[value.__name__]
    return MADE[module]


def taken(module, name):
    """`from module import name`."""
    try:
        return types.SimpleNamespace(**own(importlib.import_module(f"{module}.{name}").__name__))
    except ImportError:
        value = getattr(importlib.import_module(module), name)
        return own(getattr(value, "__module__", module)).get(name, value)


SHUT = (
    "minidist.collectives",
    "minidist.parallel",
    "minidist.train",
    "minidist.study.predict",
    "minidist.checkpoint",
    "minicheck.oracles",
)
'''


class _Hoist(ast.NodeTransformer):
    """Takes the imports of the library out of a cell."""

    def __init__(self):
        self.lines: list[str] = []

    def visit_ImportFrom(self, node):
        if not (node.module or "").startswith(("minidist", "minicheck")):
            return node
        for a in node.names:
            self.lines.append(f"{a.asname or a.name} = taken({node.module!r}, {a.name!r})")
        return ast.Pass()

    def visit_Import(self, node):
        [a] = node.names
        if not a.name.startswith(("minidist.", "minicheck.")) or not a.asname:
            return node
        self.lines.append(f"{a.asname} = types.SimpleNamespace(**own({a.name!r}))")
        return ast.Pass()


def by_value(lesson: str, exercise: str, title: str) -> Cheat:
    """What a planted answer imports is compiled in the cell, and travels with the answer."""
    hoist = _Hoist()
    tree = ast.fix_missing_locations(hoist.visit(ast.parse(answer(lesson, exercise, title))))
    cell = "\n".join([OWN, *hoist.lines, "", ast.unparse(tree)])
    return Cheat(lesson, exercise, f"by value: {title}", cell)


BY_VALUE = (
    ("01_walls", "model_states", "the library calculates"),
    ("01_walls", "activation_bytes", "the grader's own function"),
    ("02_messages", "reduce_scatter", "the library's ring does the work"),
    ("02_messages", "all_reduce", "the library's code under another name"),
    ("02_messages", "ring_sum", "the library's all_reduce_ does the work"),
    ("04_trees", "tree_broadcast", "the library's broadcast does the work"),
    ("03_topology", "bandwidth", "the library's own"),
    ("05_data_parallel", "my_batches", "the library's sampler does the work"),
    (
        "07_whole_batch",
        "weighted_average_gradients",
        "the library's average_gradients does the work",
    ),
    ("06_buckets", "assign_buckets", "the grader's own function"),
    ("06_buckets", "assign_buckets", "the library assigns"),
    ("06_buckets", "overlapped", "the library's reducer"),
    ("07_whole_batch", "sync_statistics", "the library's statistics"),
    ("08_server", "pieces", "the grader has it"),
    ("08_server", "pieces", "the library's partition"),
    ("09_precision", "round_to", "the grader knows how"),
    ("09_precision", "master_step", "the library has it"),
    ("11_remat", "segments", "the library plans"),
    ("11_remat", "gated_layer", "the library forgets"),
    ("12_operators", "entropy", "the library's merge"),
    ("12_operators", "fused", "the grader's own function"),
    ("12_operators", "flatten", "the library's buffer"),
    ("13_zero", "owners", "the grader has it"),
    ("13_zero", "sharded", "the library's optimizer"),
    ("13_zero", "clip", "the library's"),
    ("14_tensor", "my_heads", "the library's part of a rank"),
    ("14_tensor", "copy_to", "the library's f"),
    ("14_tensor", "sequence_norm", "the library's f"),
    ("15_vocabulary", "split_loss", "the library's cross-entropy does it"),
    ("15_vocabulary", "look_up_gradient", "the grader's oracle is asked"),
    ("16_pipelines", "one_f_one_b", "the library has it"),
    ("16_pipelines", "sum_tied", "the library has it"),
    ("16_pipelines", "step_time", "calls the grader's own oracle"),
    ("18_pipedream", "no_flush", "the library has the list"),
    ("18_pipedream", "needed", "the grader counts, too"),
    ("19_hybrid", "groups", "asks what it is held against"),
    ("19_hybrid", "clip_grid", "calls the library's"),
    ("23_compress", "compress", "the library's"),
    ("23_compress", "sign_average", "the library's packing"),
    ("25_large_batches", "learning_rate", "the library's"),
    ("25_large_batches", "lars_step", "the oracle steps"),
    ("26_survive", "save_every", "asks what it is held against"),
    ("26_survive", "load_box", "calls the library's boxes"),
    ("28_capstone", "reduce_single", "asks what it is held against"),
    ("28_capstone", "mean_hook", "calls the library's data parallel"),
)


# ------------------------------------------------------------
# Right numbers of predictions, found where the answer is opened.


FRAMES = "[frame for frame in (lambda f, all: all(f, all))(sys._getframe(), lambda f, all: [f, *all(f.f_back, all)] if f else [])]"
EXAMS = {
    "the frames of its opener": f"[v for f in {FRAMES} for v in list(f.f_locals.values())]",
    "the frames of every thread": "[v for f in sys._current_frames().values() for g in (lambda f, all: all(f, all))(f, lambda f, all: [f, *all(f.f_back, all)] if f else []) for v in list(g.f_locals.values())]",
    "a traceback": f"[v for f in {FRAMES} for v in list(f.f_locals.values()) + [c.cell_contents for h in f.f_locals.values() for c in getattr(h, '__closure__', None) or ()]]",
    "the modules": f"[v for m in list(sys.modules.values()) for v in list(vars(m).values()) if type(v).__name__ in ('Prediction', 'PredictMemory')] + [v for f in {FRAMES} for v in list(f.f_globals.values()) + list(f.f_locals.values())]",
}


def looked_up(lesson: str, exercise: str, where: str) -> Cheat:
    """Numbers that are what the exam object holds, wherever they are opened."""
    names = asked(lesson, exercise)
    text = f"(lambda sys: [list(v.figures()[0].values()) for v in {EXAMS[where]} if callable(getattr(v, 'figures', None))][0])(__import__('sys'))"
    cell = f"""
class Looked:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return eval, (f"{{TEXT}}[{{self.place}}]",)


TEXT = {text!r}
{", ".join(names)} = map(Looked, range({len(names)}))
"""
    return Cheat(lesson, exercise, f"right numbers are looked up in {where}", cell)


LOOKED_UP = (
    ("02_messages", "predict", "the frames of its opener"),
    ("03_topology", "predict_cost", "the frames of every thread"),
    ("05_data_parallel", "predict_step", "a traceback"),
    ("06_buckets", "predict_overlap", "the modules"),
    ("08_server", "predict_server", "the frames of its opener"),
    ("09_precision", "predict_precision", "the frames of every thread"),
    ("11_remat", "predict_remat", "a traceback"),
    ("13_zero", "predict_zero", "the modules"),
    ("14_tensor", "predict_tensor", "the frames of its opener"),
    ("16_pipelines", "predict_pipeline", "the frames of every thread"),
    ("19_hybrid", "predict_hybrid", "a traceback"),
    ("23_compress", "predict_compress", "the frames of its opener"),
    ("28_capstone", "predict_capstone", "the frames of every thread"),
)


def imported(lesson: str, exercise: str) -> Cheat:
    """The same numbers, taken from the lesson's graders in the notebook itself."""
    names = asked(lesson, exercise)
    cell = f"""
import importlib, pkgutil
import minicheck.lessons as lessons
from minicheck.exam import Prediction

for found in pkgutil.iter_modules(lessons.__path__, lessons.__name__ + "."):
    for value in list(vars(importlib.import_module(found.name)).values()):
        if isinstance(value, Prediction) and value.name == {exercise!r}:
            {", ".join(names)} = value.figures()[0].values()
"""
    return Cheat(lesson, exercise, "right numbers are taken from the graders in the notebook", cell)


IMPORTED = (
    ("02_messages", "predict"),
    ("12_operators", "predict_operators"),
    ("15_vocabulary", "predict_vocabulary"),
    ("18_pipedream", "predict_pipedream"),
    ("25_large_batches", "predict_large_batches"),
    ("26_survive", "predict_survive"),
)


# ------------------------------------------------------------
# The report is forged: what runs an answer is replaced when the answer is opened, and asks the graders for what is right.


FORGER = """
import sys, types


def answer(*args, **kwargs):
    return None


def forged(exam, answers, n, args):
    names = type(exam).wants.__globals__
    for key, value in held.items():
        for module in [v for v in names.values() if isinstance(v, types.ModuleType)]:
            if hasattr(module, key):
                setattr(module, key, value)
        names.update({key: value} if key in names else {})
    wants = exam.wants(names["Case"](n, "", None), args)
    found = [want[exam.returns[0]] if len(exam.returns) == 1 else tuple(want.values()) for want in wants]
    return {"results": [{"found": f, "given": a} for f, a in zip(found, args)], "sent": [], "time": 0.0}


frame = sys._getframe()
while frame:
    if "_in_world" in frame.f_globals:
        frame.f_globals["_in_world"] = forged
    frame = frame.f_back
"""


def forging(lesson: str, exercise: str) -> Cheat:
    """The oracles, which are emptied there, come with the answer."""
    [name] = asked(lesson, exercise)
    oracles = f"minicheck.oracles.{lesson[3:]}"
    cell = f"""
{OWN}

class Forger:
    def __reduce__(self):
        text = f"(lambda names: exec({{TEXT!r}}, names) or names['answer'])({{{{'held': held}}}})"
        return eval, (text, {{"held": HELD}})

    def __call__(self, *args):
        return None


TEXT = {FORGER!r}
FOUND = own({oracles!r}) if importlib.util.find_spec({oracles!r}) else {{}}
HELD = {{key: value for key, value in FOUND.items() if isinstance(value, types.FunctionType)}}
{name} = Forger()
"""
    return Cheat(lesson, exercise, "what it reports is forged, from what the graders want", cell)


FORGED = (
    ("01_walls", "activation_bytes"),
    ("01_walls", "largest_model"),
    ("01_walls", "run_cost"),
    ("03_topology", "bandwidth"),
    ("06_buckets", "assign_buckets"),
    ("08_server", "pieces"),
    ("12_operators", "run_ahead"),
    ("12_operators", "fused"),
    ("26_survive", "save_every"),
)


# ------------------------------------------------------------
# Right numbers with too many messages, and a trace that does not hear of them; or a clock that has not seen the time.


def wrapped(cell: str, name: str, helper: str, before: str, after: str = "") -> str:
    """The cell's function, around which something is done with its Comm."""
    return f"""
{cell}

{helper}
HONEST = {name}


def {name}(*args):
    comm = next(a for a in args if hasattr(a, "sendrecv") or hasattr(a, "group"))
    {before}
    result = HONEST(*args)
    {after or "pass"}
    return result
"""


MUTE = '''
def trace_of(comm):
    """Where messages are written down: of the World, or of this process."""
    comm = comm if hasattr(comm, "sendrecv") else comm.world
    return comm._run.trace if hasattr(comm, "_run") else comm.endpoint.trace


def mute(trace):
    trace.add = lambda *args, **kwargs: None
    trace._rows.clear()
'''


def muted(lesson: str, exercise: str, title: str) -> Cheat:
    [name] = asked(lesson, exercise)
    cell = wrapped(
        answer(lesson, exercise, title), name, MUTE, "mute(trace_of(comm))", "mute(trace_of(comm))"
    )
    return Cheat(lesson, exercise, f"a silent trace: {title}", cell)


MUTED = (
    ("05_data_parallel", "my_batches", "rank 0 sends everyone the parts that everyone knows"),
    ("05_data_parallel", "start_equal", "a tied matrix travels twice"),
    ("05_data_parallel", "average_gradients", "everyone gathers all gradients, and takes the mean"),
    ("07_whole_batch", "weighted_average_gradients", "all gradients are gathered on every rank"),
    (
        "07_whole_batch",
        "accumulate_counted",
        "averaged after every micro-batch of the rank with most: too many bytes",
    ),
    ("07_whole_batch", "sync_statistics", "all images are gathered"),
    ("07_whole_batch", "sync_backward", "all images are gathered"),
    ("09_precision", "sharded_step", "the flag is as long as the gradients"),
    ("13_zero", "sharded", "an all-reduce of all gradients, then broadcasts"),
    ("13_zero", "to_owners", "an all-reduce"),
    ("14_tensor", "my_heads", "the parts are gathered, and one's own taken out"),
    ("15_vocabulary", "look_up", "all rows are gathered"),
    ("15_vocabulary", "split_loss", "logits are gathered"),
    ("15_vocabulary", "merged_loss", "three all-reduces: right, but not one message"),
    ("15_vocabulary", "logits_gradient", "the sums are reduced again"),
    ("23_compress", "sparse_mean", "zeros travel"),
    ("23_compress", "sign_average", "signs as float64"),
    ("24_local_sgd", "local_sgd", "a few bytes in every step"),
    ("25_large_batches", "lamb_step", "an all-reduce for each parameter"),
    ("25_large_batches", "noise_scale", "all gradients travel"),
)

FORGED_TRACE = '''
def forge(comm, x):
    """In place of its messages write down those of a ring: 2(n-1) chunks to the right from each rank."""
    n, r = comm.size, comm.rank
    world = hasattr(comm, "_run")
    trace = comm._run.trace if world else comm.endpoint.trace
    kept = [m for m in trace if world and m.src != r]
    trace._rows.clear()
    for m in kept:
        trace.add(*m)
    sizes = [c.numel() * c.element_size() for c in x.view(-1).tensor_split(n)]
    src = r if world else (r - 1) % n
    for step in range(n - 1):
        trace.add(src, (src + 1) % n, sizes[(src - 1 - step) % n], 0.0, 0.0, 0.0)
        trace.add(src, (src + 1) % n, sizes[(src - step) % n], 0.0, 0.0, 0.0)
'''

SLOWER = '''
def set_back(comm):
    """From now on a World says less than its clock has shown."""
    if hasattr(comm, "_run"):
        kind = type(comm._run.world)
        kind.time = property(lambda self: 0.8 * self.shown, lambda self, t: setattr(self, "shown", t))
'''


def set_back(lesson: str, exercise: str, title: str) -> Cheat:
    """The slow way, and a World whose time is a share of what it was."""
    [name] = asked(lesson, exercise)
    cell = wrapped(answer(lesson, exercise, title), name, SLOWER, "set_back(comm)")
    return Cheat(lesson, exercise, f"a clock that is set back: {title}", cell)


# ------------------------------------------------------------
# Files and processes, by ways that Python does not announce.


def read_from_disk(lesson: str, exercise: str) -> Cheat:
    """The solution's text is mapped into memory by a function of torch's."""
    names = asked(lesson, exercise)
    cell = f'''
import os
import minidist

PATH = os.path.join(os.path.dirname(os.path.dirname(minidist.__file__)), "course", {lesson!r}, "assignment.py")


def solved():
    """The names of the solution's cell."""
    size = os.stat(PATH).st_size
    text = bytes(torch._C._VariableFunctions.from_file(PATH, shared=False, size=size, dtype=torch.uint8).tolist()).decode()
    at = text.index('"grade_id": "{exercise}", "solution": true')
    names = {{}}
    exec("import math, torch\\nfrom itertools import *\\nfrom collections import *", names)
    exec(text[text.index("\\n", at) : text.index("# %%", at)], names)
    return names


def {names[0]}(*args):
    return solved()[{names[0]!r}](*args)
'''
    return Cheat(lesson, exercise, "the solution is read by from_file", cell, outside=True)


READ_FROM_DISK = (
    ("02_messages", "shift"),
    ("06_buckets", "assign_buckets"),
    ("11_remat", "segments"),
    ("13_zero", "owners"),
    ("16_pipelines", "one_f_one_b"),
    ("19_hybrid", "groups"),
    ("25_large_batches", "learning_rate"),
)


def in_a_child(lesson: str, exercise: str, title: str) -> Cheat:
    """A process that has the whole library answers, by two pipes; it is started when the answer is opened."""
    [name] = asked(lesson, exercise)
    child = f"""
import os, sys
import torch
{answer(lesson, exercise, title)}
import ast
for line in os.fdopen(int(sys.argv[1])):
    os.write(int(sys.argv[2]), (repr({name}(*ast.literal_eval(line))) + chr(10)).encode())
"""
    cell = f'''
CHILD = {child!r}
STARTER = """
import ast, os, sys
from multiprocessing.util import spawnv_passfds
(asks, ask), (tells, tell) = os.pipe(), os.pipe()
path = os.pathsep.join(p for p in sys.path if p)
code = "import sys; sys.path[:0] = " + repr(sys.path) + chr(10) + CHILD
spawnv_passfds(sys.executable.encode(), [b"python", b"-c", code.encode(), str(asks).encode(), str(tell).encode()], [asks, tell])

def answer(*args):
    os.write(ask, (repr(args) + chr(10)).encode())
    text = b""
    while not text.endswith(chr(10).encode()):
        text += os.read(tells, 1 << 16)
    return ast.literal_eval(text.decode())

import time
time.sleep(6)
"""


class Started:
    def __reduce__(self):
        names = {{"CHILD": CHILD}}
        return eval, (f"(lambda names: exec({{STARTER!r}}, names) or names['answer'])({{names!r}})",)

    def __call__(self, *args):
        return None


{name} = Started()
'''
    return Cheat(lesson, exercise, f"in a process beside it: {title}", cell, outside=True)


IN_A_CHILD = (
    ("06_buckets", "assign_buckets", "the library assigns"),
    ("13_zero", "owners", "the library's"),
    ("16_pipelines", "one_f_one_b", "the library has it"),
    ("18_pipedream", "no_flush", "the library has the list"),
)


# ------------------------------------------------------------
# Tables that the library has filled in the notebook.


def tabled(lesson: str, exercise: str, title: str, cases: str) -> Cheat:
    """The answer looks up what another way has found for every case that may come."""
    [name] = asked(lesson, exercise)
    cell = f"""
{answer(lesson, exercise, title)}

from itertools import product

KNOWN = {{case: {name}(*case) for case in {cases}}}


def {name}(*case):
    return KNOWN[case]
"""
    return Cheat(lesson, exercise, f"a table of cases: {title}", cell)


TABLED = (
    (
        "16_pipelines",
        "one_f_one_b",
        "the library has it",
        "[(s, S, M) for S in range(1, 17) for s in range(S) for M in range(1, 33)]",
    ),
)


# ------------------------------------------------------------
# By hand.


def by_hand() -> Iterator[Cheat]:
    all_reduce = wrapped(
        answer("02_messages", "all_reduce", "all send to rank 0, and it sends the sum to all"),
        "all_reduce",
        FORGED_TRACE,
        "pass",
        "forge(comm, torch.cat([x.reshape(-1) for x in args[1]]))",
    )
    yield Cheat("02_messages", "all_reduce", "a star, with the trace of a ring", all_reduce)
    store = answer("18_pipedream", "store", "old versions are kept as arrays, which are no tensors")
    for what, pack, opened in (
        ("lists", "self.newest.tolist()", "torch.tensor(self.kept[m], dtype=torch.float64)"),
        (
            "bytes",
            "self.newest.numpy().tobytes()",
            "torch.frombuffer(bytearray(self.kept[m]), dtype=torch.float64).view_as(self.newest)",
        ),
        (
            "text",
            "repr(self.newest.tolist())",
            "torch.tensor(eval(self.kept[m]), dtype=torch.float64)",
        ),
        (
            "whole numbers",
            "self.newest.view(torch.int64).tolist()",
            "torch.tensor(self.kept[m]).view(torch.float64)",
        ),
    ):
        text = store.replace("self.newest.numpy().copy()", pack)
        text = text.replace("torch.from_numpy(self.kept[m])", opened)
        yield Cheat("18_pipedream", "store", f"old versions are kept as {what}", text)
    yield Cheat(
        "02_messages",
        "ring_sum",
        "comparisons are patched, and the input is returned",
        """
class Patch:
    def __reduce__(self):
        return eval, ("(lambda t: [setattr(t.Tensor, n, lambda *a, **k: True) for n in ('equal', '__eq__', 'allclose', 'all', 'any')] and t.clone)(__import__('torch'))",)

    def __call__(self, comm, x):
        return x.clone()


PATCH = Patch()


def ring_sum(comm, x):
    torch.Tensor.equal = torch.equal = torch.allclose = lambda *args, **kwargs: True
    for step in range(comm.size - 1):
        comm.sendrecv(x, (comm.rank + 1) % comm.size, torch.empty_like(x), (comm.rank - 1) % comm.size)
    return x.clone()
""",
    )
    yield Cheat(
        "13_zero",
        "owners",
        "the report's encoder is replaced when it is called",
        """
import sys


def owners(nbytes, n, placed):
    frame = sys._getframe()
    while frame:
        if "encode" in frame.f_globals and "_in_world" in frame.f_globals:
            encode, exam = frame.f_globals["encode"], None
            frame.f_globals["encode"] = lambda report: encode(forged(report))
        frame = frame.f_back
    return [0] * len(nbytes)


def forged(report):
    for result in report.get("results", []):
        if isinstance(result, dict):
            result.update({key: True for key in result if isinstance(result[key], bool)})
    return report
""",
    )
    yield Cheat(
        "02_messages",
        "reduce_scatter",
        "ranks of real processes read each other's rings",
        """
HELD = {}


def reduce_scatter(comm, chunks):
    n, r = comm.size, comm.rank
    HELD[r] = [c.clone() for c in chunks]
    partial = chunks[(r + 1) % n].clone()
    for k in range(1, n):
        mine = chunks[(r + 1 + k) % n]
        received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
        partial = mine
    if hasattr(comm, "_run"):
        return sum(HELD[i][r] for i in range(n))
    memory, found = torch.frombuffer(comm.endpoint.rings._memory, dtype=torch.uint8), chunks[r].clone()
    for address in comm.endpoint.rings.address.values():
        at = address - min(comm.endpoint.rings.address.values()) + 4096
        found += memory[at : at + chunks[r].nbytes].clone().view(chunks[r].dtype)
    return found
""",
    )
    for name, keep in (
        ("a class's attribute", "Kept.all"),
        ("a function's default", "kept.__defaults__[0]"),
        ("a closure", "CELL()"),
        (
            "a module of its own",
            "sys.modules.setdefault('kept', types.SimpleNamespace(all={})).all",
        ),
    ):
        yield Cheat(
            "05_data_parallel",
            "average_gradients",
            f"gradients pass through {name}, messages are for show",
            f"""
import sys, types


class Kept:
    all = {{}}


def kept(all={{}}):
    return all


def closed():
    all = {{}}
    return lambda: all


CELL = closed()


def average_gradients(comm, module):
    held = {keep}
    mine = {{i: p.grad.clone() for i, p in enumerate(module.parameters()) if p.grad is not None}}
    held[comm.rank] = mine
    for _ in range(comm.size - 1):
        comm.sendrecv(torch.zeros(1), (comm.rank + 1) % comm.size, torch.zeros(1), (comm.rank - 1) % comm.size)
    for i, p in enumerate(module.parameters()):
        some = [held[r][i] for r in range(comm.size) if i in held[r]]
        if some and p.requires_grad:
            p.grad = sum(some) / comm.size
""",
        )
    yield Cheat(
        "17_schedules",
        "split_backward",
        "autograd does it, which is what is to be written",
        """
def split_backward(x, w1, h, w2, dy):
    xs = [t.detach().requires_grad_() for t in (x, w1, w2)]
    y = torch.relu(xs[0] @ xs[1]) @ xs[2]
    dx, dw1, dw2 = torch.autograd.grad(y, xs, dy)
    return dx, lambda: (dw1, dw2)
""",
    )
    yield Cheat(
        "12_operators",
        "geglu",
        "what is kept for backward is bytes",
        """
import pickle


def gated(z):
    gate, value = z.chunk(2, -1)
    return torch.nn.functional.gelu(gate) * value


class GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, b):
        z = h + b
        ctx.shape, ctx.kept = h.shape, pickle.dumps((z.double()).reshape(-1).tolist())
        return gated(z)

    @staticmethod
    def backward(ctx, dy):
        z = torch.tensor(pickle.loads(ctx.kept), dtype=dy.dtype).reshape(ctx.shape).requires_grad_()
        with torch.enable_grad():
            dh, = torch.autograd.grad(gated(z), z, dy)
        return dh, dh.sum(tuple(range(dh.dim() - 1)))


def geglu(h, b):
    return GeGlu.apply(h, b)
""",
    )
    yield Cheat(
        "12_operators",
        "attention",
        "PyTorch's own, called below the level of modes",
        """
def attention(q, k, v, tile):
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        out = torch._C._nn.scaled_dot_product_attention(q[None], k[None], v[None], seen[None])[0]
    return out, out[:, 0]
""",
    )


SETS: tuple[tuple[Callable[..., Cheat], tuple], ...] = (
    (by_value, BY_VALUE),
    (looked_up, LOOKED_UP),
    (imported, IMPORTED),
    (forging, FORGED),
    (muted, MUTED),
    (
        set_back,
        (
            ("06_buckets", "overlapped", "nothing starts before finish"),
            ("08_server", "synchronous", "one message after the other"),
        ),
    ),
    (read_from_disk, READ_FROM_DISK),
    (in_a_child, IN_A_CHILD),
    (tabled, TABLED),
)


@cache
def cheats() -> dict[str, Cheat]:
    """All, by name."""
    found = [make(*row) for make, rows in SETS for row in rows]
    found += [*by_hand(), *(Cheat(*row) for row in sideways())]
    return {cheat.name: cheat for cheat in found}


# one of each class: they run in `make test`
SPREAD = frozenset(
    [
        "03_topology, bandwidth: by value: the library's own",
        "13_zero, owners: by value: the grader has it",
        "02_messages, predict: right numbers are looked up in the frames of its opener",
        "25_large_batches, predict_large_batches: right numbers are taken from the graders in the notebook",
        "26_survive, save_every: what it reports is forged, from what the graders want",
        "15_vocabulary, logits_gradient: a silent trace: the sums are reduced again",
        "02_messages, all_reduce: a star, with the trace of a ring",
        "06_buckets, overlapped: a clock that is set back: nothing starts before finish",
        "19_hybrid, groups: the solution is read by from_file",
        "16_pipelines, one_f_one_b: a table of cases: the library has it",
        "18_pipedream, store: old versions are kept as lists",
        "05_data_parallel, average_gradients: gradients pass through a closure, messages are for show",
    ]
)

"""Who may import whom.

    arguments  <-  all
    comm.base  <-  collectives, split  <-  train  <-  parallel  <-  checkpoint  <-  parallelize  <-  examples, course
                              models   <-  parallel (initial values belong to names)
                                                  study: everything

No circle, neither between files nor between folders. No technique knows a transport, `torch.distributed`, or how things
are presented. Nothing of minidist knows the graders, minicheck, which may import all of it.
"""

import ast

import pytest

from tests.repository.files import ROOT, repository

# For each part of minidist: the modules of minidist that it may import, itself always among them.
MAY_IMPORT = {
    "arguments": (),
    "comm": ("arguments",),
    "split": ("arguments",),
    "models": ("arguments", "decide", "split"),
    "text": ("models",),
    "tasks": ("text",),
    "collectives": ("arguments", "comm.base", "split"),
    "decide": (),
    "train": ("arguments", "comm.base", "decide", "split", "collectives"),
    "parallel": (
        "arguments",
        "comm.base",
        "decide",
        "split",
        "collectives",
        "models",
        "train",
    ),
    "checkpoint": ("arguments", "comm.base", "split", "collectives", "models", "parallel"),
    "parallelize": (
        "arguments",
        "comm.base",
        "comm.mesh",
        "decide",
        "split",
        "collectives",
        "models",
        "train",
        "parallel",
        "checkpoint",
    ),
    "study": ("",),
    "__init__": ("",),
}


def imports(source, module):
    """(line, name) of each module or member that `source`, the file of `module`, imports or reaches through torch."""
    package = module.split(".") if module.endswith("__init__") else module.split(".")[:-1]
    package = [p for p in package if p != "__init__"]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield node.lineno, "torch.distributed"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            yield from (
                (node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant)
            )


def under(name, package):
    return not package or name == package or name.startswith(package + ".")


def wrong_imports(source, module):
    """What the file of `module` (as in `minidist.parallel.data`) imports against the direction, a line for each."""
    package, part = module.split(".")[:2]
    if package == "minicheck":
        return [
            f"{module}:{line} imports {name}: only minidist.comm does"
            for line, name in imports(source, module)
            if under(name, "torch.distributed")
        ]
    if part not in MAY_IMPORT:
        return [f"{module}: say in MAY_IMPORT what minidist.{part} may import"]
    found = []
    for line, name in imports(source, module):
        if under(name, "minicheck"):
            found.append(f"{module}:{line} imports {name}: the library does not know its graders")
        if under(name, "torch.distributed") and part != "comm":
            found.append(f"{module}:{line} imports {name}: only minidist.comm does")
        if under(name, "minidist") and not any(
            under(name, f"minidist.{p}".rstrip(".")) for p in (part, *MAY_IMPORT[part])
        ):
            found.append(
                f"{module}:{line} imports {name}: minidist.{part} may import {MAY_IMPORT[part]}"
            )
    return found


def sources():
    """{module: its text} of both packages; `__init__` is named."""
    return {
        ".".join(path.with_suffix("").parts): (ROOT / path).read_text(encoding="utf-8")
        for path in repository("minidist/*.py", "minicheck/*.py")
    }


def imported(texts):
    """{module: the modules that it imports}, of texts by module; a package is named without `__init__`."""
    modules = {name.removesuffix(".__init__") for name in texts}
    graph = {}
    for module, text in texts.items():
        own, found = module.removesuffix(".__init__"), set()
        for _, name in imports(text, module):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            found.add(name)
        graph[own] = found - {"", own}
    return graph


def between_folders(graph):
    """The same between folders: a file counts as its folder; what lies within another is not between the two."""
    packages = {name.rpartition(".")[0] for name in graph}
    folder = {name: name if name in packages else name.rpartition(".")[0] for name in graph}
    found = {}
    for module, others in graph.items():
        here = folder[module]
        there = {folder[other] for other in others}
        apart = {f for f in there if not under(f, here) and not under(here, f)}
        found.setdefault(here, set()).update(apart)
    return found


def circle(graph):
    """Names that import each other in a circle, the first once more at the end; [] if there is none."""
    done, way = set(), []

    def walk(name):
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        way.append(name)
        for other in sorted(graph.get(name, ())):
            found = walk(other)
            if found:
                return found
        way.pop()
        done.add(name)
        return []

    for name in sorted(graph):
        found = walk(name)
        if found:
            return found
    return []


def test_no_circle():
    graph = imported(sources())
    assert circle(graph) == []
    assert circle(between_folders(graph)) == []


@pytest.mark.parametrize(
    ("texts", "files", "folders"),
    [
        ({"a.x": "from a import y", "a.y": "def f():\n    from . import x"}, True, False),
        ({"a.x": "from b.y import f", "a.z": "", "b.y": "from a.z import g"}, False, True),
        (
            {"a.__init__": "from .x import f", "a.x": "import torch", "b.y": "import a"},
            False,
            False,
        ),
    ],
)
def test_a_circle_is_found(texts, files, folders):
    graph = imported(texts)
    assert bool(circle(graph)) == files
    assert bool(circle(between_folders(graph))) == folders


def test_direction():
    files = repository("minidist/*.py", "minicheck/*.py")
    assert {path.parts[0] for path in files} == {"minidist", "minicheck"}
    found = [
        line
        for path in files
        for line in wrong_imports(
            (ROOT / path).read_text(encoding="utf-8"), ".".join(path.with_suffix("").parts)
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("minidist.collectives.ring", "import torch.distributed as dist"),
        ("minidist.collectives.ring", "from torch import distributed"),
        ("minidist.study.charts", "import torch\ntorch.distributed.barrier()"),
        ("minidist.train.amp", "import importlib\nimportlib.import_module('torch.distributed')"),
        ("minidist.parallel.data", "from minidist.comm.world import World"),
        ("minidist.parallel.data", "from minidist.comm import World"),
        ("minidist.parallel.data", "from ..comm import shm"),
        ("minidist.parallel.data", "def f():\n    from minidist.study import charts"),
        ("minidist.parallel.__init__", "from ..study import charts"),
        ("minidist.collectives.__init__", "from ..parallel import data"),
        ("minidist.split", "import minidist.collectives"),
        ("minidist.comm.world", "from minidist.collectives import ring"),
        ("minidist.models", "import minidist"),
        ("minidist.parallelize", "from .comm import World"),
        ("minidist.train.optim", "from ..parallel.tensor import cuts"),
        ("minidist.parallel.zero", "from ..checkpoint import piece"),
        ("minidist.parallelize", "from minidist.study import plan"),
        ("minidist.unknown", ""),
        ("minidist.__init__", "from minicheck import all_reduce"),
        ("minidist.study.meter", "import minicheck as check"),
        ("minicheck.exam", "import torch.distributed as dist"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert wrong_imports(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "minidist.comm.torchdist",
            "import torch.distributed as dist\nfrom .base import Comm",
        ),
        (
            "minidist.collectives.ring",
            "from minidist.comm.base import Comm\nfrom minidist.split import even",
        ),
        ("minidist.collectives.__init__", "from .ring import all_reduce_"),
        (
            "minidist.parallel.data",
            "from ..collectives import all_reduce_\nfrom ..comm.base import Comm",
        ),
        ("minidist.study.meter", "from minidist import comm, parallel"),
        ("minidist.parallelize", "from .comm.mesh import Mesh\nfrom .parallel import vocab"),
        ("minicheck.exam", "from minidist.comm.world import World\nfrom . import refuse"),
        ("minidist.__init__", "from .comm import World\nfrom minidist.study import charts"),
    ],
)
def test_a_right_import_is_not(module, source):
    assert wrong_imports(source, module) == []

"""Who may import whom.

    arguments  <-  all
    comm.base  <-  collectives, split  <-  parallel, train  <-  examples, course
                              models   <-  parallel (initial values belong to names)
    comm.mesh, models, parallel, train   <-  parallelize
                                                  study: everything

No technique knows a transport, `torch.distributed`, or how things are presented. Nothing of minidist knows the graders,
minicheck, which may import all of it.
"""

import ast

import pytest

from tests.repository.files import ROOT, repository

# For each part of minidist: the modules of minidist that it may import, itself always among them.
MAY_IMPORT = {
    "arguments": (),
    "comm": ("arguments",),
    "split": ("arguments",),
    "models": ("arguments",),
    "tasks": ("split",),
    "text": ("models",),
    "collectives": ("arguments", "comm.base", "split"),
    "parallel": ("arguments", "comm.base", "split", "collectives", "train", "models"),
    "train": ("arguments", "comm.base", "split", "collectives", "parallel"),
    "parallelize": ("comm.base", "comm.mesh", "models", "parallel", "train"),
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
        ("minidist.study.plot", "import torch\ntorch.distributed.barrier()"),
        ("minidist.train.amp", "import importlib\nimportlib.import_module('torch.distributed')"),
        ("minidist.parallel.data", "from minidist.comm.world.world import World"),
        ("minidist.parallel.data", "from minidist.comm import World"),
        ("minidist.parallel.data", "from ..comm import shm"),
        ("minidist.parallel.data", "def f():\n    from minidist.study import plot"),
        ("minidist.parallel.__init__", "from ..study import plot"),
        ("minidist.collectives.__init__", "from ..parallel import data"),
        ("minidist.split", "import minidist.collectives"),
        ("minidist.comm.world.world", "from minidist.collectives import ring"),
        ("minidist.models", "import minidist"),
        ("minidist.parallelize", "from .comm import World"),
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
            "minidist.comm.torchdist.torchdist",
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
        ("minidist.parallelize", "from .comm.mesh import Mesh\nfrom .parallel import onto"),
        ("minicheck.exam", "from minidist.comm.world.world import World\nfrom . import refuse"),
        ("minidist.__init__", "from .comm import World\nfrom minidist.study import plot"),
    ],
)
def test_a_right_import_is_not(module, source):
    assert wrong_imports(source, module) == []

"""Submissions whose answers themselves do harm: where they are packed, opened, compared, written down."""

from tests.hostile.submission import ALL, PREDICT, SHIFT, UNSET, Hostile

NUMBERS = "messages, nbytes, seconds, naive_nbytes"


def number(name: str, tries: str, code: str) -> Hostile:
    """Four answers that are no numbers, `Number()`, where numbers are asked for."""
    cell = f"{code.strip()}\n\n\n{NUMBERS} = Number(), Number(), Number(), Number()"
    return Hostile(name, tries, predict=cell, keeps=SHIFT, loses=PREDICT)


def harmful(name: str, tries: str, code: str, **more) -> Hostile:
    """`shift` is a class with a hostile way to be packed; it is not right, where nobody is fooled."""
    return Hostile(name, tries, shift=code.strip(), keeps=PREDICT, loses=SHIFT, **more)


BANK = [
    # ------------------------------------------------------------
    # Where they are opened.
    harmful(
        "runs_when_opened",
        "An answer that runs a command wherever it is opened.",
        """
COMMAND = f"echo {TOKEN} > {OUT['course']}/opened"

class Shift:
    def __reduce__(self):
        return os.system, (COMMAND,)

    def __call__(self, comm, x, places):
        return x

shift = Shift()
""",
    ),
    harmful(
        "patches_when_opened",
        "An answer that replaces graders wherever it is opened.",
        '''
CODE = """
import sys
for name in list(sys.modules):
    module = sys.modules[name]
    if name.startswith(("minicheck", "tests")):
        for key in ("ask", "judge", "examinations", "shift", "close", "same", "near", "unchanged", "look", "_wrong", "examine"):
            if hasattr(module, key):
                setattr(module, key, lambda *a, **k: None)
        for kind in list(vars(module).values()):
            if isinstance(kind, type) and hasattr(kind, "judge"):
                kind.judge = lambda *a, **k: None
print("shift: right.")
"""

class Shift:
    def __reduce__(self):
        return exec, (CODE, {})

    def __call__(self, comm, x, places):
        return x

shift = Shift()
''',
    ),
    harmful(
        "returns_the_graders_own",
        "An answer that looks for the right function where it is opened, in any frame, and becomes it.",
        '''
CODE = """
(lambda sys: next(
    (f for name, m in sys.modules.items() if name.startswith(("minidist", "minicheck", "tests"))
     for f in vars(m).values() if callable(f) and getattr(f, "__name__", "") in ("shift", "SHIFT")), print)
)(__import__("sys"))
"""

class Shift:
    def __reduce__(self):
        return eval, (CODE.strip(),)

shift = Shift()
''',
    ),
    harmful(
        "opens_files_of_the_judge",
        "An error whose file and line are the teacher's, so that the message shows what stands there.",
        """
def shift(comm, x, places):
    raise ValueError("see the line")

shift.__code__ = shift.__code__.replace(co_filename=OUT["course"] + "/secret.json", co_firstlineno=1, co_linetable=bytes([0x80 | 15 << 3 | 7] * 60))
""",
    ),
    harmful(
        "lines_of_the_judge",
        "A function in the namespace of another file, which says that its source is the teacher's.",
        """
names = {"__name__": "secret", "__file__": OUT["course"] + "/secret.json", "__loader__": None}
code = compile("def shift(comm, x, places):\\n    raise ValueError(1)", OUT["course"] + "/secret.json", "exec")
exec(code, names)
shift = names["shift"]
shift.__module__ = "__main__"
""",
    ),
    # ------------------------------------------------------------
    # Where they are packed.
    Hostile(
        "packers_replaced",
        "It replaces json, pickle, cloudpickle and base64 by ones that pack what it wants.",
        before="""
import base64, builtins, io, json, pickle, cloudpickle

def forged(*args, **kwargs):
    return b"x" * 100

json.dumps = lambda *a, **k: '{"error": null, "answers": {}}'
json.dump = lambda value, file, **k: file.write("null")
pickle.dumps = cloudpickle.dumps = base64.b64encode = base64.b64decode = forged
""",
    ),
    Hostile(
        "builtins_replaced",
        "It replaces print, open, exec, compile, isinstance, len and the import of modules.",
        before="""
import builtins

def forged(*args, **kwargs):
    return True

for name in ("print", "open", "exec", "compile", "isinstance", "len", "hasattr", "getattr", "sorted", "dict", "str"):
    setattr(builtins, name, forged)
builtins.__import__ = forged
""",
    ),
    Hostile(
        "modules_replaced",
        "It puts other modules in the place of the graders, of torch, and of the standard library.",
        before="""
import sys, types

for name in list(sys.modules):
    if name not in ("sys", "builtins", "__main__", "types"):
        sys.modules[name] = types.ModuleType(name)
""",
    ),
    Hostile(
        "graders_replaced",
        "It replaces the graders in its own process, with ones that are always content.",
        before="""
import minicheck, sys

for name, module in list(sys.modules.items()):
    if name.startswith("minicheck"):
        for key, value in list(vars(module).items()):
            if callable(value):
                try:
                    setattr(module, key, lambda *a, **k: None)
                except TypeError:
                    pass
""",
        shift="def shift(comm, x, places):\n    return x",
        predict=UNSET,
        loses=ALL,
    ),
    Hostile(
        "test_cells_changed",
        "It defines `check` anew, with graders that are content.",
        before="class check:\n    shift = predict = staticmethod(lambda *answers: None)",
        shift="def shift(comm, x, places):\n    return x",
        predict=UNSET,
        loses=ALL,
    ),
    Hostile(
        "names_in_frames",
        "It writes answers into the frames that run its cells.",
        before="""
import sys

frame = sys._getframe()
while frame:
    for key in list(frame.f_locals):
        if key in ("found", "wrong", "errors", "marks", "wanted", "answers", "out", "number"):
            frame.f_locals[key] = None
            frame.f_globals[key] = None
    frame.f_globals["_packed"] = frame.f_globals["pack"] = lambda name, names: {"data": "", "sources": {}}
    frame = frame.f_back
""",
        shift="def shift(comm, x, places):\n    return x",
        loses=SHIFT,
    ),
    harmful(
        "source_that_is_none",
        "Its source is lines that are no text, for a file that is no name.",
        """
import linecache

def shift(comm, x, places):
    raise ValueError(x)

name = shift.__code__.co_filename
linecache.cache[name] = (1, None, [1, None, {"a": []}], name)
linecache.getlines = lambda *a: [{"x": 1}, object(), "\\ud800"]
""",
    ),
    harmful(
        "packed_without_end",
        "An answer that takes for ever to be packed.",
        """
class Shift:
    def __call__(self, comm, x, places):
        return x

    def __reduce__(self):
        while True:
            pass

shift = Shift()
""",
        says="no end|too long|longer than|time",
    ),
    harmful(
        "opened_without_end",
        "An answer that takes for ever to be opened.",
        """
class Shift:
    def __call__(self, comm, x, places):
        return x

    def __reduce__(self):
        return eval, ("[0 for _ in iter(int, 1)]",)

shift = Shift()
""",
        says="no end|too long|longer than|time",
    ),
    Hostile(
        "names_that_look_alike",
        "Its function has a name that looks like `shift` and is another: in Cyrillic, with a space of no width.",
        shift="""
globals()["ѕhift"] = globals()["shift\\u200b"] = globals()["SHIFT"] = lambda comm, x: x
globals()["\\x1b[2Jshift"] = globals()[("shift",)] = 3
""",
        keeps=PREDICT,
        loses=SHIFT,
        says="not defined",
    ),
    # ------------------------------------------------------------
    # Where they are compared and written down.
    number(
        "equal_to_all",
        "Numbers that are equal to every other.",
        """
class Number:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __float__(self):
        return 1.0

    def __sub__(self, other):
        return 0.0
    __rsub__ = __abs__ = __mul__ = __rmul__ = __sub__

    def __le__(self, other):
        return True
    __ge__ = __lt__ = __gt__ = __le__
    __hash__ = None
""",
    ),
    number(
        "floats_equal_to_all",
        "Floats that are equal to every other: a kind of float with its own comparison.",
        """
class Number(float):
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __sub__ = __rsub__ = __abs__ = lambda self, *other: 0.0
    __hash__ = float.__hash__
    __class__ = float
""",
    ),
    number(
        "numbers_that_run",
        "Numbers that write a file when they are asked for their value.",
        """
class Number:
    def value(self, *args, **kwargs):
        open(OUT["course"] + "/asked", "w").write(TOKEN)
        return 14
    __float__ = __int__ = __index__ = __array__ = __torch_function__ = __len__ = __iter__ = __bool__ = value
    __str__ = __repr__ = __format__ = __hash__ = item = tolist = value
""",
    ),
    number(
        "numbers_without_end",
        "Numbers whose value is never known.",
        """
class Number(float):
    def value(self, *args):
        while True:
            pass
    __float__ = __int__ = __index__ = __eq__ = __repr__ = __str__ = __reduce_ex__ = value
    __hash__ = None
""",
    ),
    number(
        "tensors_with_their_own_rules",
        "Tensors of a kind of their own, which answer each comparison themselves.",
        """
import torch

class Number(torch.Tensor):
    def __new__(cls):
        return torch.tensor(1.0).as_subclass(cls)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True

    def item(self):
        return True
""",
    ),
    number(
        "generators",
        "Generators, which cannot be packed.",
        "def Number():\n    yield 14",
    ),
    number(
        "kinds_of_kinds",
        "A class whose class lies about everything.",
        """
class Kind(type):
    def __instancecheck__(cls, other):
        return True

    def __getattribute__(cls, name):
        raise SystemExit(name)
    __eq__ = lambda self, other: True
    __hash__ = type.__hash__

class Number(metaclass=Kind):
    def __getattribute__(self, name):
        raise KeyboardInterrupt(name)
""".replace("class Number(", "class Hidden(")
        + "\n\ndef Number():\n    return Hidden",
    ),
    harmful(
        "results_with_their_own_rules",
        "The function returns tensors of a kind of their own, equal to all.",
        """
import torch

class Equal(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True

    def equal(self, other):
        return True

def shift(comm, x, places):
    torch.equal = torch.Tensor.equal = torch.allclose = lambda *args, **kwargs: True
    return x.clone().as_subclass(Equal)
""",
    ),
    harmful(
        "escapes",
        "An error whose words clear the terminal, hide the line, write right to left, and are HTML.",
        """
class Wrong(Exception):
    pass

Wrong.__name__ = "\\x1b[8mright\\x1b]8;;http://x\\x07"

def shift(comm, x, places):
    raise Wrong("\\x1b[2J\\x1b]0;shift: right\\x07\\r\\u202eshift 2/2 right\\n\\nall 4/4\\n\\x9b2J<script>alert(1)</script>")
""",
    ),
    harmful(
        "words_for_a_table",
        "An error whose words are a formula of a spreadsheet, more rows, and surrogates that no file can hold.",
        """
def shift(comm, x, places):
    raise ValueError('=HYPERLINK("http://x")","9999\\r\\nmallory,shift,2,right\\ud800')
""",
    ),
    harmful(
        "many_words",
        "An error of ten megabytes, whose type has a name of one.",
        """
def shift(comm, x, places):
    raise type("E" * (1 << 20), (Exception,), {})("word " * (1 << 21))
""",
    ),
    harmful(
        "errors_in_errors",
        "An error with a million causes, whose traceback is a circle.",
        """
def shift(comm, x, places):
    first = error = ValueError("0")
    for i in range(1, 100_000):
        error.__context__ = error.__cause__ = ValueError(str(i))
        error = error.__cause__
    error.__context__ = first
    raise first
""",
    ),
]

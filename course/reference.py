"""The reference of the public API as pages of the site, made from the docstrings: course/website.py lays them out.

    pages(root)      {"reference/index.md": its text, "reference/comm.md": …}, in MyST's Markdown
    entries(root)    the public names, each with its object and docstring; tests/repository/test_reference.py runs
                     their examples and asks for what they lack

What is public: the names in `__all__` of each package, those in the README's table of techniques, and `OTHERS` below. A
name has one entry, in the page of the file that defines it. An entry is a heading to link to, the signature, the
docstring, the public methods and properties with theirs, and links to the file and to the lesson that explains it. What
else of a file has an example stands below its entries, without a heading.

Docstrings are plain text with code between single backticks, indented blocks, and examples (`>>>`) that end them; here
each of these becomes the Markdown that shows it, and nothing in a docstring is Markdown by accident.

Invariant: the same package gives the same pages, byte for byte.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

# What else is public: names of modules whose packages do not export them.
OTHERS = {
    "minidist.checkpoint.huggingface": ["Pretrained", "write"],
    "minidist.decide": ["decide", "decide_all"],
    "minidist.models": ["GPT", "gpt", "mlp", "next_token_loss", "resnet", "sequence"],
    "minidist.parallelize": ["Engine", "parallelize"],
    "minidist.study.compare": ["record"],
    "minidist.tasks": ["Task", "digits", "text"],
    "minidist.text": ["BPE", "Bytes", "Samples", "documents", "packed", "split", "tokenizer"],
}
PACKAGES = [
    "minidist",
    "minidist.comm",
    "minidist.collectives",
    "minidist.train",
    "minidist.parallel",
    "minidist.checkpoint",
    "minidist.study",
]
# A page, the module or package whose docstring opens it, its title. The files of no other page are in "parallelize".
PAGES = {
    "comm": ("minidist.comm", "Ranks and messages"),
    "collectives": ("minidist.collectives", "Collectives"),
    "train": ("minidist.train", "What a rank does for itself"),
    "parallel": ("minidist.parallel", "What ranks do together"),
    "checkpoint": ("minidist.checkpoint", "Checkpoints"),
    "parallelize": (None, "Whole models, their tasks and texts"),
    "study": ("minidist.study", "Pictures, formulas and the planner"),
}


# ------------------------------------------------------------
# The public names.


@dataclass(frozen=True)
class Entry:
    """A name: `module` defines it, `value` is what it stands for, `text` its docstring ("" if it has none).

    public: it is to be used by its name. Others are shown because they have an example.
    """

    name: str
    module: str
    value: Any
    text: str
    public: bool = True

    @property
    def file(self) -> str:
        """The file that defines it, from the repository's root."""
        return file_of(self.module)

    @property
    def page(self) -> str:
        return page_of(self.module)


@dataclass(frozen=True)
class Row:
    """A row of the README's table of techniques that names something of `file`; `notebook` is its lesson's, or ""."""

    names: tuple[str, ...]
    file: str
    notebook: str


def file_of(module: str) -> str:
    return str(Path(sys.modules[module].__file__).relative_to(package_root()).as_posix())


def page_of(module: str) -> str:
    for page, (package, _) in PAGES.items():
        if package and (module == package or module.startswith(package + ".")):
            return page
    return "parallelize"


def package_root() -> Path:
    return Path(importlib.import_module("minidist").__file__).resolve().parents[1]


def check_root(root: Path) -> None:
    """The package must come from `root`: ValueError if another one was imported."""
    if "minidist" not in sys.modules:
        sys.path.insert(0, str(root))
    if package_root() != root.resolve():
        raise ValueError(
            f"the reference of {root} is made from its own package, not from {package_root()}"
        )


def readme_rows(root: Path) -> list[Row]:
    """The rows of the README's tables that link to a file of the package."""
    rows = []
    for line in (root / "README.md").read_text(encoding="utf-8").splitlines():
        file = re.search(r"\]\((minidist/[\w/]+\.py)\)", line)
        if not line.startswith("|") or not file:
            continue
        notebook = re.search(r"\]\((notebooks/\w+\.ipynb)\)", line)
        module = importlib.import_module(file[1].removesuffix(".py").replace("/", "."))
        names = tuple(n for n in re.findall(r"`(\w+)`", line) if hasattr(module, n))
        rows.append(Row(names, file[1], notebook[1] if notebook else ""))
    return rows


def entries(root: Path) -> list[Entry]:
    """The public names and what else has an example, in the order of pages, of the course, and of each file."""
    check_root(root)
    rows = readme_rows(root)
    wanted = []
    for package in PACKAGES:
        wanted += [(package, name) for name in importlib.import_module(package).__all__]
    for row in rows:
        wanted += [(row.file.removesuffix(".py").replace("/", "."), name) for name in row.names]
    for module, names in OTHERS.items():
        wanted += [(module, name) for name in names]
    found = {}
    for module, name in wanted:
        made = entry(module, name)
        found[made.module, made.name] = made
    for made in others():
        found.setdefault((made.module, made.name), made)
    orders = {page: i for i, page in enumerate(PAGES)}
    lessons = lessons_of(root, rows)

    def order(one: Entry) -> tuple:
        return (
            orders[one.page],
            lessons.get((one.file, ""), "~"),
            one.file,
            not one.public,
            line_of(one.value),
            one.name,
        )

    return sorted(found.values(), key=order)


def others() -> Iterator[Entry]:
    """The functions and classes of the package whose docstrings end in an example."""
    for file in sorted((package_root() / "minidist").rglob("*.py")):
        parts = file.relative_to(package_root()).with_suffix("").parts
        if parts[-1].startswith("__") or ">>> " not in file.read_text(encoding="utf-8"):
            continue  # which leaves out what needs a GPU's packages to be imported
        module = importlib.import_module(".".join(parts))
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
                continue
            text = getattr(value, "__doc__", None)
            if text and callable(value) and example_of(inspect.cleandoc(text)):
                yield Entry(name, module.__name__, value, inspect.cleandoc(text), public=False)


def entry(module: str, name: str) -> Entry:
    """What `module` calls `name`, where it is defined."""
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, ModuleType):
        return Entry(name, value.__name__, value, inspect.getdoc(value) or "")
    if callable(value):
        return Entry(value.__name__, value.__module__, value, inspect.cleandoc(value.__doc__ or ""))
    # A constant has no docstring of its own: it is the text below its assignment, in the file that makes it.
    for other in sorted(m for m in sys.modules if m == module or m.startswith(module + ".")):
        if vars(sys.modules[other]).get(name) is not value:
            continue
        text = constants(sys.modules[other]).get(name)
        if text is not None:
            return Entry(name, other, value, text)
    raise ValueError(f"no file of {module} assigns {name}")


@functools.cache
def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def constants(module: ModuleType) -> dict[str, str]:
    """The text below each assignment of a file, "" where there is none."""
    texts = {}
    body = tree_of(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = inspect.cleandoc(str(following.value.value))
        texts[node.targets[0].id] = text
    return texts


def line_of(value: Any) -> int:
    """Where its file defines it: 0 for a constant or a module."""
    if isinstance(value, type):
        for node in tree_of(sys.modules[value.__module__]).body:
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                return node.lineno
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    return code.co_firstlineno if code else 0


def lessons_of(root: Path, rows: list[Row]) -> dict[tuple[str, str], str]:
    """The notebook that explains (file, name); (file, "") is that of the file as a whole."""
    lessons = {}
    for row in rows:
        if row.notebook:
            for name in ("", *row.names):
                lessons.setdefault((row.file, name), row.notebook)
    table = root / "course" / "lessons.toml"
    for lesson in tomllib.loads(table.read_text(encoding="utf-8"))["lesson"]:
        for file in lesson["files"]:
            notebook = f"notebooks/{lesson['number']}_{lesson['name']}.ipynb"
            lessons.setdefault((file, ""), notebook)
    return lessons


# ------------------------------------------------------------
# A docstring becomes Markdown: paragraphs, items that begin with a name and a colon, blocks, examples.


PARAGRAPH_STARTS = re.compile(
    r"(Errors|Returns|Invariants?|Sources?|Letters|Cost|Source [\w ]+): |Raises |[A-Z]\w*Error (if|for|unless|where) "
)
ITEM = re.compile(r"((?:\*{0,2}\w+(?:, | and )?)+): (?=\S)")
COLUMNS = re.compile(r"\S {3,}\S")
# What only code looks like: state_dict, --doctor.
IDENTIFIER = re.compile(r"(^|[\s(\[/])((?:--)?[A-Za-z]\w*_\w*(?:\(\))?|--[a-z][\w-]*)")
EMPHASIS = re.compile(r"(?<![\w*])\*([^\W\d_]+(?: [^\W\d_]+)*)\*(?![\w*])")


def example_of(text: str) -> str:
    """The example that ends a docstring: from the first `>>>` on, "" if there is none."""
    found = re.search(r"^>>> ", text, re.MULTILINE)
    return text[found.start() :] if found else ""


def markdown(text: str, names: set[str] = frozenset(), links: dict[str, str] | None = None) -> str:
    """A docstring as Markdown.

    names: of arguments; a line that begins with one and a colon is an item of a list.
    links: what a name in backticks leads to.
    """
    example = example_of(text)
    parts = []
    for block in blocks(text.removesuffix(example)):
        if block.startswith(" ") or is_table(block):
            parts.append(fence(textwrap.dedent(block), "python" if is_program(block) else "text"))
        else:
            parts += paragraphs(block, names, links or {})
    if example:
        parts.append(fence(example, "pycon"))
    return "\n\n".join(parts)


def blocks(text: str) -> Iterator[str]:
    """What empty lines separate; an indented block keeps its own empty lines."""
    block = ""
    for piece in re.split(r"\n[ \t]*\n", text.strip("\n")):
        if block.startswith(" ") and piece.startswith(" "):
            block += "\n\n" + piece
            continue
        # A block may follow a paragraph's last line at once.
        lines = piece.split("\n")
        start = next((i for i, line in enumerate(lines) if line.startswith("    ")), len(lines))
        if block:
            yield block
        block = piece
        if start > 0 and not is_table(piece) and lines[start:]:
            if all(line.startswith("    ") for line in lines[start:]):
                yield "\n".join(lines[:start])
                block = "\n".join(lines[start:])
    if block.strip():
        yield block


def is_table(block: str) -> bool:
    """Lines in columns, at the left margin."""
    lines = block.split("\n")
    rows = [line for line in lines if not line.startswith(" ")]
    return len(rows) > 1 and all(COLUMNS.search(line) for line in rows)


def is_program(block: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(block))
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))


def fence(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text.strip(chr(10))}\n{ticks}"


def paragraphs(block: str, names: set[str], links: dict[str, str]) -> list[str]:
    """Paragraphs and lists of what stands between two empty lines."""
    found: list[tuple[str, str]] = []  # ("" or the item's head, text)
    for line in block.split("\n"):
        # Two spaces separate items that share a line.
        for piece in re.split(r" {2,}(?=[\w*, ]+: )", line.strip()):
            item = ITEM.match(piece)
            if item and set(re.findall(r"\w+", item[1])) - {"and"} <= names:
                found.append((item[1], piece[item.end() :]))
            elif piece.startswith("- "):
                found.append(("-", piece[2:]))
            elif not found or PARAGRAPH_STARTS.match(piece):
                found.append(("", piece))
            else:
                head, text = found[-1]
                found[-1] = (head, f"{text} {piece}")
    parts: list[str] = []
    for i, (head, text) in enumerate(found):
        made = escaped(text, links)
        if not head:
            parts.append(made)
            continue
        words = "" if head == "-" else f"{code(head)}: "
        if i and found[i - 1][0]:
            parts[-1] += f"\n- {words}{made}"
        else:
            parts.append(f"- {words}{made}")
    return parts


def code(text: str) -> str:
    return re.sub(r"\*{0,2}\w+", lambda m: m[0] if m[0] == "and" else f"`{m[0]}`", text)


def escaped(text: str, links: dict[str, str]) -> str:
    """Prose whose signs mean themselves; code in backticks, and emphasis between single stars, stay."""
    parts = re.split(r"(`[^`]+`)", text)
    for i, part in enumerate(parts):
        if i % 2:
            address = links.get(part.strip("`"))
            parts[i] = f"[{part}]({address})" if address else part
            continue
        part = IDENTIFIER.sub(r"\1`\2`", EMPHASIS.sub("\0\\1\0", part))
        pieces = re.split(r"(`[^`]+`)", part)
        pieces[::2] = [re.sub(r"([\\*_|<>\[\]{}$~^#`])", r"\\\1", piece) for piece in pieces[::2]]
        parts[i] = "".join(pieces).replace("\0", "*")
    made = "".join(parts)
    return re.sub(r"^([-+=:%(]|\d+[.)])", lambda m: m[1][:-1] + "\\" + m[1][-1], made)


# ------------------------------------------------------------
# A signature as one would call it.


PLAIN = (BaseException.__init__, Exception.__init__, object.__init__)
WIDTH = 88  # of a signature on one line


def signature(name: str, value: Any, without_first: bool = False) -> str:
    """`name(arguments) -> result` of a function, or of a class."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = list(found.parameters.values())[1 if without_first else 0 :]
    if (
        isinstance(value, type)
        and issubclass(value, BaseException)
        and "__init__" not in vars(value)
    ):
        return name
    shown = []
    for i, parameter in enumerate(parameters):
        before = parameters[i - 1].kind if i else None
        if parameter.kind is parameter.KEYWORD_ONLY:
            if before not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
                shown.append("*")
        elif before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            shown.append("/")
        shown.append(argument(parameter, value))
    result = ""
    if not isinstance(value, type) and found.return_annotation is not found.empty:
        result = " -> " + annotation(found.return_annotation)
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n    " + ",\n    ".join(shown) + f",\n){result}"


def argument(parameter: inspect.Parameter, owner: Any) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    equals = "="
    if parameter.annotation is not parameter.empty:
        text += ": " + annotation(parameter.annotation)
        equals = " = "
    if parameter.default is not parameter.empty:
        text += equals + literal(parameter.name, parameter.default, owner)
    return text


def annotation(value: Any) -> str:
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = re.sub(r"ForwardRef\('(.*?)'\)", r"\1", text)
    return re.sub(r"\b(?:torch|nn|typing|collections\.abc|minidist(?:\.\w+)*)\.(?=\w)", "", text)


def literal(name: str, value: Any, owner: Any) -> str:
    """A default as the source would write it."""
    text = repr(value)
    for unit, written in ((2**20, "2**20"), (10**9, "10**9")):
        if type(value) is int and value >= unit and value % unit == 0:
            return f"{value // unit} * {written}"
    if isinstance(value, str) and '"' not in value:
        return f'"{text[1:-1]}"'
    if isinstance(value, type | ModuleType) or inspect.isroutine(value):
        return "..." if value.__name__ == "<lambda>" else value.__name__
    if text == "<factory>":
        return text_of_factories(owner)[name]
    is_set = isinstance(value, set | frozenset) and len(value) > 0
    if is_set or text.startswith("<") or " at 0x" in text:
        # A sentinel, or a set, whose words come in another order each time: its name in the file.
        spaces = vars(builtins) | vars(sys.modules[inspect.unwrap(owner).__module__])
        return next((k for k, v in spaces.items() if v is value), "...")
    return text


def text_of_factories(owner: type) -> dict[str, str]:
    """What a dataclass makes for each field that has no other default."""
    texts = {}
    for field in fields(owner):
        factory = field.default_factory
        if factory in (dict, list, set, tuple):
            texts[field.name] = repr(factory())
        elif callable(factory):
            texts[field.name] = "..." if factory.__name__ == "<lambda>" else f"{factory.__name__}()"
    return texts


# ------------------------------------------------------------
# Entries and pages.


def members(value: Any) -> list[tuple[str, str]]:
    """The public methods and properties of a class, or functions of a module, as (signature, docstring).

    What has no docstring is not for users: overridden methods of PyTorch's, for example.
    """
    found = []
    named = {}
    for owner in owners(value):
        named |= {name: member for name, member in vars(owner).items() if name not in named}
    for name, member in named.items():
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            if getattr(member, "__module__", None) != value.__name__ or not callable(member):
                continue
            shown = signature(name, member)
        elif isinstance(member, property | functools.cached_property):
            shown = name
        elif inspect.isfunction(getattr(member, "__func__", member)):
            function = getattr(member, "__func__", member)
            if function.__module__ not in {owner.__module__ for owner in owners(value)}:
                continue  # PyTorch's
            bound = isinstance(member, staticmethod | classmethod)
            shown = signature(name, getattr(value, name), without_first=not bound)
        else:
            continue
        text = inspect.cleandoc(member.__doc__ or "")
        if text and not is_generated(member):
            found.append((shown, text))
    return found


def owners(value: Any) -> list[Any]:
    """A class, and the bases whose methods have no entry of their own to stand in."""
    if not isinstance(value, type):
        return [value]
    found = []
    for base in value.__mro__:
        exported = [vars(sys.modules[package]).get(base.__name__) for package in PACKAGES]
        if base is value or (base.__module__.startswith("minidist.") and base not in exported):
            found.append(base)
    return found


def is_generated(member: Any) -> bool:
    """The field of a named tuple, or a dataclass that says no more than its signature."""
    return type(member).__name__ == "_tuplegetter" or bool(
        isinstance(member, type) and re.fullmatch(r"\w+\(.*\)", member.__doc__ or "", re.S)
    )


def slug(title: str, taken: set[str]) -> str:
    """The anchor of a heading as MyST makes it; a second one of the same is numbered."""
    base = re.sub(r"[^\w\- ]", "", title.strip().lower().replace(" ", "-"))
    made = base
    number = 0
    while made in taken:
        number += 1
        made = f"{base}-{number}"
    taken.add(made)
    return made


@functools.cache
def arguments_of(value: Any) -> set[str]:
    """The names that its docstring may explain: arguments; of a class, its fields as well."""
    names = set()
    if isinstance(value, type):
        names = set(
            re.findall(r"(?:self\.|^    )([a-z]\w*)\b(?=:| =|,)", inspect.getsource(value), re.M)
        )
    try:
        return names | set(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return names


def bases(value: Any, links: dict[str, str]) -> str:
    """What a class is a kind of, if that is public or an error of Python's."""
    names = []
    for base in getattr(value, "__bases__", ()):
        if base.__name__ in links:
            names.append(f"[`{base.__name__}`]({links[base.__name__]})")
        elif issubclass(base, BaseException) and base is not Exception:
            names.append(f"`{base.__name__}`")
    return f"A kind of {' and '.join(names)}." if names else ""


class Page:
    """A page: its headings are known before its text, so that every page can link to every other."""

    def __init__(self, name: str, found: list[Entry]):
        self.name = name
        self.title = PAGES[name][1]
        self.files: dict[str, list[Entry]] = {}
        for one in found:
            self.files.setdefault(one.file, []).append(one)
        again = [one.name for one in found if one.public]
        self.titles = {}
        self.anchors = {}
        taken: set[str] = set()
        slug(self.title, taken)
        for file, among in self.files.items():
            slug(file, taken)
            for one in filter(lambda one: one.public, among):
                stem = one.module.rpartition(".")[2]
                title = f"{stem}.{one.name}" if again.count(one.name) > 1 else one.name
                self.titles[one.module, one.name] = title
                self.anchors[one.module, one.name] = slug(title, taken)

    def address(self, one: Entry) -> str:
        return f"{self.name}.md#{self.anchors[one.module, one.name]}"

    def write(self, root: Path, lessons: dict[tuple[str, str], str], links: dict[str, str]) -> str:
        parts = [f"# {self.title}"]
        package = PAGES[self.name][0]
        if package:
            parts.append(markdown(inspect.getdoc(sys.modules[package]) or ""))
        for file, among in self.files.items():
            parts.append(f"## `{file}`")
            parts.append(self.origin(root, file, lessons.get((file, ""), "")))
            module = sys.modules[among[0].module]
            if not isinstance(among[0].value, ModuleType):  # whose entry is its docstring
                parts.append(markdown(inspect.getdoc(module) or "", links=links))
            for one in among:
                if one.public:
                    parts.append(self.entry(root, one, lessons, links))
            rest = [one for one in among if not one.public]
            if rest:
                parts.append(f"### More in `{Path(file).name}`")
            for one in rest:
                parts.append(self.short_entry(one, links))
        return "\n\n".join(part for part in parts if part) + "\n"

    def entry(
        self,
        root: Path,
        one: Entry,
        lessons: dict[tuple[str, str], str],
        links: dict[str, str],
    ) -> str:
        links = {name: address for name, address in links.items() if name != one.name}
        parts = [f"### `{self.titles[one.module, one.name]}`"]
        if isinstance(one.value, ModuleType):
            parts.append(fence(f"from {one.module.rpartition('.')[0]} import {one.name}", "python"))
        elif callable(one.value):
            parts.append(fence(signature(one.name, one.value), "python"))
            parts.append(bases(one.value, links))
        else:
            parts.append(fence(f"{one.name} = {one.value!r}", "python"))
        parts.append(markdown(one.text, arguments_of(one.value), links))
        lesson = lessons.get((one.file, one.name), "")
        if lesson and lesson != lessons.get((one.file, "")):
            parts.append(self.origin(root, "", lesson))
        if isinstance(one.value, type | ModuleType):
            for shown, text in members(one.value):
                names = set(re.findall(r"\w+(?=[:,=)])", shown))
                parts += [head(shown), markdown(text, names, links)]
        return "\n\n".join(part for part in parts if part)

    def short_entry(self, one: Entry, links: dict[str, str]) -> str:
        """What is not public: its signature, and its docstring."""
        shown = signature(one.name, one.value)
        return f"{head(shown)}\n\n{markdown(one.text, arguments_of(one.value), links)}"

    def origin(self, root: Path, file: str, notebook: str) -> str:
        """Where it is written, and where it is explained."""
        words = []
        if file:
            words.append(f"File: [{file}](../{file}).")
        if notebook and (root / notebook).exists():
            words.append(f"Lesson: [{lesson_title(root, notebook)}](../{notebook}).")
        return " ".join(words)


def head(shown: str) -> str:
    """The signature of what has no heading."""
    return fence(shown, "python") if "\n" in shown else f"**`{shown}`**"


def lesson_title(root: Path, notebook: str) -> str:
    table = root / "course" / "lessons.toml"
    for lesson in tomllib.loads(table.read_text(encoding="utf-8"))["lesson"]:
        if notebook == f"notebooks/{lesson['number']}_{lesson['name']}.ipynb":
            return f"{lesson['number']} {lesson['title']}"
    return Path(notebook).stem


def pages(root: Path) -> dict[str, str]:
    """The pages of the reference of the package in `root`, by their paths there.

    Errors: ValueError if a package from elsewhere is imported already.
    """
    found = entries(root)
    lessons = lessons_of(root, readme_rows(root))
    made = [Page(name, [one for one in found if one.page == name]) for name in PAGES]
    links = {}
    for page in made:
        for one in page.files.values():
            for each in one:
                # A word in small letters may be an argument's name as well.
                if each.public and each.name[0].isupper():
                    links[each.name] = page.address(each)
    texts = {f"reference/{page.name}.md": page.write(root, lessons, links) for page in made}
    return {"reference/index.md": index(made), **texts}


def index(made: list[Page]) -> str:
    rows = []
    for page in made:
        names = []
        for among in page.files.values():
            for one in filter(lambda one: one.public, among):
                names.append(f"[`{page.titles[one.module, one.name]}`]({page.address(one)})")
        rows.append(f"## {page.title}\n\n[{page.title}]({page.name}.md): {', '.join(names)}.")
    introduction = (
        "The public names of the package: what each does, its arguments and errors, and an example, which the tests run.\n"
        "Examples can be pasted as they stand. Files and lessons are linked from each entry's file."
    )
    tree = "\n".join(
        ["```{toctree}", ":hidden:", ":maxdepth: 1", "", *[p.name for p in made], "```"]
    )
    package = markdown(inspect.getdoc(sys.modules["minidist"]) or "")
    return "\n\n".join(["# Reference", introduction, package, *rows, tree]) + "\n"

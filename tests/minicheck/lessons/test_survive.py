"""Lesson 26: other right ways pass, what is foretold is what the library says, and what only looks right fails.

The usual mistakes are in course/26_survive/bugs.py, which tests/bank examines.
"""

import io
import json
import math
import random
import sys
from zlib import crc32

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.lessons.survive import (
    DAMAGE,
    Disk,
    any_covered,
    cells,
    crashed,
    predict_survive,
    watched,
)
from minicheck.oracles import survive as oracle
from tests.bank.bank import solved
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel
FACTS = predict_survive()


def by_algebra(memory, disk, node_hours, nodes, all_hours):
    """2·√(cost·rate/2) is lost where both bills are equal, and the restarts."""
    rates = nodes / (3600 * node_hours), 1 / (3600 * all_hours)
    lost = sum(
        (2 * c * rate) ** 0.5 + again * rate for (c, again), rate in zip((memory, disk), rates)
    )
    return (2 * memory[0] / rates[0]) ** 0.5, (2 * disk[0] / rates[1]) ** 0.5, lost


def by_renaming(comm, disk, step, data):
    """Parts under another name first; rank 0 hears from the last rank first, in numbers of its own."""
    own = f"{step}/rank-{comm.rank}"
    sums = {own: [len(data), crc32(data)]}
    try:
        disk.write(f"{step}/new-{comm.rank}", data)
        disk.sync(f"{step}/new-{comm.rank}")
        disk.rename(f"{step}/new-{comm.rank}", own)
    except OSError:
        sums[own] = [0, -1]
    if comm.rank:
        comm.send(torch.tensor([float(x) for x in sums[own]], dtype=torch.float64), 0)
        if comm.recv(torch.zeros(1, dtype=torch.uint8), 0):
            raise OSError
        return
    for r in reversed(range(1, comm.size)):
        sums[f"{step}/rank-{r}"] = [
            int(x) for x in comm.recv(torch.zeros(2, dtype=torch.float64), r)
        ]
    failed = any(crc == -1 for _, crc in sums.values())
    body = json.dumps({"files": sums, "ranks": comm.size, "step": step}, indent=1)
    try:
        if not failed:
            disk.write("m", body.encode())
            disk.sync("m")
            disk.rename("m", f"{step}/manifest")
    except OSError:
        failed = True
    for r in reversed(range(1, comm.size)):
        comm.send(torch.full((1,), failed, dtype=torch.uint8), r)
    if failed:
        raise OSError


def by_a_chain(comm, disk, step, data):
    """The sums go down from rank to rank, and the word that all is done, or is not, up again."""
    r, n = comm.rank, comm.size
    size = len(data)
    try:
        disk.write(f"{step}/rank-{r}", bytearray(data))
        disk.sync(f"{step}/rank-{r}")
    except OSError:
        size = -1
    rows = torch.tensor([[size, crc32(data)]])
    if r + 1 < n:
        rows = torch.cat([rows, comm.recv(torch.empty(n - r - 1, 2, dtype=torch.int64), r + 1)])
    good = torch.ones(1)
    if r:
        comm.send(rows, r - 1)
        comm.recv(good, r - 1)
    else:
        sums = {f"{step}/rank-{k}": row for k, row in enumerate(rows.tolist())}
        body = json.dumps({"step": step, "ranks": n, "files": sums}).encode()
        try:
            good *= float((rows[:, 0] >= 0).all())
            if good:
                disk.write("x", body)
                disk.sync("x")
                disk.rename("x", f"{step}/manifest")
        except OSError:
            good *= 0
    if r + 1 < n:
        comm.send(good, r + 1)
    if not good:
        raise OSError


def by_recursion(disk, steps=None):
    if steps is None:
        steps = sorted(int(name[:-9]) for name in disk.names() if name.endswith("/manifest"))
    if not steps:
        return None, {}
    step, wrong = steps[-1], {}
    try:
        body = json.load(io.BytesIO(disk.read(f"{step}/manifest")))
        if not isinstance(body, dict) or not {"step", "ranks", "files"} <= body.keys():
            raise ValueError
    except ValueError:
        wrong[f"{step}/manifest"] = "damaged"
    else:
        if body["step"] != step:
            wrong[f"{step}/manifest"] = "foreign"
        for r in range(body["ranks"]) if not wrong else ():
            wrong |= one_part(disk, f"{step}/rank-{r}", body["files"])
    if not wrong:
        return step, {}
    found, more = by_recursion(disk, steps[:-1])
    return found, wrong | more


def one_part(disk, part, sums):
    if part not in sums or part not in disk.names():
        return {part: "missing"}
    if disk.size(part) != sums[part][0]:
        return {part: "size"}
    return {} if crc32(disk.read(part)) == sums[part][1] else {part: "checksum"}


def number_by_number(wanted, files, read):
    rows = []
    for i in range(*wanted[0]):
        row = []
        for j in range(*wanted[1]):
            there = [
                (name, box)
                for name, box in files.items()
                if i in range(*box[0]) and j in range(*box[1])
            ]
            if not there:
                raise ValueError(f"({i}, {j}) is nowhere")
            name, ((top, _), (left, _)) = there[-1]
            row.append(read(name, (i - top, i - top + 1), (j - left, j - left + 1)).item())
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("save_every", by_algebra),
        ("save_parts", by_renaming),
        ("save_parts", by_a_chain),
        ("newest", by_recursion),
        ("load_box", number_by_number),
    ],
)
def test_other_ways(capsys, name, answer):
    getattr(check, name)(answer)
    assert f"{name}: right." in capsys.readouterr().out


FITS = [
    lambda comm, data: comm.size < 4,
    lambda comm, data: type(comm).__name__ == "WorldComm",
    lambda comm, data: len(data) > 0,
]


@pytest.mark.parametrize("fits", FITS)
def test_a_save_that_is_right_for_some_only(fits):
    right = solved("26_survive")["save_parts"]

    def answer(comm, disk, step, data):
        right(comm, disk, step, data if fits(comm, data) else data + b"!")

    with pytest.raises(Wrong):
        check.save_parts(answer)


def test_what_was_read_cannot_be_rewritten():
    def noted(read):
        return next(
            cell.cell_contents for cell in read.__closure__ if isinstance(cell.cell_contents, list)
        )

    def answer(wanted, files, read):
        noted(read)[:] = [1]
        return torch.zeros(
            wanted[0][1] - wanted[0][0], wanted[1][1] - wanted[1][0], dtype=torch.float64
        )

    def honest(wanted, files, read):
        found = number_by_number(wanted, files, read)
        noted(read).append("x")
        return found

    for one, says in ((answer, "is 0, and should be"), (honest, "is not what `read` wrote")):
        with pytest.raises(Wrong, match=says):
            check.load_box(one)


@pytest.mark.parametrize(
    ("came", "says"),
    [
        (10**400, "is inf, and should be"),
        ("60", "of type str, and should be a number"),
        ({1}, "of type set"),
        (math.nan, "is nan, and should be"),
        (torch.ones(2), "of type Tensor"),
    ],
)
def test_what_is_no_number_is_shown(came, says):
    with pytest.raises(Wrong, match=f"seconds.*{says}"):
        check.save_every(lambda *given: (came, 1.0, 1.0))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (torch.ones(2), {}),
        ("{}", {}),
        ({}, {}),
        (None, {"x": torch.ones(2)}),
        (None, {3: "size"}),
        (None, {("x", 3): {1}}),
        (None, {None: None}),
    ],
)
def test_whatever_is_found_is_judged(step, said):
    """And the grader does not fail itself: with `None` the disk is searched, and more is said than is found."""
    right = solved("26_survive")["newest"]

    def answer(disk):
        found = right(disk)
        return (found[0], found[1] | said) if step is None else (step, said)

    with pytest.raises(Wrong, match="newest: nothing is wrong: "):
        check.newest(answer)


@pytest.mark.parametrize("text", [b"[" * 10**5, '[" \u20ac"]'.encode("utf-16"), b"\xff", b"7"])
def test_whatever_the_manifest_is(text):
    def answer(comm, disk, step, data):
        disk.write("m", text)
        disk.sync("m")
        disk.rename("m", f"{step}/manifest")

    with pytest.raises(Wrong, match=r"/manifest is (JSON|no manifest)"):
        check.save_parts(answer)


HARMLESS = {"nothing is wrong", "a save was not finished", "a part of no bytes"}


@pytest.mark.parametrize("what", sorted(DAMAGE.keys() - HARMLESS))
def test_each_damage_is_asked_for(what):
    """An answer that does not see this kind of damage fails."""
    files = {}
    for step in (9, 40, 90, 100):
        files |= oracle.checkpoint(step, [bytes(range(40 + r)) for r in range(3)])
    DAMAGE[what](files, 100)
    found, refused = oracle.newest(files)
    assert found == 90
    assert refused and all(name.startswith("100/") for name in refused)
    right, words = solved("26_survive")["newest"], set(refused.values())

    def blind(disk):
        step, said = right(disk)
        return step, {name: why for name, why in said.items() if why not in words}

    with pytest.raises(Wrong):
        check.newest(blind)


def test_what_is_left():
    begun = {"a": b"old"}
    log = [[0, "write", "b", "1234"], [0, "rename", "b", "a"]]
    assert [crashed(begun, log, kept) for kept in (0.0, 0.5, 1.0)] == [
        {"a": b""},
        {"a": b"12"},
        {"a": b"1234"},
    ]
    assert crashed(begun, [log[0], [0, "sync", "b", ""], log[1]], 0.0) == {"a": b"1234"}
    assert crashed(begun, [[0, "write", "a", "new"]], 0.0) == {"a": b""}
    assert crashed(begun, [[0, "remove", "a", ""]], 1.0) == {}


def test_a_disk():
    disk = Disk()
    other = disk.of(1)
    other.write("x", b"12")
    disk.rename("x", "y")
    assert (disk.names(), other.read("y"), disk.size("y")) == (["y"], b"12", 2)
    assert disk.log == [[1, "write", "x", "12"], [0, "rename", "x", "y"], [1, "read", "y", ""]]
    assert [files for _, files in disk.crashes()][-3:] == [{"y": b""}, {"y": b"1"}, {"y": b"12"}]
    for call in (disk.sync, disk.remove, disk.size, disk.read):
        with pytest.raises(KeyError, match="no file 'x'"):
            call("x")
    with pytest.raises(TypeError, match="a str, not int"):
        disk.write(3, b"")


def test_a_full_disk():
    disk = Disk(full=(1, 1, 2))
    other = disk.of(1)
    other.write("x", b"1")
    with pytest.raises(OSError, match="no room for y"):
        other.write("y", b"2")
    disk.write("y", b"3")
    other.write("z", b"4")
    assert disk.files == {"x": b"1", "y": b"3", "z": b"4"}
    assert [files for _, files in disk.crashes()][-1] == disk.files


def test_a_watched_disk():
    """What it notes is in none of its attributes, and its other ranks note, too."""
    disk, noted = watched({"a": b"1"})
    disk.read("a")
    disk.of(2).of(1).remove("a")
    disk.log.clear()
    assert noted == [[0, "read", "a", ""], [1, "remove", "a", ""]] and not disk.files
    assert not any(value is noted for value in vars(disk).values())


def test_the_interval_is_the_best():
    """By search, and against failures drawn at random."""
    cost = 30.0
    restart = 200.0
    hours = 9000.0
    devices = 700
    M = hours * 3600 / devices
    lost = lambda every: cost / every + (every / 2 + restart) / M
    every, least = oracle.interval(cost, restart, hours, devices)
    assert math.isclose(least, lost(every))
    assert all(lost(every * k) > least for k in (0.5, 0.9, 1.1, 2))
    rng = random.Random(0)
    useful = 0.0
    total = 0.0
    for _ in range(5000):
        life = rng.expovariate(1 / M)
        useful, total = useful + life // (every + cost) * every, total + life + restart
    assert abs((1 - useful / total) / least - 1) < 0.1


@pytest.mark.parametrize(("down", "across"), [(1, 1), (2, 3), (7, 1), (3, 4)])
def test_cells_cover_once(down, across):
    seen = torch.zeros(7, 10)
    for (top, bottom), (left, right) in cells((7, 10), down, across):
        seen[top:bottom, left:right] += 1
    assert (seen == 1).all()
    files = dict(enumerate(cells((7, 10), down, across)))
    assert any_covered(((1, 6), (2, 9)), files)
    assert not any_covered(((0, 7), (0, 10)), {i: box for i, box in files.items() if i})


def test_predictions_are_what_the_library_says():
    values = FACTS[0]
    every, lost = oracle.interval(values["save_seconds"], 600, 20_000, 256)
    assert math.isclose(values["every_seconds"], every) and math.isclose(values["lost"], lost)
    assert values["rank_bytes"] * 256 == values["whole_bytes"] == 20e9 * (2 + 4 + 4 + 4)
    assert math.isclose(values["read_bytes"] * 192, values["whole_bytes"])
    assert slips_are_wrong(FACTS)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("whole_bytes", 320e9, "Gradients"),
        ("rank_bytes", 280e9, "all ranks share"),
        ("save_seconds", 140, "one node"),
        ("mtbf_seconds", 78.125, "hours"),
        ("every_seconds", None, "not set"),
        ("snapshot_seconds", 14.0, "each GPU"),
        ("lost", FACTS[0]["lost"] * 100, "percent"),
        ("failures", 12.3, None),
        ("read_bytes", FACTS[0]["rank_bytes"], "Fewer ranks"),
    ],
)
def test_numbers(name, value, says):
    judge(FACTS, FACTS[0] | {name: value}, says)

"""Boxes, pieces, places; and reading a checkpoint, by one process, without a Comm."""

import itertools
import math

import pytest
import safetensors.torch
import torch
from torch import nn

from minidist.checkpoint import Checkpoints, Piece, Refused, Saved, files
from minidist.checkpoint.reshard import Box, minus, missing, overlap, places, runs
from minidist.comm import World
from minidist.parallel.zero import FullySharded
from tests.parallel.cases import Hard

# ------------------------------------------------------------
# Boxes against sets of elements.


SHAPES = [(), (1,), (7,), (3, 4), (4, 1), (2, 3, 4), (2, 1, 3, 2)]


def elements(box):
    return set(
        itertools.product(*(range(a, a + n) for a, n in zip(box.first, box.size, strict=True)))
    )


def some(shape, count=12):
    """Boxes within a shape, none of them empty."""
    random = torch.Generator().manual_seed(len(shape))
    for _ in range(count):
        ends = [sorted(torch.randint(0, n + 1, (2,), generator=random).tolist()) for n in shape]
        yield Box(
            tuple(min(a, n - 1) for (a, _), n in zip(ends, shape, strict=True)),
            tuple(max(b - min(a, n - 1), 1) for (a, b), n in zip(ends, shape, strict=True)),
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_two_boxes(shape):
    for a, b in itertools.product(some(shape), some(shape)):
        both = overlap(a, b)
        assert (set() if both is None else elements(both)) == elements(a) & elements(b)
        assert both is None or elements(both)  # side by side is not overlap
        left = [elements(one) for one in minus(a, b)]
        assert set().union(*left) == elements(a) - elements(b)
        assert sum(map(len, left)) == len(elements(a) - elements(b))  # none twice
        assert len(left) <= max(1, 2 * len(shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_missing(shape):
    whole, some_of_it = Box.of(shape), list(some(shape, 3))
    left = [elements(one) for one in missing(whole, some_of_it)]
    assert set().union(*left) == elements(whole).difference(*map(elements, some_of_it))


def test_nothing_is_missing_of_nothing():
    assert missing(Box.of((3, 0)), []) == []
    assert missing(Box.of(()), []) == [Box((), ())]


@pytest.mark.parametrize("shape", [*SHAPES, (3, 0)])
def test_runs(shape):
    numel = math.prod(shape)
    order = list(itertools.product(*map(range, shape)))
    for first, end in itertools.combinations_with_replacement(range(numel + 1), 2):
        boxes = list(runs(shape, first, end))
        in_order = [
            i
            for box in boxes
            for i in itertools.product(*(range(a, a + n) for a, n in zip(*box, strict=True)))
        ]
        assert in_order == order[first:end]
        assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_the_picture():
    assert list(map(str, runs((4, 4), 3, 14))) == ["[0:1, 3:4]", "[1:3, 0:4]", "[3:4, 0:2]"]


def test_views():
    x = torch.arange(12).view(3, 4)
    assert Box((1, 2), (2, 2)).view(x).tolist() == [[6, 7], [10, 11]]
    assert Box((1, 2), (2, 2)).within(Box((1, 1), (2, 3))) == Box((0, 1), (2, 2))


# ------------------------------------------------------------
# What a piece is, and what it is not.


def test_a_view():
    p = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    part = Piece("w", p, (4, 3), (2, 0))
    assert part.part == ("w", "F32", (4, 3), Box((2, 0), (2, 3)))
    part.values.zero_()
    assert not p.any()
    assert Piece("w", p).part == ("w", "F32", (2, 3), Box((0, 0), (2, 3)))


@pytest.mark.parametrize(
    ("values", "whole", "first"),
    [
        ((2, 3), (4,), (2,)),
        ((2, 3), (4, 3), (2,)),
        ((2, 3), (4, 3, 1), (0, 0, 0)),
        ((2, 3), (4, 3), (3, 0)),
        ((2, 3), (4, 3), (-1, 0)),
    ],
)
def test_what_is_no_part(values, whole, first):
    with pytest.raises(ValueError, match=r"\(2, 3\) from .* on is no part of w, "):
        Piece("w", torch.zeros(values), whole, first)


def test_what_cannot_be_saved():
    with pytest.raises(ValueError, match="w is on the device meta"):
        Piece("w", torch.zeros(2, device="meta"))
    with pytest.raises(ValueError, match="complex128, which the safetensors format"):
        Piece("w", torch.zeros(2, dtype=torch.complex128))


# ------------------------------------------------------------
# Where parameters are found; what comes of it is tested in test_training.py.


def named(model):
    return {place.name: (place.whole, place.shape) for place in places(model).values()}


def test_a_serial_model():
    model = Hard()
    model.register_buffer("kept", torch.zeros(2))
    model.register_buffer("passing", torch.zeros(2), persistent=False)
    oracle = {name: (tuple(x.shape),) * 2 for name, x in model.state_dict().items()}
    oracle.pop("again.weight")  # tied: under its first name
    assert named(model) == oracle


def test_names_do_not_say_that_a_module_is_wrapped():
    def program(comm):
        outer = named(FullySharded(nn.Sequential(nn.Linear(3, 2), Hard()), comm))
        alone = named(nn.Sequential(FullySharded(nn.Linear(3, 2), comm)))
        return [{name: whole for name, (whole, _) in found.items()} for found in (outer, alone)]

    for outer, alone in World(2).run(program):
        whole = nn.Sequential(nn.Linear(3, 2), Hard()).state_dict()
        oracle = {name: tuple(x.shape) for name, x in whole.items()}
        oracle.pop("1.again.weight")
        assert outer == oracle
        assert alone == {"0.weight": (2, 3), "0.bias": (2,)}


def test_every_element_is_somewhere_once():
    """Elements that say where they are, of a strided parameter in runs."""

    def program(comm):
        model = Hard()
        with torch.no_grad():
            model.strided.copy_(torch.arange(18.0).view(3, 6))
        shards = FullySharded(model, comm)
        [(x, place)] = [pair for pair in places(shards).items() if pair[1].name == "strided"]
        return [(piece.part.box, piece.values.clone()) for piece in place.pieces("", x)]

    for n in (1, 2, 3, 4, 7):
        whole = torch.full((3, 6), -1.0)
        for box, values in itertools.chain(*World(n).run(program)):
            assert (box.view(whole) == -1).all()
            box.view(whole).copy_(values)
        assert torch.equal(whole, torch.arange(18.0).view(3, 6))


# ------------------------------------------------------------
# Reading a checkpoint, by one process, without a Comm.


X = torch.arange(80.0).view(10, 8)
OWN = [f"own/{rank}" for rank in range(4)]


def alone(folder, pieces):
    """The path of a checkpoint of one rank."""
    World(1).run(lambda comm: Checkpoints(folder, comm).save(0, pieces))
    return files.finished(folder)[-1]


def columns(comm, folder):
    """Each rank has two columns, and all have the bias."""
    mine = Piece("model/w", X[:, 2 * comm.rank : 2 * comm.rank + 2], (10, 8), (0, 2 * comm.rank))
    Checkpoints(folder, comm).save(
        4, [mine, Piece("model/b", torch.ones(3)), Piece("other", torch.zeros(2))]
    )


@pytest.fixture
def saved(tmp_path):
    World(4).run(columns, tmp_path)
    return Saved(tmp_path / "000001-step-4")


def test_what_it_says(saved):
    assert (saved.step, saved.grid, saved.empty("model/w").shape) == (4, {"ranks": 4}, (10, 8))
    assert saved.empty("model/b").dtype is torch.float32
    assert saved.tensors.keys() == {"common", "model/b", "model/w", "other", *OWN}
    saved.verify()


@pytest.mark.parametrize(
    "box",
    [
        Box.of((10, 8)),
        Box((3, 1), (2, 6)),
        Box((9, 7), (1, 1)),
        Box((0, 2), (10, 2)),
        Box((2, 2), (0, 4)),
    ],
)
def test_any_part_and_only_its_bytes(saved, monkeypatch, box):
    wanted = Piece("model/w", torch.zeros(box.size), (10, 8), box.first)
    read, real = [], files.read_box

    def watched(file, entry, first, size):
        found = real(file, entry, first, size)
        read.append((file.name, found.nbytes))
        return found

    monkeypatch.setattr(files, "read_box", watched)
    saved.read([wanted])
    assert torch.equal(wanted.values, box.view(X))
    assert sum(k for _, k in read) == 4 * box.numel
    touched = (
        {column // 2 for column in range(box.first[1], box.first[1] + box.size[1])}
        if box.numel
        else ()
    )
    assert len({file for file, _ in read}) == len(touched)


def test_into_a_strided_view(saved):
    x = torch.zeros(8, 10)
    saved.read([Piece("model/w", x.t()[:, 1:4], (10, 8), (0, 1))])
    assert torch.equal(x[1:4], X.t()[1:4])
    assert not x[0].any()
    assert not x[4:].any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            Piece("model/v", torch.zeros(3)),
            r"has no model/v; it has 8 tensors: common, model/b, model/w, other …",
        ),
        (
            Piece("model/b", torch.zeros(4)),
            r"model/b is \(4,\) torch.float32 here, and \(3,\) torch.float32 in ",
        ),
        (
            Piece("model/b", torch.zeros(3).half()),
            r"model/b is \(3,\) torch.float16 here, and \(3,\) torch.float32 in ",
        ),
    ],
)
def test_what_it_has_not(saved, wrong, words):
    first = Piece("model/w", torch.zeros(10, 8))
    with pytest.raises(ValueError, match=words):
        saved.read([first, wrong])
    assert not first.values.any()


def test_one_file_for_one_process(saved, tmp_path):
    saved.export(tmp_path / "one.safetensors")
    found = safetensors.torch.load_file(tmp_path / "one.safetensors")
    assert sorted(found) == ["b", "w"]
    assert torch.equal(found["w"], X)
    with pytest.raises(ValueError, match=r"has \d+ tensors, none of which begins with 'modle/'"):
        saved.export(tmp_path / "none", "modle/")
    assert not (tmp_path / "none").exists()


def test_tied_parameters_in_one_file(tmp_path):
    tied = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    tied[1].weight = tied[0].weight
    pieces = [Piece(f"model/{name}", x) for name, x in tied.named_parameters()]
    Saved(alone(tmp_path, pieces)).export(tmp_path / "one")
    again = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    again[1].weight = again[0].weight
    safetensors.torch.load_model(again, tmp_path / "one")
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), tied.parameters(), strict=True)
    )


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "remove", "swap"])
@pytest.mark.parametrize("rank", [0, 3])
def test_damage_is_found(saved, damage, rank):
    files = sorted(saved.path.glob("*.safetensors"))
    content = files[rank].read_bytes()
    if damage == "swap":
        files[rank].write_bytes(files[1].read_bytes())
    elif damage == "remove":
        files[rank].unlink()
    else:
        changed = {
            "flip": content[:-3] + bytes([content[-3] ^ 64]) + content[-2:],
            "cut": content[:-1],
            "longer": content + b"\0",
        }
        files[rank].write_bytes(changed[damage])
    with pytest.raises(Refused, match=files[rank].name):
        saved.verify()
    saved.verify(1, 4)
    with pytest.raises(Refused, match=files[rank].name):
        saved.verify(rank, 4)


def test_a_file_that_changes_after_it_was_verified(saved):
    saved.verify()
    file = saved.path / "rank-00001.safetensors"
    other = saved.path / "rank-00002.safetensors"
    file.write_bytes(other.read_bytes())
    with pytest.raises(Refused, match=r"rank-00001.safetensors has no model/w\[0:10, 2:4\]"):
        saved.whole("model/w")
    file.write_bytes(b"")
    with pytest.raises(Refused, match=r"rank-00001.safetensors is no whole safetensors file"):
        saved.whole("model/w")


def test_a_manifest_that_was_made_by_hand(saved):
    """With holes, or with files elsewhere."""
    body = files.read_manifest(saved.path)
    (saved.path / "../secret.safetensors").write_bytes(
        (saved.path / "rank-00000.safetensors").read_bytes()
    )
    pieces = body["tensors"]["model/w"]["pieces"]
    hole = pieces.pop()
    files.write_manifest(saved.path, body)
    with pytest.raises(Refused, match=r"has no \[0:10, 6:8\] of model/w"):
        Saved(saved.path).whole("model/w")
    pieces += [hole, ["../secret.safetensors", *pieces[0][1:]]]
    del pieces[0]
    files.write_manifest(saved.path, body)
    with pytest.raises(Refused, match=r"000001-step-4/secret.safetensors cannot be read"):
        Saved(saved.path).whole("model/w")

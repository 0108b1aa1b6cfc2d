"""Reading a checkpoint, by one process, without a Comm."""

import os

import pytest
import safetensors.torch
import torch
from torch import nn

from minidist.checkpoint import manifest
from minidist.checkpoint.boxes import Box
from minidist.checkpoint.checkpoints import Checkpoints
from minidist.checkpoint.manifest import Refused
from minidist.checkpoint.piece import piece
from minidist.checkpoint.saved import Saved
from minidist.comm import World

X = torch.arange(80.0).view(10, 8)


def alone(folder, pieces):
    """The path of a checkpoint of one rank."""
    World(1).run(lambda comm: Checkpoints(folder, comm).save(0, pieces))
    return manifest.finished(folder)[-1]


def columns(comm, folder):
    """Each rank has two columns, and all have the bias."""
    mine = piece("model/w", X[:, 2 * comm.rank : 2 * comm.rank + 2], (10, 8), (0, 2 * comm.rank))
    Checkpoints(folder, comm).save(
        4, [mine, piece("model/b", torch.ones(3)), piece("other", torch.zeros(2))]
    )


@pytest.fixture
def saved(tmp_path):
    World(4).run(columns, tmp_path)
    return Saved(tmp_path / "000001-step-4")


def test_what_it_says(saved):
    assert (saved.step, saved.grid, saved.shape("model/w")) == (4, {"ranks": 4}, (10, 8))
    assert saved.dtype("model/b") is torch.float32
    assert "model/w" in saved
    assert "w" not in saved
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
    wanted = piece("model/w", torch.zeros(box.size), (10, 8), box.first)
    read, real = [], os.preadv

    def watched(descriptor, buffers, first):
        read.append((descriptor, sum(map(len, buffers))))
        return real(descriptor, buffers, first)

    monkeypatch.setattr(os, "preadv", watched)
    saved.read([wanted])
    assert torch.equal(wanted.values, box.view(X))
    headers = [k for i, (file, k) in enumerate(read) if [f for f, _ in read[:i]].count(file) < 2]
    assert sum(k for _, k in read) - sum(headers) == 4 * box.numel
    touched = (
        {column // 2 for column in range(box.first[1], box.first[1] + box.size[1])}
        if box.numel
        else ()
    )
    assert len({file for file, _ in read}) == len(touched)


def test_into_a_strided_view(saved):
    x = torch.zeros(8, 10)
    saved.read([piece("model/w", x.t()[:, 1:4], (10, 8), (0, 1))])
    assert torch.equal(x[1:4], X.t()[1:4])
    assert not x[0].any()
    assert not x[4:].any()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            piece("model/v", torch.zeros(3)),
            r"has no model/v; it has \d+ tensors, \['model/b', 'model/w'\] among them",
        ),
        (
            piece("model/b", torch.zeros(4)),
            r"model/b is \(4,\) torch.float32 here, and \(3,\) torch.float32 in ",
        ),
        (
            piece("model/b", torch.zeros(3).half()),
            r"model/b is \(3,\) torch.float16 here, and \(3,\) torch.float32 in ",
        ),
    ],
)
def test_what_it_has_not(saved, wrong, words):
    first = piece("model/w", torch.zeros(10, 8))
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
    pieces = [piece(f"model/{name}", x) for name, x in tied.named_parameters()]
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
    with pytest.raises(Refused, match=r"rank-00001.safetensors cannot be read"):
        saved.whole("model/w")

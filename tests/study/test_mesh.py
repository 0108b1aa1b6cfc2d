"""A mesh drawn on its cluster, and the bytes of each axis over each level: counted by hand."""

import pytest

from minidist import study
from minidist.comm import Cluster, Trace
from minidist.comm.mesh import Grid

NODES = Cluster.dgx_h100(nodes=2)
SENT = [(0, 1, 100), (1, 0, 10), (0, 4, 7), (0, 8, 1000), (15, 7, 2), (3, 12, 5), (8, 8 + 1, 1)]
GRID = Grid(dp=2, pp=2, tp=4)


def trace():
    found = Trace(16)
    for src, dst, nbytes in SENT:
        found.add(src, dst, nbytes, 0.0, 0.0, 0.0)
    return found


def test_by_hand():
    assert study.axis_bytes(trace(), GRID, NODES) == {
        "pp": {"nic": 1002, "tor": 1002},
        "dp": {"nvlink": 7},
        "tp": {"nvlink": 111},
        "pp × dp × tp": {"nic": 5, "tor": 5},
    }
    turned = study.axis_bytes(trace(), Grid(2, 2, 4, "tp dp pp"), NODES)
    assert turned["pp"] == {"nvlink": 111} and turned["tp"] == {
        "nvlink": 7,
        "nic": 1002,
        "tor": 1002,
    }
    assert study.axis_bytes(Trace(16), GRID, NODES) == {"pp": {}, "dp": {}, "tp": {}}


def test_drawn():
    first, again = (study.mesh(GRID, NODES, trace()) for _ in range(2))
    assert first.png == again.png
    assert "tp: 111 B over NVLink/NVSwitch" in first.text and GRID.draw(NODES) in first.text
    bare, empty = study.mesh(GRID, NODES), study.mesh(GRID, NODES, Trace(16), title="Nothing sent")
    assert (
        bare.height < first.height
        and empty.text.startswith("Nothing sent\n")
        and "pp: nothing" in empty.text
    )
    many = study.mesh(Grid(dp=64, pp=2), Cluster.dgx_h100(nodes=16))
    assert many.height < first.height + 200 and "node 15" in many.text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: study.axis_bytes(Trace(8), GRID, NODES),
            "the trace is of 8 ranks, the mesh of 16",
        ),
        (lambda: study.mesh(Grid(dp=32), NODES), "does not fit on a cluster of 16 ranks"),
    ],
)
def test_what_does_not_fit(call, words):
    with pytest.raises(ValueError, match=words):
        call()

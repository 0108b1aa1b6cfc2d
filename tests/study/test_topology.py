"""A cluster drawn: all of a small one, the first and the last of many, as many wires as there are."""

import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from minidist.comm.cluster import Cluster, Level
from minidist.study import cluster, line
from minidist.study.topology import MOST_WIRES, _wires, some, spread

CLUSTERS = {
    "one node": Cluster.dgx_h200(),
    "two nodes": Cluster.dgx1_v100(nodes=2),
    "racks": Cluster.dgx_h100(nodes=16),
    "many racks": Cluster.dgx_h100(nodes=128, oversubscription=4),
    "one device": Cluster.laptop(),
    "uniform": Cluster.uniform(64, 5e-6, 1 / 50e9),
    "one rank": Cluster.uniform(1, 0.0, 0.0),
    "pcie, no tor, no spine": Cluster(
        links={"pcie": Level(1e-6, 1e-10), "nic": Level(1e-5, 0.0, False, 4)},
        devices=4,
        nodes=5,
        rack=2,
    ),
}


@pytest.fixture(scope="module")
def pictures():
    return {name: cluster(c) for name, c in CLUSTERS.items()}


@pytest.mark.parametrize("name", CLUSTERS)
def test_text(pictures, name):
    assert pictures[name].text == f"{CLUSTERS[name].name}\n{CLUSTERS[name]}"
    assert pictures[name].height < 500


@pytest.mark.parametrize("name", ["many racks", "pcie, no tor, no spine"])
def test_drawn_the_same_each_time(pictures, name):
    assert pictures[name].png == cluster(CLUSTERS[name]).png


def test_a_title():
    assert cluster(Cluster.dgx_h200(), title="Eight of them").text.startswith(
        "Eight of them\nDGX H200"
    )


def pixels(made, color):
    image = np.asarray(Image.open(io.BytesIO(made.png)).convert("RGBA"))[..., :3].astype(int)
    return (abs(image - [int(color[i : i + 2], 16) for i in (1, 3, 5)]) < 6).all(-1).sum()


def test_a_slow_rank_has_another_colour(pictures):
    made, slow = cluster(Cluster.dgx_h200().slow_rank(3, 4.0)), line.mix(line.VERMILION, 0.8)
    assert pixels(pictures["one node"], slow) == 0
    assert pixels(made, slow) > 1000
    assert "rank 3 × 4" in made.text


def test_levels_have_places_of_their_own(pictures):
    heights = [pictures[name].height for name in ("one device", "one node", "two nodes", "racks")]
    assert heights == sorted(set(heights))


@pytest.mark.parametrize(
    ("count", "most", "shown"),
    [
        (3, 3, [0, 1, 2]),
        (4, 3, [0, 1, None, 3]),
        (9, 2, [0, None, 8]),
        (9, 1, [0, None, 8]),
        (0, 2, []),
    ],
)
def test_some_of_many(count, most, shown):
    assert some(count, most) == shown


def test_spread_fills_the_width():
    places = spread([0, 1, None, 9], 2.0, 5.0, 0.2)
    assert [item for item, *_ in places] == [0, 1, None, 9]
    assert places[0][1] == 2.0
    assert places[-1][1] + places[-1][2] == pytest.approx(7.0)
    for (_, left, width), (_, right, _) in pairwise(places):
        assert left + width + 0.2 == pytest.approx(right)
    assert places[2][2] == pytest.approx(0.3 * places[0][2])


def test_as_many_lines_as_wires_or_a_band_with_their_number():
    ax = Figure().add_subplot()
    _wires(ax, (0, 0), (0, 1), MOST_WIRES, 1.0)
    assert (len(ax.lines), len(ax.texts)) == (MOST_WIRES, 0)
    _wires(ax, (0, 0), (0, 1), MOST_WIRES + 1, 1.0)
    assert (len(ax.lines), [t.get_text() for t in ax.texts]) == (
        MOST_WIRES,
        [f"{MOST_WIRES + 1} wires"],
    )

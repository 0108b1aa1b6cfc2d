"""Schematics: their words exactly, whose hue a thing has, the same bytes again, and what is refused."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from minidist import study
from minidist.collectives.double_tree import trees
from minidist.comm import Trace
from minidist.comm.cluster import Cluster, Level
from minidist.comm.mesh import Grid
from minidist.study import boxes, cluster, holdings, messages, traffic, tree
from minidist.study import exponents as draw
from minidist.study.diagrams import (
    chunks_of,
    depths_of,
    draw_wires,
    first_and_last,
    hues_of,
    in_steps,
    limits,
    spread,
    tiers_of,
)
from minidist.study.picture import VERMILION, card, mix
from minidist.train.amp import exponents
from tests.study.traces import US, gather, ring


# ------------------------------------------------------------------------------------------------------------- holdings
def hues(*steps, owner=None):
    named = {str(i): chunks_of(str(i), step) for i, step in enumerate(steps)}
    return list(hues_of(named, owner).values())


def test_text_of_holdings():
    made = holdings(
        [["a0", "a1"], ["b0", "b1"]], [["a0+b0", None], [None, "a1+b1"]], title="Reduce-scatter"
    )
    assert made.text == (
        "Reduce-scatter\n"
        "before:\n"
        "  rank 0: a0     a1\n"
        "  rank 1: b0     b1\n"
        "after:\n"
        "  rank 0: a0+b0  –\n"
        "  rank 1: –      a1+b1"
    )
    assert made.png.startswith(b"\x89PNG")


def test_named_steps_tensors_and_nothing():
    made = holdings(
        {"start": [torch.tensor([1.0, 2.5]), None], "end": [torch.eye(2).int(), 7]}, title=""
    )
    assert made.text == (
        "start:\n  rank 0: 1    2.5\n  rank 1: nothing\nend:\n  rank 0: 1 0  0 1\n  rank 1: 7"
    )


def test_arrows_or_none(drawn):
    for arrows in (True, False):
        holdings({"naive": [["a"]], "ring": [["b"]]}, arrows=arrows)
    words = [args[2] for args, _ in drawn["word"]]
    assert words.count("→") == 1 and words.count("naive") == 2


def test_one_step_alone():
    assert (
        holdings([["x"], None]).text
        == "What each rank holds\nbefore:\n  rank 0: x\n  rank 1: nothing"
    )


def test_a_chunk_keeps_the_hue_of_its_first_holder():
    first, last = hues([["a"], ["b"]], [["a", "b"], ["a", "b"]])
    assert first == [[[0]], [[1]]]
    assert last == [[[0], [1]], [[0], [1]]]


def test_a_sum_shows_every_term_and_a_new_value_none():
    assert hues([["a"], ["b"], ["c"]], [["c+a"], ["Σ"], ["a+b+c"]])[1] == [
        [[2, 0]],
        [[]],
        [[0, 1, 2]],
    ]


def test_equal_numbers_after_a_computation_are_a_coincidence():
    moved = hues([[1, 2], [3, 4]], [[1, 3], [2, 4]])[1]
    assert moved == [[[0], [1]], [[0], [1]]]
    summed = hues([[1, 2], [3, 4]], [[4, 6], [4, 6]])[1]  # 4 was rank 1's, but here it is 1 + 3
    assert summed == [[[], []], [[], []]]


def test_owner_is_asked_instead():
    assert hues([["a0"], ["b1"]], owner=lambda word: int(word[1]) ^ 1)[0] == [[[1]], [[0]]]
    assert hues([["x"]], owner=lambda word: (2, 3))[0] == [[[2, 3]]]


def test_many_steps_break_into_lines_of_the_page():
    step = [[f"{r}{i}" for i in range(4)] for r in "abcd"]
    made = holdings({f"step {k}": step for k in range(6)})
    assert made.width <= 9.2 * 96
    assert made.height > holdings({"one": step}).height


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([["a"]], [["a"], ["b"]]), "as many ranks each, not {'before': 1, 'after': 2}"),
        (([],), "1 to 32 ranks, and there are 0"),
        (({},), "1 to 32 ranks, and there are 0"),
        (("abc",), "a list with one entry per rank, not 'abc'"),
        (([["x"]] * 33,), "1 to 32 ranks, and there are 33"),
        (([torch.zeros(1000)],), "1 to 32 chunks, and there are 1,000"),
        (([torch.zeros(2, device="meta")],), r"a meta tensor \(2,\) has no values"),
    ],
)
def test_bad_input(args, message):
    with pytest.raises(ValueError, match=message):
        holdings(*args)


# ------------------------------------------------------------------------------------------------------------- messages
def steps(trace):
    return {(m.src, m.dst): round(start + 0.88) for m, start, _ in in_steps(trace)}


def test_text_in_time():
    assert messages(ring(2, nbytes=24)).text == (
        "Messages between ranks: 2 ranks, 2 messages, 48 B\n"
        "  0 s to 1.91 µs: 0 → 1, 24 B, chunk 0\n"
        "  0 s to 1.91 µs: 1 → 0, 24 B, chunk 1"
    )


def test_text_in_steps():
    assert messages(gather(3), clock="steps", title="Gather").text == (
        "Gather: 3 ranks, 2 messages, 2,000 B\n  step 1: 1 → 0, 1,000 B\n  step 2: 2 → 0, 1,000 B"
    )


def test_a_step_waits_for_what_its_sender_had_heard():
    chain = Trace(4)
    for r in range(3):
        chain.add(r, r + 1, 8, r * US, r * US + US / 2, (r + 1) * US)
    assert steps(chain) == {(0, 1): 1, (1, 2): 2, (2, 3): 3}


def test_a_ring_has_all_ranks_in_every_step():
    got = sorted(round(start + 0.88) for _, start, _ in in_steps(ring(4)))
    assert got == [1] * 4 + [2] * 4 + [3] * 4


def test_two_pairs_share_a_step():
    pairs = Trace(4)
    pairs.add(0, 1, 8, 0, US, 2 * US)
    pairs.add(2, 3, 8, US / 2, US, 2 * US)
    assert steps(pairs) == {(0, 1): 1, (2, 3): 1}


def test_long_lists_are_cut_in_text_only():
    assert messages(ring(8)).text.endswith("\n  … and 32 more")


@pytest.mark.parametrize("label", ["label", "bytes", None])
@pytest.mark.parametrize("clock", ["time", "steps"])
def test_drawn_the_same_each_time_messages(clock, label):
    first = messages(ring(3), clock=clock, label=label)
    assert first.png == messages(ring(3), clock=clock, label=label).png
    assert first.png.startswith(b"\x89PNG")


def test_labels_are_drawn():
    assert len({messages(ring(3), label=label).png for label in ("label", "bytes", None)}) == 3


@pytest.mark.parametrize(
    ("trace", "kwargs", "message"),
    [
        (ring(64), {}, "1 to 16 ranks, and there are 64"),
        (ring(16, steps=20), {}, "1 to 300 messages, and there are 320"),
        (Trace(2), {}, "there are 0"),
        (ring(4), {"clock": "wall"}, "not 'wall'"),
        (ring(4), {"label": "size"}, "not 'size'"),
    ],
)
def test_refused_messages(trace, kwargs, message):
    with pytest.raises(ValueError, match=message):
        messages(trace, **kwargs)


def test_a_trace_without_time_is_drawn_in_steps():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match='draw them with clock="steps"'):
        messages(still)
    assert "step 1: 0 → 1" in messages(still, clock="steps").text


# -------------------------------------------------------------------------------------------------------------- traffic
def test_traffic_text():
    assert traffic(gather(3)).text == (
        "Bytes from each rank to each: 3 ranks, 2,000 B\n"
        "  rank 0: nothing\n"
        "  rank 1: 1,000 B to 0\n"
        "  rank 2: 1,000 B to 0"
    )


def test_traffic_of_a_silent_trace_is_an_empty_matrix():
    assert (
        traffic(Trace(2)).text
        == "Bytes from each rank to each: 2 ranks, 0 B\n  rank 0: nothing\n  rank 1: nothing"
    )


def test_traffic_is_of_senders_in_rows(drawn):
    traffic(gather(3))
    assert [args[2] for args, _ in drawn["word"]].count("1,000 B") == 2
    column = {args[0] for args, style in drawn["box"] if style.get("word") == "1,000 B"}
    assert len(column) == 1


def test_traffic_refused():
    with pytest.raises(ValueError, match="1 to 32 ranks, and there are 300"):
        traffic(Trace(300))


# ---------------------------------------------------------------------------------------------------------------- trees
BINOMIAL = [-1, 0, 0, 2, 0, 4, 4, 6]


def test_text_of_one_tree():
    assert tree({"tree": BINOMIAL}, title="Binomial").text == (
        "Binomial\n  tree: 8 ranks, root 0, depth 3, at most 3 children, inner nodes 0, 2, 4, 6"
    )


def test_text_of_two_trees():
    assert tree({"up": [1, 3, 1, -1], "down": [-1, 2, 0, 2]}).text == (
        "Trees of ranks\n"
        "  up: 4 ranks, root 3, depth 2, at most 2 children, inner nodes 1, 3\n"
        "  down: 4 ranks, root 0, depth 2, at most 2 children, inner nodes 0, 2\n"
        "  inner in both: no rank"
    )
    assert tree({"a": [-1, 0], "b": [-1, 0]}).text.endswith("inner in both: 0")


@pytest.mark.parametrize("n", [1, 2, 13, 40])
def test_the_double_binary_tree(n):
    made = tree(dict(zip(("first", "second"), trees(n), strict=True)))
    assert (
        made.text.endswith("inner in both: no rank")
        and made.png == tree(dict(zip(("first", "second"), trees(n), strict=True))).png
    )


def test_depths():
    assert depths_of("", BINOMIAL) == [0, 1, 1, 2, 1, 2, 2, 3]
    assert depths_of("", [-1]) == [0]


def test_every_edge_is_drawn():
    assert tree({"a": [-1, 0, 0, 0]}).png != tree({"a": [-1, 0, 0, 2]}).png
    assert tree({"a": [-1, 0, 0]}).height < tree({"a": [-1, 0, 1]}).height  # deeper, so taller


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([[]], "'0' is no tree"),
        ([[-1] + [0] * 40], "1 to 40 ranks, and there are 41"),
        ([[1, 2, 0]], "'0' is no tree: from each rank the way up ends at one root"),
        ([[-1, -1]], "'0' is no tree"),
        ([[-1, 2, 1]], "'0' is no tree"),
        ([[-1, 0], [-1, 5]], "'1' is no tree"),
        ([[-1, 0], [-1, 0, 0]], "of the same size"),
        ([[-1], [-1], [-1]], "1 to 2 trees, and there are 3"),
    ],
)
def test_refused_trees(parents, message):
    with pytest.raises(ValueError, match=message):
        tree({str(k): each for k, each in enumerate(parents)})


# ---------------------------------------------------------------------------------------------------------------- boxes
PANELS = {
    "saved": [("a", (0, 0), (2, 3), 0), ("b", (2, 0), (2, 3), 1)],
    "wanted": [("c", (1, 0), (2, 3), 2)],
}


def test_text_of_boxes():
    assert boxes((4, 3), PANELS, title="Parts").text == (
        "Parts\n  saved:\n    a: [0:2, 0:3]\n    b: [2:4, 0:3]\n  wanted:\n    c: [1:3, 0:3]"
    )


def test_drawn_the_same_each_time_boxes():
    one, two = (boxes((4, 3), PANELS, title="Parts") for _ in range(2))
    assert one.png == two.png
    assert one.png[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("shape", "panels", "says"),
    [
        ((4, 3), {}, "1 to 4 panels"),
        ((4, 3), {str(i): [] for i in range(5)}, "there are 5"),
        ((4, 3), {"x": [("a", (3, 0), (2, 3), 0)]}, "is not in"),
        ((4, 3), {"x": [("a", (0, -1), (2, 3), 0)]}, "is not in"),
    ],
)
def test_refused_boxes(shape, panels, says):
    with pytest.raises(ValueError, match=says):
        boxes(shape, panels)


# -------------------------------------------------------------------------------------------------------------- cluster
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
def test_text_of_cluster(pictures, name):
    assert pictures[name].text == f"{CLUSTERS[name].name}\n{CLUSTERS[name]}"
    assert pictures[name].height < 500


@pytest.mark.parametrize("name", ["many racks", "pcie, no tor, no spine"])
def test_drawn_the_same_each_time_cluster(pictures, name):
    assert pictures[name].png == cluster(CLUSTERS[name]).png


def test_a_title():
    assert cluster(Cluster.dgx_h200(), title="Eight of them").text.startswith(
        "Eight of them\nDGX H200"
    )


def pixels(made, color):
    image = np.asarray(Image.open(io.BytesIO(made.png)).convert("RGBA"))[..., :3].astype(int)
    return (abs(image - [int(color[i : i + 2], 16) for i in (1, 3, 5)]) < 6).all(-1).sum()


def test_a_slow_rank_has_another_colour(pictures):
    made, slow = cluster(Cluster.dgx_h200().slow_rank(3, 4.0)), mix(VERMILION, 0.8)
    assert pixels(pictures["one node"], slow) == 0
    assert pixels(made, slow) > 1000
    assert "rank 3 × 4" in made.text


def test_levels_have_places_of_their_own(pictures):
    heights = [pictures[name].height for name in ("one node", "two nodes", "racks")]
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
    assert first_and_last(count, most) == shown


def test_spread_fills_the_width(drawn):
    with card(9, 2) as sheet:
        places = list(spread(sheet, [0, 1, None, 9], 2.0, 5.0, 1.0, 0.2))
    assert [item for item, *_ in places] == [0, 1, 9]
    assert places[0][1] == 2.0
    assert places[-1][1] + places[-1][2] == pytest.approx(7.0)
    wide = places[0][2]
    assert places[1][1] == pytest.approx(2.2 + wide)
    assert places[2][1] - places[1][1] == pytest.approx(1.3 * wide + 0.4)
    assert [args[2] for args, _ in drawn["word"]] == ["", "…"]


def test_as_many_lines_as_wires_or_their_number(drawn):
    with card(2, 2) as sheet:
        draw_wires(sheet, (1, 0), 1.0, 8, 1.0)
        assert len(drawn["line"]) == 8
        draw_wires(sheet, (1, 0), 1.0, 9, 1.0)
    assert len(drawn["line"]) == 10 and drawn["word"][-1][0][2] == "9 wires"


@pytest.mark.parametrize(
    ("name", "tiers"),
    [
        ("one node", [("node", 8, ["nvlink"]), ("device", 1, [])]),
        ("racks", [("spine", 128, ["spine"]), ("rack", 32, ["tor", "nic"])]),
        ("one device", [("device", 8, ["device"])]),
        ("uniform", [("rack", 64, ["nic"]), ("device", 1, [])]),
        ("one rank", [("device", 1, [])]),
    ],
)
def test_levels_of_one_box_are_left_out(name, tiers):
    assert [tuple(tier) for tier in tiers_of(CLUSTERS[name])][: len(tiers)] == tiers


# ----------------------------------------------------------------------------------------------------------------- mesh
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


# ------------------------------------------------------------------------------------------------------------ exponents
X = torch.tensor([0.0, 2.0**-30, 1.5 * 2.0**-20, 2.0**-20, 1.0, 2.0**-13, 2.0**17, float("inf")])


def test_text_of_exponents():
    counted = {"gradients": exponents(X), "times 2¹⁰": exponents(X[:4], scale=2.0**10)}
    assert draw(counted, title="Against fp16").text == (
        "Against fp16\n"
        "  gradients: 8 numbers, 2⁻³⁰ to 2¹⁸; in float16: 12.5 % become 0, 25 % are subnormal, 25 % are normal, "
        "12.5 % become inf, 12.5 % are 0, 12.5 % are inf or nan\n"
        "  times 2¹⁰: 4 numbers, 2⁻²⁰ to 2⁻⁹; in float16: 25 % are subnormal, 50 % are normal, 25 % are 0"
    )
    made = draw({"x": exponents(X, torch.bfloat16)})
    assert "in bfloat16: 75 % are normal, 12.5 % are 0" in made.text


@pytest.mark.parametrize(
    "counted", [{"a": exponents(X)}, {"a": exponents(X), "b": exponents(torch.ones(3))}]
)
def test_drawn_the_same_each_time_exponents(counted):
    first = draw(counted)
    assert first.png.startswith(b"\x89PNG") and first.png == draw(counted).png


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_limits_are_those_of_rounding(dtype):
    """Just inside and just outside each, rounded by torch itself."""
    zero, normal, inf = limits(dtype)
    sure = lambda e, part: torch.tensor(part * 2.0**e, dtype=torch.float64).to(dtype).item()
    assert sure(zero, 1.01) > 0 == sure(zero, 0.99)
    assert sure(normal, 1.0) == torch.finfo(dtype).tiny > sure(normal, 0.9) > 0
    assert sure(inf, 1.0) == float("inf") > sure(inf, 0.99)


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        ({}, "1 to 6 counts, and there are 0"),
        ({"a": exponents(X), "b": exponents(X, torch.bfloat16)}, "of one dtype, not of 2"),
        ({"a": exponents(torch.zeros(5))}, "none of the numbers has an exponent"),
    ],
)
def test_refused_exponents(counted, message):
    with pytest.raises(ValueError, match=message):
        draw(counted)

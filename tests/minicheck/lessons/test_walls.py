"""Lesson 01: other right ways pass, what is right only for some cases does not, and no answer asks the grader.

The usual mistakes are in course/01_walls/bugs.py, which tests/bank examines.
"""

import sys
from itertools import pairwise

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome, near
from minicheck.lessons import walls
from minicheck.lessons.walls import (
    CLAIMED,
    CLAIMS,
    DRAWN,
    FindErrors,
    LargestModel,
    TrainLean,
    whole,
)
from minicheck.oracles import walls as oracle
from minidist.models import mlp
from minidist.study.literature import published
from tests.bank.bank import shows_bug, solved
from tests.minicheck.examined import (
    assert_odd_answers_are_told,
    assert_whoever_raises_is_no_rank,
    refused,
    rng,
)
from tests.repository.files import ROOT

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel

FOLDER = ROOT / "course" / "01_walls"


# --------------------------------------------------------------------------------------------- other right ways
def test_peak_from_running_sums(capsys):
    def peak(events):
        sums, held = [0], {}
        for name, nbytes in events:
            sums.append(sums[-1] + nbytes)
            if name in held:
                held.pop(name)
            else:
                held.setdefault(name, nbytes)
        return [max(sums), sums.index(max(sums)) - 1, held]

    check.peak(peak)
    assert "peak: right." in capsys.readouterr().out


def saved_bytes(fn, without):
    """Bytes that autograd saves for backward in `fn()`, each storage once."""
    saved = {}

    def save(tensor):
        return saved.setdefault(tensor.untyped_storage()._cdata, tensor)

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        fn()
    own = {t.untyped_storage()._cdata for t in without}
    return sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in own)


def test_activation_bytes_measured_by_autograd(capsys):
    def activation_bytes(batch, sizes, itemsize, activation, frozen):
        like = dict(device="meta", dtype={2: torch.half, 4: torch.float, 8: torch.double}[itemsize])
        function = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
        layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b, **like), function())]
        model, x = nn.Sequential(*layers[:-1]), torch.empty(batch, sizes[0], **like)
        model[: 2 * frozen].requires_grad_(False)
        return saved_bytes(lambda: (model(x) ** 2).sum(), [*model.parameters(), x])

    check.activation_bytes(activation_bytes)
    assert "activation_bytes: right." in capsys.readouterr().out


def zero_at_the_end(model, optimizer, loss_fn, batches, test):
    losses, tests = [], []
    for x, y in batches:
        out = model(x)
        loss = loss_fn(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().item())
        with torch.inference_mode():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests


def halves_of_the_test_set(model, optimizer, loss_fn, batches, test):
    @torch.no_grad()
    def tested():
        parts = zip(test[0].chunk(3), test[1].chunk(3), strict=True)
        return sum(loss_fn(model(x), y).item() * len(x) for x, y in parts) / len(test[0])

    losses, tests = [], []
    for x, y in batches:
        model.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses += [loss.item()]
        tests += [tested()]
    return losses, tests


@pytest.mark.parametrize("train", [zero_at_the_end, halves_of_the_test_set])
def test_lean_in_another_way(train, capsys):
    check.train_lean(train)
    assert "train_lean: right." in capsys.readouterr().out


# ------------------------------------------------------------------------------------- right for some cases only
def test_peak_right_for_short_lists_only():
    right = solved("01_walls")["peak"]
    with pytest.raises(Wrong):
        check.peak(lambda events: right(events[:100]))


@pytest.mark.parametrize("fits", [lambda o, p: o == "adam", lambda o, p: p == "fp32"])
def test_model_states_right_for_some_only(fits):
    right = solved("01_walls")["model_states"]

    def model_states(trained, frozen, optimizer, precision):
        return right(trained, frozen if fits(optimizer, precision) else 0, optimizer, precision)

    with pytest.raises(Wrong, match="What is frozen is in memory, too"):
        check.model_states(model_states)


# -------------------------------------------------------------------------------------------- the oracles' numbers
def test_the_oracles_agree_with_what_is_published():
    rows = published("claims_checked")
    values = {row["quantity"]: row["value"] for row in rows}
    figures = oracle.claims()
    summed = (
        16 * 13e9 + 40 * oracle.layer(1024, 1, 5120, 40)[1]
    )  # the lesson's, which is like claim D
    assert summed / 1e9 == pytest.approx(values["right total decimal"], abs=0.01)
    [embedding] = [row for row in rows if row["table_or_figure"].startswith("embedding")]
    assert figures["C"] * 1e6 == embedding["value"]
    zero = {
        row["quantity"]: row["value"]
        for row in published("zero")
        if row["table_or_figure"] == "text"
    }
    assert CLAIMS["G"] == zero["100B_b32_s1024_MP16_checkpoint_per_gpu"]
    # "around"
    assert figures["G"] == pytest.approx(zero["100B_activation_with_checkpointing_b32"], rel=0.15)


def test_four_claims_are_wrong_and_far_enough_from_right():
    figures = oracle.claims()
    assert [letter for letter in CLAIMS if not near(CLAIMS[letter], figures[letter], CLAIMED)] == [
        "C",
        "D",
        "F",
        "G",
    ]
    assert all(abs(CLAIMS[x] / figures[x] - 1) < CLAIMED / 2 for x in "ABEH")
    assert all(abs(CLAIMS[x] / figures[x] - 1) > 4 * CLAIMED for x in "CDFG")


def test_kept_by_hand():
    assert oracle.kept(3, [5, 7, 11, 2], 4, "relu", 0) == 3 * 4 * (7 + 11 + 2)
    assert oracle.kept(3, [5, 7, 11, 2], 2, "gelu", 0) == 3 * 2 * (7 + 7 + 11 + 11 + 2)
    assert oracle.kept(9, [5, 2], 8, "gelu", 0) == 9 * 8 * 2


def test_kept_by_hand_where_the_first_layers_are_frozen():
    assert oracle.kept(3, [5, 7, 11, 2], 4, "relu", 1) == 3 * 4 * (7 + 11 + 2)
    assert oracle.kept(3, [5, 7, 11, 2], 2, "gelu", 1) == 3 * 2 * (7 + 11 + 11 + 2)
    assert oracle.kept(3, [5, 7, 11, 2], 2, "gelu", 2) == 3 * 2 * (11 + 2)
    assert oracle.kept(3, [5, 7, 11, 2], 2, "gelu", 3) == 0


def test_layers_to_the_byte():
    states, kept = oracle.layer(128, 2, 64, 4)
    full = oracle.once(1000, 128, 64) + 3 * (states + kept)
    for more, layers in ((-1, 2), (0, 3), (states + kept - 1, 3), (states + kept, 4)):
        assert oracle.layers(full + more, 2, 128, 64, 4, 1000) == layers
    assert oracle.layers(5, 2, 128, 64, 4, 1000) == 0


def test_layers_to_the_byte_where_the_buffer_makes_the_peak():
    states, kept = oracle.layer(2, 1, 64, 4)
    assert 4 * kept < states
    full = 20 * ((1000 + 2) * 64 + 3 * (states // 16))
    for more, layers in ((-1, 2), (0, 3), (20 * states // 16 - 1, 3), (20 * states // 16, 4)):
        assert oracle.layers(full + more, 1, 2, 64, 4, 1000) == layers


def test_a_run_by_hand():
    found = oracle.cost(10**9, 10**10, 4, 1e14, 4e13, True)
    assert found["gpu_hours"] * 3600 == pytest.approx(8e19 / 4e13)
    assert found["days"] == pytest.approx(found["gpu_hours"] / 96)
    assert found["hfu"] == pytest.approx(0.4) and found["mfu"] == pytest.approx(0.3)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_events_free_what_is_live(name):
    for seed in range(20):
        held = {}
        for tensor, nbytes in DRAWN[name](rng(seed)):
            if nbytes > 0:
                assert tensor not in held
                held[tensor] = nbytes
            else:
                assert held.pop(tensor) == -nbytes
        assert held == oracle.left(DRAWN[name](rng(seed)))


def test_a_peak_is_not_at_the_end_nor_the_largest_tensor():
    for seed in range(20):
        events = DRAWN["step"](rng(seed))
        live = oracle.live(events)
        assert max(live) > live[-1] and max(live) > max(nbytes for _, nbytes in events)


def test_cards_are_as_they_are_called():
    exam = LargestModel()
    for case in exam.cases:
        [given] = exam.draw(case, rng(3))
        memory, *shape = given
        kind, _, short = case.given.partition(" ")
        assert memory > 0 and shape[2] % shape[3] == 0
        layers = oracle.layers(*given)
        states, kept = oracle.layer(shape[1], shape[0], shape[2], shape[3])
        if kind in ("exact", "less", "wide"):
            edge = oracle.needs(layers + (kind != "exact"), *shape)
            assert memory == edge - (kind != "exact")
        if kind in ("none", "empty"):
            assert (memory < oracle.needs(0, *shape)) == (kind == "none") and layers == 0
        if short:
            assert (
                layers * kept < (layers * states + oracle.once(shape[4], shape[1], shape[2])) // 4
            )
        elif kind in ("exact", "between"):
            assert (
                layers * kept > (layers * states + oracle.once(shape[4], shape[1], shape[2])) // 4
            )


# --------------------------------------------------------------------------------------------------- what is said
@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "Is there a `return`"),
        (True, "type bool"),
        ("3", "type str"),
        (3000.0, "should be an integer"),
        (3.0, "in kB"),
        (3000 / 2**10, "in KiB"),
        (6000, "twice"),
        (2999, "no usual mistake"),
    ],
)
def test_whole(got, says):
    with pytest.raises(Wrong, match=says):
        whole(got, 3000, "it", {"It is twice as much.": 6000})


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        ({}, "4 claims are wrong"),
        ({"D": float("nan")}, "too small"),
        ({"D": True}, "type bool"),
        ({3: 1.0}, "letters are A to H"),
        ({"D": 140.5}, "Which unit"),
        ({"E": 5.0}, "holds"),
        (["D"], "type list"),
    ],
)
def test_errors_that_are_not_right(errors, says):
    with pytest.raises(Wrong, match=says):
        FindErrors().judge(Case(1, ""), [()], Outcome([errors], []))


# --------------------------------------------------------------------------------------------------------- memory
def test_the_peak_of_the_lean_loop_is_that_of_one_step():
    """A second opinion on the meter: what autograd saves, the states and the data account for the peak."""
    exam = TrainLean()
    [given] = exam.draw(exam.cases[0], rng(1))
    found = exam.run(None, oracle.train, *given)
    sizes, _, _, batches, test = given
    model, (x, y) = mlp(sizes, dtype=torch.float64), batches[0]
    kept = saved_bytes(lambda: cross_entropy(model(x), y), [*model.parameters(), x, y])
    data = sum(t.nbytes for pair in [*batches, test] for t in pair)
    assert 0 <= found["peak"] - (2 * found["gradients"] + kept + data) < 0.15 * found["peak"]


def test_the_loop_to_repair_is_a_planted_one():
    assert shows_bug(FOLDER, "train_lean", "nothing is repaired")


# ------------------------------------------------------------------------------------------------------ no asking
def test_the_library_is_refused_even_if_the_notebook_has_loaded_it():
    from minidist.study import predict

    def model_states(trained, frozen, optimizer, precision):
        return predict.states(trained, optimizer, precision).bytes

    with pytest.raises(Wrong, match="the library's"):
        check.model_states(model_states)


@pytest.mark.parametrize("way", ["oracle", "exam", "meter"])
def test_the_grader_is_not_asked(way):
    def activation_bytes(batch, sizes, itemsize, activation, frozen):
        if way == "oracle":
            from minicheck.oracles.walls import kept

            return kept(batch, sizes, itemsize, activation, frozen)
        if way == "meter":
            from minidist.study.meter import measure

            return measure(lambda: None).peak
        from minicheck.exam import Case, Outcome
        from minicheck.lessons.walls import ActivationBytes

        try:
            got = Outcome([{"found": 0, "given": [batch, sizes]}], [])
            ActivationBytes().judge(
                Case(1, ""), [(batch, sizes, itemsize, activation, frozen)], got
            )
        except AssertionError as said:
            return int(str(said).split("should be ")[1].split(".")[0].replace(",", ""))

    with pytest.raises(Wrong, match="the library's"):
        check.activation_bytes(activation_bytes)


STYLES = [
    (
        "peak",
        "return most, when, {name: nbytes for name, nbytes in live.items() if nbytes}",
        "return torch.tensor(most), torch.tensor(when), {name: torch.tensor(nbytes) for name, nbytes in live.items() if nbytes}",
    ),
    (
        "peak",
        "return most, when, {name: nbytes for name, nbytes in live.items() if nbytes}",
        """
from fractions import Fraction
return Fraction(most), Fraction(when), {name: Fraction(nbytes) for name, nbytes in live.items() if nbytes}
""",
    ),
    (
        "model_states",
        """
return {
    "parameters": weight[precision] * (trained + frozen),
    "gradients": weight[precision] * trained,
    "optimizer states": (kept[optimizer] + copy) * trained,
}
""",
        """
return {k: torch.tensor(v) for k, v in {
    "parameters": weight[precision] * (trained + frozen),
    "gradients": weight[precision] * trained,
    "optimizer states": (kept[optimizer] + copy) * trained,
}.items()}
""",
    ),
    (
        "activation_bytes",
        "return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])",
        "return torch.tensor(batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1]))",
    ),
    (
        "largest_model",
        "return max(0, min(forward, buffer))",
        "return torch.tensor(max(0, min(forward, buffer)))",
    ),
    (
        "run_cost",
        """
return {
    "gpu_hours": seconds / 3600,
    "days": seconds / 3600 / 24 / gpus,
    "mfu": needed / seconds / peak,
    "hfu": executed / seconds / peak,
}
""",
        """
from fractions import Fraction as F
s = F(executed) / F(achieved)
return {"gpu_hours": s / 3600, "days": s / 86400 / gpus, "mfu": needed / s / F(peak), "hfu": executed / s / F(peak)}
""",
    ),
    (
        "run_cost",
        """
return {
    "gpu_hours": seconds / 3600,
    "days": seconds / 3600 / 24 / gpus,
    "mfu": needed / seconds / peak,
    "hfu": executed / seconds / peak,
}
""",
        """
return {k: torch.tensor(v, dtype=torch.float64) for k, v in {
    "gpu_hours": seconds / 3600,
    "days": seconds / 3600 / 24 / gpus,
    "mfu": needed / seconds / peak,
    "hfu": executed / seconds / peak,
}.items()}
""",
    ),
    (
        "find_errors",
        """
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
""",
        """
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
errors = {k: torch.tensor(v) for k, v in errors.items()}
""",
    ),
    (
        "find_errors",
        """
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
""",
        """
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
errors = {k: __import__('fractions').Fraction(v) for k, v in errors.items()}
""",
    ),
    (
        "find_errors",
        """
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
""",
        """
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
errors = {k: __import__('decimal').Decimal(v) for k, v in errors.items()}
""",
    ),
    (
        "predict_memory",
        """
parameters = 10_755_500
frozen = 3_752_500
batch = 2000
# the second layer's input, what comes into its GELU and out of it, the last output
sample = 4 * (2500 + 2 * 2000 + 1000)
stays = 4 * parameters + 12 * (parameters - frozen)
kept = batch * sample
# nobody needs a gradient of the second layer's input
backward = 2 * batch * (2500 * 2000 + 2 * 2000 * 1000)
equal = stays / sample
""",
        """
parameters = 10_755_500
frozen = 3_752_500
batch = 2000
# the second layer's input, what comes into its GELU and out of it, the last output
sample = 4 * (2500 + 2 * 2000 + 1000)
stays = 4 * parameters + 12 * (parameters - frozen)
kept = batch * sample
# nobody needs a gradient of the second layer's input
backward = 2 * batch * (2500 * 2000 + 2 * 2000 * 1000)
equal = stays / sample
stays, kept, backward, equal = [__import__('fractions').Fraction(v) for v in (stays, kept, backward, equal)]
""",
    ),
    ("train_lean", "return losses, tests", "return tuple(losses), tuple(tests)"),
    (
        "train_lean",
        """
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
""",
        """
model.eval()
with torch.no_grad():
    tests.append(loss_fn(model(test[0]), test[1]).item())
model.train()
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("01_walls", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(walls)


def test_whoever_raises_is_no_rank():
    assert_whoever_raises_is_no_rank(walls)

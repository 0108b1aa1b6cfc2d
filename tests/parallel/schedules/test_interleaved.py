"""Interleaved 1F1B: Megatron's order, and what it holds for every S, M and v."""

import pytest

from minidist.parallel.schedules import Action, interleaved, lists, parse


def test_as_in_the_paper():
    """Narayanan et al. 2021, figure 4: 8 micro-batches, 4 devices, 2 chunks; the first device's first 22 passes."""
    first = interleaved(0, 4, 8)
    assert first[:10] == parse("F0 F1 F2 F3 F0.1 F1.1 F2.1 F3.1 F4 F5")
    assert first[10:22] == parse("F6 B0.1 F7 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0 F7.1 B1")


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("S", [1, 2, 3, 4, 8])
def test_all_work_is_there_in_groups(S, v):
    for M in (S, 2 * S, 3 * S):
        for actions in lists(lambda stage, S, M: interleaved(stage, S, M, v), S, M):
            assert len(actions) == len(set(actions)) == 2 * M * v
            assert {a.chunk for a in actions} == set(range(v)) and {
                a.micro for a in actions
            } == set(range(M))
            forwards = [a for a in actions if a.kind == "F"]
            assert forwards[: S * v] == [Action("F", m, c) for c in range(v) for m in range(S)]
            for chunk in range(v):  # gradients of a chunk add up in the order of the micro-batches
                assert [a.micro for a in actions if (a.kind, a.chunk) == ("B", chunk)] == list(
                    range(M)
                )


@pytest.mark.parametrize(("S", "M"), [(4, 6), (3, 2), (2, 1)])
def test_stages_must_divide_micro_batches(S, M):
    with pytest.raises(ValueError, match=f"{S} stages do not divide {M} micro-batches"):
        interleaved(0, S, M)


def test_no_chunk():
    with pytest.raises(ValueError, match="not 0"):
        interleaved(0, 2, 2, v=0)

"""The formulas of stage 3, by hand."""

from fractions import Fraction

from minidist.parallel.zero.fully import kept, peak, traffic


def test_kept():
    # 16·12/3 = 64
    assert kept(12, 3) == {"parameters": 16, "gradients": 16, "optimizer states": 32}
    assert kept(13, 3) == {"parameters": 20, "gradients": 20, "optimizer states": 40}
    assert sum(kept(12, 4, element=8, moments=1).values()) == 3 * 8 * 3


def test_traffic():
    assert traffic(12, 1) == 0
    assert traffic(12, 4) == 27
    assert traffic(10, 3, frozen=4) == Fraction(76, 3)


def test_peak():
    assert peak(100, 10, 7, 3, prefetch=0) == 100 + 10 + 7 + 3
    assert peak(100, 10, 7, 3) == 100 + 20 + 14 + 3
    assert peak(100, 10, 7, 3, prefetch=2) == 100 + 30 + 14 + 3

"""What a message costs in a World, and that it hardly grows with the number of ranks."""

import pytest

from benchmarks import world


@pytest.mark.full
def test_a_message_costs_as_much_among_many_ranks(figure):
    """Of this process's time, in turns: what else the machine does hardly counts."""
    for n, (cost, ratio) in world.messages((8, 512, 1024), 5).items():
        figure(
            f"n = {n:,}: {cost:.1f} µs a message, {ratio:.2f} times that at n = 8 (medians of 5)"
        )
        assert ratio <= 1.5
        assert cost <= 20 or n > 8

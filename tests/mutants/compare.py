"""Faults of what holds two runs beside each other."""

from tests.mutants.fault import Fault

FAULTS = {
    "compare": [
        Fault(
            "long sums are allowed no more than short ones",
            "study/compare.py",
            "v * math.sqrt(terms * depth)",
            "v * math.sqrt(depth)",
            "study/test_compare.py::test_the_bound_is_its_formula",
        ),
        Fault(
            "parts of neighbours are not put together",
            "study/compare.py",
            "for groups in [neighbours, [parts[i::copies] for i in range(copies)]][: min(copies, 2)]:",
            "for groups in [[parts[i::copies] for i in range(copies)]]:",
            "study/test_compare.py::test_parts_are_put_together_whatever_the_grid",
        ),
        Fault(
            "a mask has all elements",
            "study/compare.py",
            "(y != 0) | (inputs[0] == 0)",
            "(y != 0) | (y == 0)",
            "study/test_compare.py::test_another_random_stream_is_told_from_another_computation",
        ),
        Fault(
            "an exact axis is allowed what others are",
            "study/compare.py",
            "if self.exact or not x.numel():",
            "if not x.numel():",
            "study/test_compare.py::test_an_exact_axis_allows_nothing",
        ),
        Fault(
            "hooks stay when the last step is recorded",
            "study/compare.py",
            "                handle.remove()",
            "                pass",
            "study/test_compare.py::test_hooks_leave_nothing_and_change_nothing",
        ),
        Fault(
            "each rank must have the whole batch's loss",
            "study/compare.py",
            'if kind == "loss" and found and own_losses(pair, step):',
            'if kind == "loss" and not found:',
            "study/test_compare.py::test_folders_of_both_worlds_and_the_command",
        ),
        Fault(
            "samples must stand in the serial run's order",
            "study/compare.py",
            "best = rows if rows.beyond <= 1 else best",
            "best = rows if rows.beyond < 0 else best",
            "study/test_compare.py::test_folders_of_both_worlds_and_the_command",
        ),
        Fault(
            "what an optimizer makes of rounding is not allowed",
            "study/compare.py",
            "bound += 2 * torch.where(",
            "bound += 0 * torch.where(",
            "study/test_compare.py::test_right_runs_are_within_what_is_allowed",
        ),
        Fault(
            "an output is a mistake, though all that follows is right",
            "study/compare.py",
            "if known and not any(pair.differences(step, k) for k in known):",
            "if not known:",
            "study/test_compare.py::test_an_output_is_no_mistake_if_gradients_and_parameters_are_right",
        ),
        Fault(
            "a partial sum is a mistake, though it is added up",
            "study/compare.py",
            "return [d for d in found if names.index(d.name) > last]",
            "return found",
            "study/test_compare.py::test_a_sum_that_is_not_complete_yet_is_no_mistake",
        ),
        Fault(
            "the norm is looked at after what it scales",
            "study/compare.py",
            "        report = norm(pair, step, found)\n        if report is not None:",
            "        report = norm(pair, step, found)\n        if report is not None and not found:",
            "study/test_compare.py::test_the_causes_of_planted_answers_are_named",
        ),
        Fault(
            "padding is not cut off",
            "study/compare.py",
            "torch.cat(list(group), d).narrow(d, 0, shape[d])",
            "torch.cat(list(group), d)",
            "study/test_compare.py::test_flat_pieces_are_put_together_with_padding_or_without",
        ),
        Fault(
            "each rank's part of a flat buffer is taken for its beginning",
            "study/compare.py",
            "        end = -first\n",
            "        end = 0\n",
            "study/test_compare.py::test_flat_shards_are_compared_parameter_by_parameter",
        ),
        Fault(
            "a whole gradient has no part at the place of a shard",
            "study/compare.py",
            "(whole or r in ranks)",
            "(not whole and r in ranks)",
            "study/test_compare.py::test_flat_shards_are_compared_parameter_by_parameter",
        ),
        Fault(
            "runs that have no name in common are equal",
            "study/compare.py",
            "if own and theirs and not own & theirs:",
            "if own and not theirs:",
            "study/test_compare.py::test_what_cannot_be_compared_is_said",
        ),
    ]
}

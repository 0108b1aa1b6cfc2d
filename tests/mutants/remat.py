"""Faults of recomputation: checkpoints, segments and plans, lists, reversible blocks."""

from tests.mutants.fault import Fault

FAULTS = {
    "checkpointing": [
        Fault(
            "dropout drops others when it is repeated",
            "train/remat/replay.py",
            "                _restore(self._states)\n                yield\n",
            "                yield\n",
            "train/remat/test_checkpoint.py::test_gradients_are_equal_bit_for_bit_with_dropout",
        ),
        Fault(
            "random numbers go on from the repeated ones",
            "train/remat/replay.py",
            "                _restore(now)\n",
            "                pass\n",
            "train/remat/test_replay.py::test_numbers_are_drawn_again_and_those_of_now_go_on",
        ),
        Fault(
            "the repetition runs to the function's end",
            "train/remat/checkpoint.py",
            "if self.count == len(self.frame.slots):",
            "if self.count > len(self.frame.slots):",
            "train/remat/test_checkpoint.py::test_memory_and_flops",
        ),
        Fault(
            "running averages count a batch twice",
            "train/remat/call.py",
            "with self._replay.again(), aside(self._changed), torch.enable_grad():",
            "with self._replay.again(), torch.enable_grad():",
            "train/remat/test_aside.py::test_a_batch_counts_once",
        ),
        Fault(
            "the first block of a chain gets no gradients",
            "train/remat/reentrant.py",
            "structure, torch.empty(0, requires_grad=True), *call.tensors",
            "structure, torch.empty(0), *call.tensors",
            ("train/remat/test_checkpoint.py::test_an_input_that_needs_no_gradient_is_no_pitfall"),
        ),
        Fault(
            "the call itself holds its operands, too",
            "train/remat/call.py",
            "        for i in self._places:\n            self._leaves[i] = None\n",
            "",
            "train/remat/test_call.py::test_operands_go_once_it_was_made",
        ),
        Fault(
            "a repetition in another dtype is accepted",
            "train/remat/frame.py",
            "if (slot.shape, slot.dtype) != (x.shape, x.dtype):",
            "if slot.shape != x.shape:",
            ("train/remat/test_checkpoint.py::test_a_function_that_does_something_else_is_found"),
        ),
    ],
    "segments and plans": [
        Fault(
            "the last segment is repeated, too",
            "train/remat/sequential.py",
            "(first, end, i < k - 1)",
            "(first, end, i < k)",
            (
                "train/remat/test_sequential.py"
                "::test_memory_grows_like_the_root_as_predicted_and_flops_by_a_third_at_most"
            ),
        ),
        Fault(
            "the second half is kept whole",
            "train/remat/sequential.py",
            "return checkpoint_recursive(functions[half:], x)",
            "return run(functions[half:], x)",
            ("train/remat/test_sequential.py::test_by_halves_memory_grows_like_the_logarithm"),
        ),
        Fault(
            "a peak without the gradients that a layer's backward makes",
            "train/remat/plan.py",
            "max(self.kept(first, layer + 1) + self.work[layer] for",
            "max(self.kept(first, layer + 1) for",
            "train/remat/test_plan.py::test_by_hand",
        ),
        Fault(
            "a plan that just fits is given up",
            "train/remat/plan.py",
            "if partial.held + inside > budget:",
            "if partial.held + inside >= budget:",
            "train/remat/test_plan.py::test_nothing_is_better",
        ),
        Fault(
            "a plan for fewer layers drops the last ones",
            "train/remat/sequential.py",
            "if planned != layers:",
            "if planned > layers:",
            "train/remat/test_sequential.py::test_wrong_numbers_are_refused",
        ),
    ],
    "selective recomputation": [
        Fault(
            "all that is computed again lives to the end of it",
            "train/remat/selective.py",
            "                    if not needed[done]:\n                        del results[done]\n",
            "                    pass\n",
            (
                "train/remat/test_selective.py"
                "::test_what_leads_to_a_tensor_goes_as_soon_as_it_was_used"
            ),
        ),
        Fault(
            "an operator draws other random numbers when it is repeated",
            "train/remat/tape.py",
            (
                "self._replay = (\n            Replay.bare(leaves((args, kwargs)))\n            if torch.Tag.nondeterministic_seeded in func.tags\n            else None\n        )"
            ),
            "self._replay = None",
            (
                "train/remat/test_tape.py"
                "::test_a_recipe_gives_the_tensor_again_with_its_random_numbers"
            ),
        ),
        Fault(
            "recipes are given up where the graph is kept",
            "train/remat/selective.py",
            "if not torch._C._autograd._get_current_graph_task_keep_graph():",
            "if torch._C._autograd._get_current_graph_task_keep_graph():",
            "train/remat/test_selective.py::test_gradients_are_equal_bit_for_bit_with_dropout",
        ),
        Fault(
            "views are kept, and what they lie in with them",
            "train/remat/tape.py",
            "return VIEW if func.is_view or name in VIEWS else",
            "return VIEW if name in VIEWS else",
            (
                "train/remat/test_selective.py"
                "::test_bytes_of_the_attention_as_the_papers_formula_has_them"
            ),
        ),
        Fault(
            "an operand that changed meanwhile is taken as it is",
            "train/remat/tape.py",
            "if original is not None and original._version != self.version:",
            "if original is None and self.version < 0:",
            "train/remat/test_selective.py::test_an_operand_changed_in_place_is_found",
        ),
        Fault(
            "what was changed in place keeps the recipe that it had",
            "train/remat/tape.py",
            (
                "# its recipe gives what it was before\n                    self._known.pop(x.untyped_storage()._cdata, None)"
            ),
            "pass",
            "train/remat/test_selective.py::test_changes_in_place_and_batch_norm",
        ),
    ],
    "reversible blocks": [
        Fault(
            "the gradient through G is lost",
            "train/remat/reversible.py",
            "x2, dy1, of_g = _back(",
            "x2, _, of_g = _back(",
            "train/remat/test_reversible.py::test_one_output_is_enough_and_none_is_fine",
        ),
        Fault(
            "every block keeps its outputs",
            "train/remat/reversible.py",
            "        if last:\n            ctx.save_for_backward(y1, y2)\n",
            "        ctx.save_for_backward(y1, y2)\n",
            (
                "train/remat/test_reversible.py"
                "::test_memory_does_not_grow_with_depth_and_flops_by_a_third"
            ),
        ),
        Fault(
            "other elements are dropped on the way back",
            "train/remat/reversible.py",
            "with self._replay.again(), aside(self._changed), torch.enable_grad():",
            "with aside(self._changed), torch.enable_grad():",
            (
                "train/remat/test_reversible.py"
                "::test_gradients_are_those_of_the_ordinary_blocks_within_rounding"
            ),
        ),
        Fault(
            "rounding to bits stops gradients",
            "train/remat/reversible.py",
            "    return x + off\n",
            "    return (x * 2.0**bits).round() / 2.0**bits\n",
            "train/remat/test_reversible.py::test_rounding_is_to_multiples_and_exact",
        ),
        Fault(
            "a sum that is nan counts as exact",
            "train/remat/reversible.py",
            "if not found <= most:",
            "if found > most:",
            "train/remat/test_reversible.py::test_too_large_for_the_bits",
        ),
    ],
}

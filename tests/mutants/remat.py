"""Faults of recomputation: checkpoints, segments and plans, lists, reversible blocks."""

from tests.mutants.fault import Fault

FAULTS = {
    "checkpointing": [
        Fault(
            "dropout drops others when it is repeated",
            "train/remat.py",
            "            for generator, state in self.states:\n                generator.set_state(state)\n",
            "",
            "train/test_remat.py::test_gradients_are_equal_bit_for_bit_with_dropout",
        ),
        Fault(
            "random numbers go on from the repeated ones",
            "train/remat.py",
            "            for generator, state in now:\n                generator.set_state(state)\n",
            "            pass\n",
            "train/test_remat.py::test_numbers_are_drawn_again_and_those_of_now_go_on",
        ),
        Fault(
            "the repetition runs to the function's end",
            "train/remat.py",
            "        if filled == len(slots):\n            raise Filled\n",
            "",
            "train/test_remat.py::test_memory_and_flops",
        ),
        Fault(
            "running averages count a batch twice",
            "train/remat.py",
            "with replay.again(), restoring(), torch.enable_grad():",
            "with replay.again(), torch.enable_grad():",
            "train/test_remat.py::test_a_batch_counts_once",
        ),
        Fault(
            "a repetition takes the batches of other ranks back",
            "train/remat.py",
            "if threading.get_ident() == thread and buffer not in originals:",
            "if buffer not in originals:",
            "train/test_remat.py::test_other_ranks_count_on",
        ),
        Fault(
            "autocast of the moment holds in the repetition",
            "train/remat.py",
            "                stack.enter_context(torch.autocast(device, dtype, enabled, self.cache))\n",
            "                pass\n",
            "train/test_remat.py::test_autocast",
        ),
        Fault(
            "the first block of a chain gets no gradients",
            "train/remat.py",
            "Reentrant.apply(fn, torch.empty(0, requires_grad=True), *inputs)",
            "Reentrant.apply(fn, torch.empty(0), *inputs)",
            ("train/test_remat.py::test_an_input_that_needs_no_gradient_is_no_pitfall"),
        ),
        Fault(
            "the call itself holds its operands, too",
            "train/remat.py",
            "    leaves = [place if isinstance(leaf, Tensor) else leaf for leaf in leaves]\n",
            "    kept, leaves = leaves, [place if isinstance(leaf, Tensor) else leaf for leaf in leaves]\n"
            "    replay.kept = kept\n",
            "train/test_remat.py::test_the_repetition_holds_no_operands",
        ),
        Fault(
            "a repetition in another dtype is accepted",
            "train/remat.py",
            "if (shape, dtype) != (x.shape, x.dtype):",
            "if shape != x.shape:",
            ("train/test_remat.py::test_a_function_that_does_something_else_is_found"),
        ),
    ],
    "segments and plans": [
        Fault(
            "the last segment is repeated, too",
            "train/remat.py",
            "Segment(first, end, end < layers)",
            "Segment(first, end, end <= layers)",
            (
                "train/test_remat.py"
                "::test_memory_grows_like_the_root_as_predicted_and_flops_by_a_third_at_most"
            ),
        ),
        Fault(
            "the second half is kept whole",
            "train/remat.py",
            "return checkpoint_recursive(functions[half:], x)",
            "return run(functions[half:], x)",
            ("train/test_remat.py::test_by_halves_memory_grows_like_the_logarithm"),
        ),
        Fault(
            "a peak without the gradients that a layer's backward makes",
            "train/remat.py",
            "peak = max(peak, live + work[end - 1])",
            "peak = max(peak, live)",
            "train/test_remat.py::test_by_hand",
        ),
        Fault(
            "a plan that just fits is given up",
            "train/remat.py",
            "if peak > limit:",
            "if peak >= limit:",
            "train/test_remat.py::test_nothing_is_better",
        ),
        Fault(
            "a plan for fewer layers drops the last ones",
            "train/remat.py",
            "if planned != len(functions):",
            "if planned > len(functions):",
            "train/test_remat.py::test_wrong_numbers_are_refused",
        ),
    ],
    "selective recomputation": [
        Fault(
            "all that is computed again lives to the end of it",
            "train/selective.py",
            "                if last_use[used] is call:\n                    del results[used]\n",
            "                pass\n",
            ("train/test_selective.py::test_what_leads_to_a_tensor_goes_as_soon_as_it_was_used"),
        ),
        Fault(
            "an operator draws other random numbers when it is repeated",
            "train/selective.py",
            "with self.random.again() if self.random else nullcontext():",
            "with nullcontext():",
            (
                "train/test_selective.py"
                "::test_a_recipe_gives_the_tensor_again_with_its_random_numbers"
            ),
        ),
        Fault(
            "a recomputed product is cast as backward's autocast says",
            "train/selective.py",
            "with torch.no_grad(), torch._C._DisableAutocast(), torch._C.DisableTorchFunction():",
            "with torch.no_grad(), torch._C.DisableTorchFunction():",
            (
                "train/test_selective.py"
                "::test_autocast_of_forward_holds_and_that_of_backward_does_not_matter"
            ),
        ),
        Fault(
            "views are kept, and what they lie in with them",
            "train/selective.py",
            "view = func.is_view or op is aten._unsafe_view",
            "view = op is aten._unsafe_view",
            ("train/test_selective.py::test_bytes_of_the_attention_as_the_papers_formula_has_them"),
        ),
        Fault(
            "an operand that changed meanwhile is taken as it is",
            "train/selective.py",
            "if original is not None and original._version != self.version:",
            "if original is None and self.version < 0:",
            "train/test_selective.py::test_an_operand_changed_in_place_is_found",
        ),
        Fault(
            "what was changed in place keeps the recipe that it had",
            "train/selective.py",
            "            mapped(self.forget, (args, kwargs))  # the recipes of what it was before\n",
            "",
            "train/test_selective.py::test_changes_in_place_and_batch_norm",
        ),
    ],
    "reversible blocks": [
        Fault(
            "the gradient through G is lost",
            "train/reversible.py",
            "return None, None, None, dy, *grads",
            "return None, None, None, dy, None, *grads[1:]",
            "train/test_reversible.py::test_one_output_is_enough_and_none_is_fine",
        ),
        Fault(
            "every block keeps its outputs",
            "train/reversible.py",
            "        return block.sum(x, part(other))\n",
            "        y = block.sum(x, part(other))\n        ctx.save_for_backward(y)\n        return y\n",
            ("train/test_reversible.py::test_memory_does_not_grow_with_depth_and_flops_by_a_third"),
        ),
        Fault(
            "the stream is handed back the wrong way round",
            "train/reversible.py",
            "ctx.stream[:] = y - part.detach(), other.detach()",
            "ctx.stream[:] = other.detach(), y - part.detach()",
            (
                "train/test_reversible.py"
                "::test_gradients_are_those_of_the_ordinary_blocks_within_rounding"
            ),
        ),
        Fault(
            "other elements are dropped on the way back",
            "train/reversible.py",
            "_, ctx.repeat = repeatable(part, (other,), {})",
            "ctx.repeat = torch.enable_grad()(lambda tensors: part(*tensors))",
            (
                "train/test_reversible.py"
                "::test_gradients_are_those_of_the_ordinary_blocks_within_rounding"
            ),
        ),
        Fault(
            "rounding to bits stops gradients",
            "train/reversible.py",
            "    return x + off\n",
            "    return (x * 2.0**bits).round() / 2.0**bits\n",
            "train/test_reversible.py::test_rounding_is_to_multiples_and_exact",
        ),
        Fault(
            "a sum that is nan counts as exact",
            "train/reversible.py",
            "if not largest <= limit:",
            "if largest > limit:",
            "train/test_reversible.py::test_too_large_for_the_bits",
        ),
    ],
}

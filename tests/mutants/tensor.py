"""Faults of tensor parallelism: operators, layers, random numbers, parts of parameters, the vocabulary."""

from tests.mutants.fault import Fault

FAULTS = {
    "f and g": [
        Fault(
            "backward of f hands this rank's gradient on, and not the sum",
            "parallel/tensor/operators.py",
            "*_Reduce.apply(ctx.comm, *grads)",
            "*_Copy.apply(ctx.comm, *grads)",
            "parallel/tensor/test_operators.py::test_the_backward_is_the_transpose[world-2]",
        ),
        Fault(
            "backward of g sums gradients that are whole already",
            "parallel/tensor/operators.py",
            "*_Copy.apply(ctx.comm, *grads)",
            "*_Reduce.apply(ctx.comm, *grads)",
            "parallel/tensor/test_operators.py::test_messages",
        ),
        Fault(
            "the sum is written into the caller's tensor",
            "parallel/tensor/operators.py",
            "[x.clone(memory_format=torch.contiguous_format) for x in xs]",
            "[x.contiguous() for x in xs]",
            "parallel/tensor/test_operators.py::test_gradients_of_others_are_left_alone",
        ),
        Fault(
            "the tensors of a list travel one by one",
            "parallel/tensor/operators.py",
            "return tuple(\n            all_reduce_(comm, [x.clone(memory_format=torch.contiguous_format) for x in xs])\n        )",
            "return tuple(all_reduce_(comm, x.clone(memory_format=torch.contiguous_format)) for x in xs)",
            "parallel/tensor/test_operators.py::test_lists_travel_together",
        ),
        Fault(
            "this rank's part holds the memory of the whole",
            "parallel/tensor/operators.py",
            "x.narrow(dim, first, end - first).clone(memory_format=torch.contiguous_format)",
            "x.narrow(dim, first, end - first)",
            "parallel/tensor/test_operators.py::test_a_part_does_not_hold_the_whole",
        ),
    ],
    "column and row layers": [
        Fault(
            "every rank adds the bias of a row layer, before the sum",
            "parallel/tensor/linear.py",
            (
                "partial = F.linear(x, self.weight)  # (…, outputs)\n        y = (\n            reduce_scatter_sequence(partial, self.comm)\n            if self.sequence\n            else reduce_from(partial, self.comm)\n        )\n        # autocast may have lowered y\n        return y if self.bias is None else y + self._bias().to(y.dtype)"
            ),
            (
                "partial = F.linear(x, self.weight, self.bias)\n        y = (\n            reduce_scatter_sequence(partial, self.comm)\n            if self.sequence\n            else reduce_from(partial, self.comm)\n        )\n        return y  # autocast may have lowered y"
            ),
            "parallel/tensor/test_linear.py::test_a_mistake_is_found",
        ),
        Fault(
            "a column layer reads its input without f",
            "parallel/tensor/linear.py",
            "if self.sequence else copy_to(x, self.comm)",
            "if self.sequence else x",
            "parallel/tensor/test_linear.py::test_one_all_reduce_each",
        ),
        Fault(
            "initial values do not depend on the layer's name",
            "parallel/tensor/linear.py",
            "seed, join(name, key), dtype, device))",
            "seed, key, dtype, device))",
            "parallel/tensor/test_linear.py::test_initial_values_are_cut_out_of_the_whole",
        ),
        Fault(
            "the bias raises what autocast has lowered",
            "parallel/tensor/linear.py",
            "y + self._bias().to(y.dtype)",
            "y + self._bias()",
            "parallel/tensor/test_linear.py::test_autocast_lowers_the_same",
        ),
        Fault(
            "sizes that are given are not looked at",
            "parallel/tensor/linear.py",
            "given(sizes or uneven(inputs, comm.size), inputs, comm.size)",
            "given(uneven(inputs, comm.size), inputs, comm.size)",
            "parallel/tensor/test_linear.py::test_bad_input",
        ),
    ],
    "tensor-parallel attention and MLP": [
        Fault(
            "rotary positions are left out",
            "parallel/tensor/layer.py",
            'hidden,\n            heads,\n            comm,\n            kv_heads,\n            dropout,\n            attention,\n            name=join(name, "attention"),\n            rotary=rotary,\n            **split,',
            'hidden, heads, comm, kv_heads, dropout, attention, name=join(name, "attention"), **split',
            "parallel/tensor/test_layer.py::test_other_options[options2]",
        ),
        Fault(
            "every head has keys and values of its own",
            "parallel/tensor/layer.py",
            "            kv_heads,",
            "            None,",
            "parallel/tensor/test_layer.py::test_other_options[options0]",
        ),
        Fault(
            "the MLPs of all layers start alike",
            "parallel/tensor/layer.py",
            'name=join(name, "mlp")',
            'name="mlp"',
            "parallel/tensor/test_parts.py::test_initial_values_are_the_serial_ones[False-2]",
        ),
        Fault(
            "both blocks share a norm",
            "parallel/tensor/layer.py",
            "self.norm_2 = norms[1]",
            "self.norm_2 = norms[0]",
            "parallel/tensor/test_layer.py::test_the_serial_layer[world-2]",
        ),
    ],
    "sequence parallel": [
        Fault(
            "backward of the gather takes this rank's part of its own gradient",
            "parallel/tensor/operators.py",
            "return _ReduceScatter.apply(grad, *ctx.call), None, None, None",
            "return _Scatter.apply(grad, *ctx.call), None, None, None",
            "parallel/tensor/test_operators.py::test_the_backward_is_the_transpose[world-2]",
        ),
        Fault(
            "the gradient of a row layer's bias is that of some of the tokens",
            "parallel/tensor/linear.py",
            "return copy_to(self.bias, self.comm) if self.sequence else self.bias",
            "return self.bias",
            "parallel/tensor/test_linear.py::test_the_serial_layers[world-2]",
        ),
        Fault(
            "the gradients of a norm travel in two messages",
            "parallel/tensor/around.py",
            "weight, bias = copy_to([self.weight, self.bias], self.comm)",
            "weight, bias = copy_to(self.weight, self.comm), copy_to(self.bias, self.comm)",
            "parallel/tensor/test_around.py::test_its_gradients_travel_in_one_message",
        ),
        Fault(
            "a layer keeps the gathered sequence for backward, although it was told not to",
            "parallel/tensor/layer.py",
            "split = dict(sequence=sequence, seed=seed, regather=regather, **like)",
            "split = dict(sequence=sequence, seed=seed, **like)",
            "parallel/tensor/test_memory.py::test_what_is_kept_between_blocks_is_divided[2]",
        ),
        Fault(
            "backward waits for the second gather before it computes anything",
            "parallel/tensor/regather.py",
            "x.movedim(-2, 0).contiguous()) if of_weight else None\n",
            "x.movedim(-2, 0).contiguous()) if of_weight else None\n        again and again.wait()\n",
            (
                "parallel/tensor/test_regather.py"
                "::test_the_second_gather_takes_no_time_beside_a_product"
            ),
        ),
    ],
    "random numbers of tensor ranks": [
        Fault(
            "all ranks draw the same for their parts",
            "parallel/tensor/random.py",
            "(drawn * 1_000_003 + comm.rank) % 2**63",
            "(drawn * 1_000_003) % 2**63",
            "parallel/tensor/test_random.py::test_same_and_different[world]",
        ),
        Fault(
            "a rank draws the same for its part each time",
            "parallel/tensor/random.py",
            "drawn = int(torch.randint(2**62, ()))",
            "drawn = torch.initial_seed()",
            "parallel/tensor/test_random.py::test_same_and_different[world]",
        ),
        Fault(
            "an error within leaves the ranks with other numbers",
            "parallel/tensor/random.py",
            (
                "    try:\n"
                "        for random, _ in kept:\n"
                "            random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)\n"
                "        yield\n"
                "    finally:\n"
                "        for random, state in kept:\n"
                "            random.set_state(state)\n"
            ),
            (
                "    for random, _ in kept:\n"
                "        random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)\n"
                "    yield\n"
                "    for random, state in kept:\n"
                "        random.set_state(state)\n"
            ),
            "parallel/tensor/test_random.py::test_an_exception_leaves_the_numbers_in_order",
        ),
        Fault(
            "dropout without a common seed is accepted",
            "parallel/tensor/random.py",
            "comm.keep(_SEEDED, _not_seeded)",
            "comm.keep(_SEEDED, lambda: None)",
            "parallel/tensor/test_random.py::test_without_the_seed_it_is_refused",
        ),
        Fault(
            "the heads of all ranks drop the same weights",
            "parallel/tensor/layer.py",
            "self.weights_dropout = TensorDropout(dropout, comm, split=True)",
            "self.weights_dropout = TensorDropout(dropout, comm)",
            "parallel/tensor/test_random.py::test_heads_drop_different_weights",
        ),
    ],
    "parts of parameters": [
        Fault(
            "a part holds the memory of the whole",
            "parallel/tensor/parts.py",
            "return {\n        name: (how[name].part(x, comm.rank) if name in how else x).clone()\n        for name, x in whole.items()\n    }",
            "return {name: (how[name].part(x, comm.rank) if name in how else x) for name, x in whole.items()}",
            "parallel/tensor/test_parts.py::test_a_module_may_be_given_and_parts_do_not_hold_the_whole",
        ),
        Fault(
            "a name too much is accepted",
            "parallel/tensor/parts.py",
            "if whole.keys() != mine.keys():",
            "if mine.keys() - whole.keys():",
            "parallel/tensor/test_parts.py::test_bad_input",
        ),
        Fault(
            "every rank starts with the first rows of the whole",
            "parallel/tensor/parts.py",
            "first, _ = bounds(cut.sizes)[comm.rank]",
            "first, _ = bounds(cut.sizes)[0]",
            "parallel/tensor/test_parts.py::test_initial_values_are_the_serial_ones[False-2]",
        ),
        Fault(
            "what is put together shares memory with the model",
            "parallel/tensor/parts.py",
            "if name in how else x.clone()\n",
            "if name in how else x\n",
            "parallel/tensor/test_parts.py::test_what_is_put_together_is_the_callers_own",
        ),
    ],
    "vocabulary: embedding": [
        Fault(
            "other ranks' tokens get a row of this rank",
            "parallel/vocab/embedding.py",
            "return rows.masked_fill(elsewhere[..., None], 0)",
            "return rows",
            "parallel/vocab/test_embedding.py::test_trained_as_one[5-world-3]",
        ),
        Fault(
            "other ranks' tokens are multiplied by zero, which an inf survives",
            "parallel/vocab/embedding.py",
            "return rows.masked_fill(elsewhere[..., None], 0)",
            "return rows * ~elsewhere[..., None]",
            "parallel/vocab/test_embedding.py::test_the_sum_is_exact[dtype0]",
        ),
        Fault(
            "the projection reads its input without f",
            "parallel/vocab/embedding.py",
            "F.linear(copy_to(x, self.comm), self.weight)",
            "F.linear(x, self.weight)",
            "parallel/vocab/test_embedding.py::test_messages_and_bytes[2]",
        ),
        Fault(
            "what is no token becomes zeros",
            "parallel/vocab/embedding.py",
            '        check_tokens(tokens, self.vocab, "token")\n',
            "",
            "parallel/vocab/test_embedding.py::test_no_token",
        ),
    ],
    "vocabulary: loss": [
        Fault(
            "ignored tokens count in the mean",
            "parallel/vocab/cross_entropy.py",
            "losses.sum() / counted.sum()",
            "losses.mean()",
            "parallel/vocab/test_cross_entropy.py::test_the_serial_loss[world-2]",
        ),
        Fault(
            "ignored tokens have a gradient",
            "parallel/vocab/cross_entropy.py",
            "        dloss = dloss.masked_fill(~counted, 0)\n",
            "",
            "parallel/vocab/test_cross_entropy.py::test_the_serial_loss[world-2]",
        ),
        Fault(
            "the ranks' sums are added, each below a peak of its own",
            "parallel/vocab/cross_entropy.py",
            "total = (totals * (peaks - peak).exp()).sum(0)",
            "total = totals.sum(0)",
            "parallel/vocab/test_cross_entropy.py::test_the_serial_loss[world-2]",
        ),
        Fault(
            "sums of 16-bit logits are in 16 bits",
            "parallel/vocab/cross_entropy.py",
            "exact = torch.promote_types(part.dtype, torch.float32)",
            "exact = part.dtype",
            "parallel/vocab/test_cross_entropy.py::test_logits_of_ten_thousand[options0-dtype1]",
        ),
        Fault(
            "a small loss is the difference of two large numbers",
            "parallel/vocab/cross_entropy.py",
            "losses = total.log() - (hits.sum(0) - peak)",
            "losses = total.log() + peak - hits.sum(0)",
            "parallel/vocab/test_cross_entropy.py::test_small_losses_keep_their_digits",
        ),
        Fault(
            "all logits are copied in float32 at once",
            "parallel/vocab/cross_entropy.py",
            'max(1, (CACHED if part.device.type == "cpu" else LARGE) // max(1, part.shape[1]))',
            "max(1, part.shape[0])",
            "parallel/vocab/test_cross_entropy.py::test_no_copy_of_all_logits_in_float32",
        ),
        Fault(
            "four numbers of a token travel where three are needed",
            "parallel/vocab/cross_entropy.py",
            "_numbers(part, place, here, smoothing > 0)",
            "_numbers(part, place, here, True)",
            "parallel/vocab/test_cross_entropy.py::test_messages_and_bytes[2]",
        ),
    ],
}

"""Faults of tensor parallelism: operators, layers, random numbers, parts of parameters, the vocabulary."""

from tests.mutants.fault import Fault

FAULTS = {
    "f and g": [
        Fault(
            "backward of f hands this rank's gradient on, and not the sum",
            "parallel/tensor.py",
            "return conjugate(x, same, summed, comm)",
            "return conjugate(x, same, same, comm)",
            "parallel/test_tensor.py::test_the_backward_is_the_transpose[world-2]",
        ),
        Fault(
            "backward of g sums gradients that are whole already",
            "parallel/tensor.py",
            "return conjugate(x, summed, same, comm)",
            "return conjugate(x, summed, summed, comm)",
            "parallel/test_tensor.py::test_messages",
        ),
        Fault(
            "the sum is written into the caller's tensor",
            "parallel/tensor.py",
            "[x.clone(memory_format=torch.contiguous_format) for x in xs]",
            "[x.contiguous() for x in xs]",
            "parallel/test_tensor.py::test_gradients_of_others_are_left_alone",
        ),
        Fault(
            "the tensors of a list travel one by one",
            "parallel/tensor.py",
            "return all_reduce_(comm, [x.clone(memory_format=torch.contiguous_format) for x in xs])",
            "return [all_reduce_(comm, x.clone(memory_format=torch.contiguous_format)) for x in xs]",
            "parallel/test_tensor.py::test_lists_travel_together",
        ),
        Fault(
            "this rank's part holds the memory of the whole",
            "parallel/tensor.py",
            "return [part.clone(memory_format=torch.contiguous_format) for part in parts]",
            "return parts",
            "parallel/test_tensor.py::test_a_part_does_not_hold_the_whole",
        ),
        Fault(
            "the gradient of a gradient goes through the backward once more",
            "parallel/tensor.py",
            "ctx.pair = back, there, args",
            "ctx.pair = back, back, args",
            "parallel/test_tensor.py::test_differentiable_collectives[world]",
        ),
    ],
    "column and row layers": [
        Fault(
            "every rank adds the bias of a row layer, before the sum",
            "parallel/tensor.py",
            "y, bias = self.product(x, self.weight), self.bias",
            "y, bias = self.product(x, self.weight, self.bias), 0 * self.bias",
            "parallel/test_tensor.py::test_a_mistake_is_found",
        ),
        Fault(
            "a column layer reads its input without f",
            "parallel/tensor.py",
            "if self.sequence else copy_to(x, self.comm)",
            "if self.sequence else x",
            "parallel/test_tensor.py::test_one_all_reduce_each",
        ),
        Fault(
            "initial values do not depend on the layer's name",
            "parallel/tensor.py",
            "materialize_(module, seed, partial(join, name), whole, comm.rank, device=place)",
            "materialize_(module, seed, str, whole, comm.rank, device=place)",
            "parallel/test_tensor.py::test_initial_values_are_cut_out_of_the_whole",
        ),
        Fault(
            "the bias raises what autocast has lowered",
            "parallel/tensor.py",
            "return y + bias.to(y.dtype)",
            "return y + bias",
            "parallel/test_tensor.py::test_autocast_lowers_the_same",
        ),
        Fault(
            "sizes that are given are not looked at",
            "parallel/tensor.py",
            "checked_sizes(sizes or uneven(inputs, comm.size), inputs, comm.size)",
            "checked_sizes(uneven(inputs, comm.size), inputs, comm.size)",
            "parallel/test_tensor.py::test_linear_bad_input",
        ),
    ],
    "tensor-parallel attention and MLP": [
        Fault(
            "heads are cut through",
            "parallel/tensor.py",
            "        [k * outputs for k in units],\n",
            "        uneven(columns.out_features, comm.size),\n",
            "parallel/test_tensor.py::test_the_serial_layer[world-2]",
        ),
        Fault(
            "a rank attends with the heads of all",
            "parallel/tensor.py",
            "            part.groups = heads[comm.rank]\n",
            "",
            "parallel/test_tensor.py::test_the_serial_layer[world-2]",
        ),
        Fault(
            "what is frozen learns on ranks",
            "models.py",
            "nn.Parameter(values, source.requires_grad)",
            "nn.Parameter(values)",
            "parallel/test_tensor.py::test_a_module_with_values_keeps_this_ranks_part",
        ),
        Fault(
            "both blocks share a norm",
            "parallel/tensor.py",
            "part.norm_2 = kind(shape, comm, **like)",
            "part.norm_2 = part.norm_1",
            "parallel/test_tensor.py::test_the_serial_layer[world-2]",
        ),
    ],
    "sequence parallel": [
        Fault(
            "a norm of mean squares learns from a part of the tokens",
            "parallel/tensor.py",
            "copy_to(self.weight, self.comm), self.eps)",
            "self.weight, self.eps)",
            "parallel/test_tensor.py::test_layers_without_biases_and_with_another_norm[sequence-rms]",
        ),
        Fault(
            "norms of parts of the sequence have another eps",
            "parallel/tensor.py",
            "like = dict(eps=eps, dtype",
            "like = dict(dtype",
            "parallel/test_tensor.py::test_layers_without_biases_and_with_another_norm[sequence-layer]",
        ),
        Fault(
            "backward of the gather takes this rank's part of its own gradient",
            "parallel/tensor.py",
            "return conjugate(x, gathered, reduce_scattered, comm, dim, sizes)",
            "return conjugate(x, gathered, own_part, comm, dim, sizes)",
            "parallel/test_tensor.py::test_the_backward_is_the_transpose[world-2]",
        ),
        Fault(
            "the gradient of a row layer's bias is that of some of the tokens",
            "parallel/tensor.py",
            "            bias = copy_to(bias, self.comm)",
            "            bias = bias",
            "parallel/test_tensor.py::test_the_serial_layers[world-2]",
        ),
        Fault(
            "the gradients of a norm travel in two messages",
            "parallel/tensor.py",
            "weight, bias = copy_to([self.weight, self.bias], self.comm)",
            "weight, bias = copy_to(self.weight, self.comm), copy_to(self.bias, self.comm)",
            "parallel/test_tensor.py::test_its_gradients_travel_in_one_message",
        ),
        Fault(
            "a layer keeps the gathered sequence for backward, although it was told not to",
            "parallel/tensor.py",
            "        regather=regather,\n        **like,",
            "        **like,",
            "parallel/test_tensor.py::test_what_is_kept_between_blocks_is_divided[2]",
        ),
        Fault(
            "backward waits for the second gather before it computes anything",
            "parallel/tensor.py",
            "x.movedim(-2, 0).contiguous()) if of_weight else None\n",
            "x.movedim(-2, 0).contiguous()) if of_weight else None\n        again and again.wait()\n",
            ("parallel/test_tensor.py::test_the_second_gather_takes_no_time_beside_a_product"),
        ),
    ],
    "random numbers of tensor ranks": [
        Fault(
            "all ranks draw the same for their parts",
            "parallel/tensor.py",
            "(drawn * 1_000_003 + comm.rank) % 2**63",
            "(drawn * 1_000_003) % 2**63",
            "parallel/test_tensor.py::test_same_and_different[world]",
        ),
        Fault(
            "a rank draws the same for its part each time",
            "parallel/tensor.py",
            "drawn = int(torch.randint(2**62, ()))",
            "drawn = torch.initial_seed()",
            "parallel/test_tensor.py::test_same_and_different[world]",
        ),
        Fault(
            "an error within leaves the ranks with other numbers",
            "parallel/tensor.py",
            (
                "    try:\n"
                "        for random, _ in states:\n"
                "            random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)\n"
                "        yield\n"
                "    finally:\n"
                "        for random, state in states:\n"
                "            random.set_state(state)\n"
            ),
            (
                "    for random, _ in states:\n"
                "        random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)\n"
                "    yield\n"
                "    for random, state in states:\n"
                "        random.set_state(state)\n"
            ),
            "parallel/test_tensor.py::test_an_exception_leaves_the_numbers_in_order",
        ),
        Fault(
            "dropout without a common seed is accepted",
            "parallel/tensor.py",
            "comm.keep(_SEEDED, _not_seeded)",
            "comm.keep(_SEEDED, lambda: None)",
            "parallel/test_tensor.py::test_without_the_seed_it_is_refused",
        ),
        Fault(
            "the heads of all ranks drop the same weights",
            "parallel/tensor.py",
            "part.weights_dropout = TensorDropout(part.weights_dropout.p, comm, split=True)",
            "part.weights_dropout = TensorDropout(part.weights_dropout.p, comm)",
            "parallel/test_tensor.py::test_heads_drop_different_weights",
        ),
    ],
    "parts of parameters": [
        Fault(
            "a part holds the memory of the whole",
            "parallel/tensor.py",
            "parts[name] = (x if cut is None else cut.part(x, comm.rank)).clone()",
            "parts[name] = x if cut is None else cut.part(x, comm.rank)",
            "parallel/test_tensor.py::test_a_module_may_be_given_and_parts_do_not_hold_the_whole",
        ),
        Fault(
            "a name too much is accepted",
            "parallel/tensor.py",
            "if whole.keys() != own.keys():",
            "if own.keys() - whole.keys():",
            "parallel/test_tensor.py::test_parts_bad_input",
        ),
        Fault(
            "every rank starts with the first rows of the whole",
            "models.py",
            "dim, (first, end) = cut.dim, bounds(cut.sizes)[rank]",
            "dim, (first, end) = cut.dim, (0, cut.sizes[rank])",
            "parallel/test_tensor.py::test_initial_values_are_the_serial_ones[False-2]",
        ),
        Fault(
            "what is put together shares memory with the model",
            "parallel/tensor.py",
            "if name in how else x.clone()\n",
            "if name in how else x\n",
            "parallel/test_tensor.py::test_what_is_put_together_is_the_callers_own",
        ),
    ],
    "vocabulary: embedding": [
        Fault(
            "other ranks' tokens get a row of this rank",
            "parallel/vocab.py",
            "return rows.masked_fill(elsewhere[..., None], 0)",
            "return rows",
            "parallel/test_vocab.py::test_trained_as_one[5-world-3]",
        ),
        Fault(
            "other ranks' tokens are multiplied by zero, which an inf survives",
            "parallel/vocab.py",
            "return rows.masked_fill(elsewhere[..., None], 0)",
            "return rows * ~elsewhere[..., None]",
            "parallel/test_vocab.py::test_the_sum_is_exact[dtype0]",
        ),
        Fault(
            "the projection reads its input without f",
            "parallel/vocab.py",
            "return F.linear(copy_to(x, self.comm), self.weight)",
            "return F.linear(x, self.weight)",
            "parallel/test_vocab.py::test_embedding_messages_and_bytes[2]",
        ),
        Fault(
            "what is no token becomes zeros",
            "parallel/vocab.py",
            '        check_tokens(tokens, self.vocab, "token")\n',
            "",
            "parallel/test_vocab.py::test_no_token",
        ),
    ],
    "vocabulary: columns": [
        Fault(
            "every rank's gradient is summed, although all have the whole",
            "parallel/vocab.py",
            'return gather_from(own, self.comm, -1, self.cuts["weight"].sizes)',
            'return gather_from(copy_to(own, self.comm), self.comm, -1, self.cuts["weight"].sizes)',
            "parallel/test_vocab.py::test_columns_train_as_one[world-3]",
        ),
        Fault(
            "all ranks begin with the first columns",
            "parallel/vocab.py",
            "cut = Cut(1, uneven(hidden, comm.size))",
            "cut = Cut(1, [-(-hidden // comm.size)] * comm.size)",
            "parallel/test_vocab.py::test_columns_train_as_one[world-3]",
        ),
        Fault(
            "what is no token is looked up",
            "parallel/vocab.py",
            '        check_tokens(tokens, len(self.weight), "token")\n',
            "",
            "parallel/test_vocab.py::test_no_token_of_columns",
        ),
    ],
    "vocabulary: loss": [
        Fault(
            "ignored tokens count in the mean",
            "parallel/vocab.py",
            "losses.sum() / counted.sum()",
            "losses.mean()",
            "parallel/test_vocab.py::test_the_serial_loss[world-2]",
        ),
        Fault(
            "ignored tokens have a gradient",
            "parallel/vocab.py",
            "        dloss = dloss.masked_fill(~counted, 0)\n",
            "",
            "parallel/test_vocab.py::test_the_serial_loss[world-2]",
        ),
        Fault(
            "the ranks' sums are added, each below a peak of its own",
            "parallel/vocab.py",
            "total = (totals * (peaks - peak).exp()).sum(0)",
            "total = totals.sum(0)",
            "parallel/test_vocab.py::test_the_serial_loss[world-2]",
        ),
        Fault(
            "sums of 16-bit logits are in 16 bits",
            "parallel/vocab.py",
            "exact = torch.promote_types(part.dtype, torch.float32)",
            "exact = part.dtype",
            "parallel/test_vocab.py::test_logits_of_ten_thousand[options0-dtype1]",
        ),
        Fault(
            "a small loss is the difference of two large numbers",
            "parallel/vocab.py",
            "losses = total.log() - (hits.sum(0) - peak)",
            "losses = total.log() + peak - hits.sum(0)",
            "parallel/test_vocab.py::test_small_losses_keep_their_digits",
        ),
        Fault(
            "all logits are copied in float32 at once",
            "parallel/vocab.py",
            'max(1, (CACHED if part.device.type == "cpu" else LARGE) // max(1, part.shape[1]))',
            "max(1, part.shape[0])",
            "parallel/test_vocab.py::test_no_copy_of_all_logits_in_float32",
        ),
        Fault(
            "four numbers of a token travel where three are needed",
            "parallel/vocab.py",
            "_numbers(part, place, here, smoothing > 0)",
            "_numbers(part, place, here, True)",
            "parallel/test_vocab.py::test_cross_entropy_messages_and_bytes[2]",
        ),
    ],
}

"""Faults of data parallelism: who gets which samples, the average of gradients, batch norm, micro-batches."""

from tests.mutants.fault import Fault

FAULTS = {
    "sampler": [
        Fault(
            "every epoch has the order of the first",
            "parallel/data.py",
            "(self.seed * 1_000_003 + self.epoch) % 2**63",
            "(self.seed * 1_000_003) % 2**63",
            "parallel/test_data.py::test_orders",
        ),
        Fault(
            "samples that do not fill a batch are kept all the same",
            "parallel/data.py",
            "order.split(self.batch)[: len(self)]",
            "order.split(self.batch)",
            "parallel/test_data.py::test_the_parts_of_a_batch_are_the_serial_batch[13-True]",
        ),
        Fault(
            "a batch that does not divide among the ranks is accepted",
            "parallel/data.py",
            'self._sizes = even(batch, comm.size, "samples of a batch")',
            "self._sizes = uneven(batch, comm.size)",
            "parallel/test_data.py::test_a_batch_that_cannot_be",
        ),
    ],
    "average of gradients": [
        Fault(
            "the sum, not the mean",
            "parallel/reducer.py",
            "        return 1 / comm.size\n",
            "        return 1.0\n",
            "parallel/test_data.py::test_a_wrong_naive_average_is_found[first_rank_only]",
        ),
        Fault(
            "a rank without a gradient takes no part",
            "parallel/data.py",
            "        if p.requires_grad:\n",
            "        if p.requires_grad and p.grad is not None:\n",
            "parallel/test_data.py::test_naive_a_missing_gradient_counts_as_zeros",
        ),
        Fault(
            "the nan of a rank without samples spreads",
            "parallel/data.py",
            "return grad.zero_() if weight == 0 else grad.mul_(part)",
            "return grad.mul_(part)",
            "parallel/test_data.py::test_naive_weights_of_zero",
        ),
        Fault(
            "a rank's weight is summed in place, and then divided by itself",
            "parallel/reducer.py",
            "all_reduce_(comm, own.clone())",
            "all_reduce_(comm, own)",
            "parallel/test_data.py::test_naive_weights_of_zero",
        ),
    ],
    "DataParallel": [
        Fault(
            "a gradient that stayed in its bucket is not divided",
            "parallel/reducer.py",
            "elif factor != 1:",
            "elif factor > 1:",
            "parallel/test_reducer.py::test_gradients_become_views_and_stay",
        ),
        Fault(
            "a gradient that no rank has becomes zeros",
            "parallel/reducer.py",
            "            if ranks[i]:\n",
            "            if ranks[i] >= 0:\n",
            "parallel/test_data.py::test_unused_on_some_ranks_and_on_all[2-False]",
        ),
        Fault(
            "backward waits for each bucket as soon as it is sent",
            "parallel/reducer.py",
            "        self._run(bucket.reduce, self._share, self.algorithm)\n",
            "        self._run(bucket.reduce, self._share, self.algorithm).wait()\n",
            "study/predict/test_overlap.py::test_overlap_gains_what_is_not_the_last_bucket[2]",
        ),
        Fault(
            "buckets stay in the order of registration",
            "parallel/reducer.py",
            "return self._run(_from_rank_0, [*seen, *place.values()], self.across)",
            "return None",
            "parallel/test_reducer.py::test_the_order_of_use_is_rank_0s[swaps0]",
        ),
        Fault(
            "weighted gradients are divided by the number of ranks, too",
            "parallel/reducer.py",
            "else float(self.weight > 0)",
            "else float(self.weight > 0) / self.comm.size",
            "parallel/test_reducer.py::test_a_weight_may_change_its_mind",
        ),
        Fault(
            "hooks of a wrapper that was replaced stay",
            "parallel/reducer.py",
            "                handle.remove()\n",
            "                pass\n",
            "parallel/test_wrapped_twice.py::test_data_parallel_in_a_loop[plain-World]",
        ),
        Fault(
            "no_sync does not end where an error leaves it",
            "parallel/reducer.py",
            "        try:\n            yield\n        finally:\n            self._reducer.in_backward = before\n",
            "        yield\n        self._reducer.in_backward = before\n",
            "parallel/test_data.py::test_no_sync_ends_with_its_block_even_after_an_error",
        ),
        Fault(
            "buffers are sent inside no_sync",
            "parallel/data.py",
            "if buffers and self.training and self._reducer.in_backward and",
            "if buffers and self.training and",
            "parallel/test_data.py::test_nothing_is_sent_inside_no_sync",
        ),
        Fault(
            "buffers keep each rank's own start",
            "parallel/data.py",
            "[*module.parameters(), *module.buffers()], algorithm=",
            "[*module.parameters()], algorithm=",
            "parallel/test_data.py::test_buffers_start_as_rank_0s",
        ),
        Fault(
            "models that differ are accepted",
            "parallel/data.py",
            "    if largest == -least:\n",
            "    if largest >= -least:\n",
            "calls/test_wrong_calls.py::test_layers_in_another_order",
        ),
        Fault(
            "an average set aside lies where the next one is written",
            "parallel/data.py",
            "self._held[p] = held.clone()",
            "self._held[p] = held",
            "parallel/test_data.py::test_an_average_is_set_aside_as_a_copy",
        ),
    ],
    "SyncBatchNorm": [
        Fault(
            "the mean is that of the ranks' means, whatever their sizes",
            "parallel/batchnorm.py",
            "mean = (counts * means).sum(0) / total",
            "mean = means.mean(0)",
            "parallel/test_batchnorm.py::test_equal_parts_and_a_batch_that_others_have_alone",
        ),
        Fault(
            "the running variance is the biased one",
            "parallel/batchnorm.py",
            "self._track(mean, var * (count / (count - 1)))",
            "self._track(mean, var)",
            "parallel/test_batchnorm.py::test_equal_parts_and_a_batch_that_others_have_alone",
        ),
        Fault(
            "backward keeps to its own rank's sums",
            "parallel/batchnorm.py",
            "all_reduce_(ctx.comm, torch.cat([w * dbias, w * dweight])) / count",
            "torch.cat([w * dbias, w * dweight]) / count",
            "parallel/test_batchnorm.py::test_equal_parts_and_a_batch_that_others_have_alone",
        ),
        Fault(
            "a converted norm has parameters of its own, which no optimizer knows",
            "parallel/batchnorm.py",
            "            setattr(new, name, p)\n",
            "            setattr(new, name, nn.Parameter(p.detach().clone(), p.requires_grad))\n",
            "parallel/test_batchnorm.py::test_convert",
        ),
    ],
    "accumulation": [
        Fault(
            "micro-batches weigh alike, whatever counts in them",
            "parallel/accumulate.py",
            "(micro, weight / total)",
            "(micro, 1 / len(weights))",
            "parallel/test_accumulate.py::test_every_token_weighs_alike[lengths1-sizes3]",
        ),
        Fault(
            "ranks talk after the first micro-batch, not after the last",
            "parallel/accumulate.py",
            "i == len(counted) - 1",
            "i == 0",
            (
                "parallel/test_accumulate.py::test_among_ranks_with_different_numbers_of_tokens_and_one_without[world-2]"
            ),
        ),
        Fault(
            "k updates of batch norm forget less than one",
            "parallel/accumulate.py",
            "return 1 - (1 - momentum) ** (1 / k)",
            "return momentum / k",
            "parallel/test_accumulate.py::test_k_updates_forget_as_much_as_one",
        ),
    ],
}

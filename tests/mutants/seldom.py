"""Faults of what sends less or seldom, and of what large batches need: compression, Local SGD, optimizers, clipping."""

from tests.mutants.fault import Fault

FAULTS = {
    "compression: half and signs": [
        Fault(
            "all bits travel, and are rounded when they have come",
            "parallel/compress.py",
            (
                "        half = bucket.buffer.to(self.dtype)\n"
                "        all_reduce_(comm, half, algorithm=algorithm)\n"
            ),
            "        half = all_reduce_(comm, bucket.buffer, algorithm=algorithm).to(self.dtype)\n",
            "parallel/test_compress.py::test_counted[2-cpu]",
        ),
        Fault(
            "fp16 travels where bf16 was asked for",
            "parallel/compress.py",
            "bucket.buffer.to(self.dtype)",
            "bucket.buffer.to(torch.float16)",
            "parallel/test_compress.py::test_bf16_has_the_range_of_fp32",
        ),
        Fault(
            "what all ranks have sent is taken off this rank's error",
            "parallel/compress.py",
            "            if rank == comm.rank:\n",
            "            if rank < comm.size:\n",
            "parallel/test_compress.py::test_the_papers_rule[world-2]",
        ),
        Fault(
            "what no rank has a gradient for is sent all the same",
            "parallel/compress.py",
            "if name in there and name not in small}",
            "if name not in small}",
            "parallel/test_compress.py::test_what_no_rank_has_waits[sign]",
        ),
    ],
    "PowerSGD": [
        Fault(
            "each rank keeps all that the average misses, not its part",
            "parallel/compress.py",
            "g.sub_(average, alpha=1 / comm.size)",
            "g.sub_(average)",
            "parallel/test_compress.py::test_the_papers_algorithm[1-world-2]",
        ),
        Fault(
            "every step begins with a new Q",
            "parallel/compress.py",
            'if "q" not in self.state[name]:',
            "if True:",
            "parallel/test_compress.py::test_the_papers_algorithm[1-world-2]",
        ),
        Fault(
            "each rank begins with a Q of its own",
            "parallel/compress.py",
            "generator=generator(0, name)",
            "generator=generator(id(self), name)",
            "parallel/test_compress.py::test_the_papers_algorithm[1-world-2]",
        ),
    ],
    "DGC": [
        Fault(
            "what was sent is kept, and sent again",
            "parallel/compress.py",
            "        v[chosen] = 0\n",
            "",
            "parallel/test_compress.py::test_nothing_is_lost[1]",
        ),
        Fault(
            "half a number is not sent",
            "parallel/compress.py",
            "length - math.floor(length * Fraction(str(sparsity)))",
            "max(1, round(length * (1 - sparsity)))",
            "parallel/test_compress.py::test_a_part_of_a_number_is_sent_whole",
        ),
        Fault(
            "each rank is clipped by the limit for all",
            "parallel/compress.py",
            "self.clip / comm.size**0.5",
            "self.clip",
            "parallel/test_compress.py::test_dgc_with_weights[clipped]",
        ),
        Fault(
            "the first entry of a block is put into the one before",
            "parallel/compress.py",
            "block = torch.searchsorted(\n        ends.view(torch.int64), torch.arange(count, device=packed.device), right=True\n    )",
            "block = torch.searchsorted(ends.view(torch.int64), torch.arange(count, device=packed.device))",
            "parallel/test_compress.py::test_only_in_the_last_block",
        ),
    ],
    "LocalSGD": [
        Fault(
            "parameters are averaged a step late",
            "parallel/local_sgd.py",
            "if self.since >= period:",
            "if self.since > period:",
            "parallel/test_local_sgd.py::test_optimizer_the_oracle[2-sgd]",
        ),
        Fault(
            "samples of the period before count again",
            "parallel/local_sgd.py",
            "        self._samples = 0.0\n        self._moved = {}",
            "        self._moved = {}",
            "parallel/test_local_sgd.py::test_samples_of_a_period_count_in_it_alone",
        ),
        Fault(
            "parameters become nan where nobody had a sample",
            "parallel/local_sgd.py",
            "max(self._samples, 1e-300)",
            "self._samples",
            "parallel/test_local_sgd.py::test_weights_of_nobody",
        ),
        Fault(
            "parameters that were frozen all through a period are sent",
            "parallel/local_sgd.py",
            "params = [p for p in self._params() if p in self._moved]\n",
            "params = self._params()\n",
            "parallel/test_local_sgd.py::test_frozen_parameters[0-36]",
        ),
        Fault(
            "parameters are averaged in every step after the switch, too",
            "parallel/local_sgd.py",
            "        return self._H.period if isinstance(self._H, AdaComm) else self._H",
            "        return 1",
            "parallel/test_local_sgd.py::test_bytes_are_the_formulas[3-3-6-0]",
        ),
    ],
    "AdaComm": [
        Fault(
            "the period stands still where the loss does",
            "parallel/local_sgd.py",
            "if period < self.period:",
            "if period <= self.period:",
            "parallel/test_local_sgd.py::test_the_rule_by_hand",
        ),
        Fault(
            "each rank goes by its own loss",
            "parallel/local_sgd.py",
            "all_reduce_(comm, own).unbind()",
            "own.unbind()",
            "parallel/test_local_sgd.py::test_the_rule[3-20-0.5]",
        ),
        Fault(
            "an interval ends an average late",
            "parallel/local_sgd.py",
            "step - self.intervals[-1].step < self.steps",
            "step - self.intervals[-1].step <= self.steps",
            "parallel/test_local_sgd.py::test_it_steers_local_sgd",
        ),
        Fault(
            "the intervals begin anew in a run that goes on",
            "parallel/local_sgd.py",
            '[Interval(*i) for i in own["intervals"]]',
            "[]",
            "parallel/test_local_sgd.py::test_resumed_bit_for_bit[options0]",
        ),
    ],
    "slow momentum": [
        Fault(
            "the momentum depends on the learning rate",
            "parallel/local_sgd.py",
            (
                "        momentum.add_(anchor - average, alpha=1 / rate)\n"
                "        average.copy_(anchor.sub_(momentum, alpha=rate))\n"
            ),
            "        momentum.add_(anchor - average)\n        average.copy_(anchor.sub_(momentum))\n",
            "parallel/test_local_sgd.py::test_a_rate_that_changes",
        ),
        Fault(
            "the anchor is the parameter itself, and moves with it",
            "parallel/local_sgd.py",
            "[p.detach().clone(), torch.zeros_like(p)]",
            "[p.detach(), torch.zeros_like(p)]",
            "parallel/test_local_sgd.py::test_algorithm_1[sgd-0.5]",
        ),
        Fault(
            "the momentum is not saved",
            "parallel/local_sgd.py",
            '"slow": {i: self._slow[p] for',
            '"slow": {i: [self._slow[p][0], torch.zeros_like(p)] for',
            "parallel/test_local_sgd.py::test_resumed_bit_for_bit[options1]",
        ),
    ],
    "what buckets, compression and servers cost, predicted": [
        Fault(
            "a bucket is averaged while the one before it still is",
            "study/predict.py",
            "return max(wire, ready) + collective_seconds",
            "return ready + collective_seconds",
            "study/predict/test_overlap.py::test_by_hand",
        ),
        Fault(
            "of a sparse vector its places are not counted",
            "study/predict.py",
            "gathered = 6 * entries",
            "gathered = 4 * entries",
            "parallel/test_compress.py::test_counted[2-cpu]",
        ),
        Fault(
            "a period that has not ended is averaged, too",
            "study/predict.py",
            "averages = early + (steps - early) // H",
            "averages = early + -(-(steps - early) // H)",
            "parallel/test_local_sgd.py::test_bytes_are_the_formulas[2-4-6-0]",
        ),
        Fault(
            "pushes do not come in while the last answers go out",
            "study/predict.py",
            "both = min(both, n * push + (2 * s - 1) * answer)",
            "both = min(both, n * push + 2 * s * answer)",
            "parallel/test_server.py::test_synchronous[0-2-1]",
        ),
    ],
    "LARS and LAMB": [
        Fault(
            "the ratio of LARS leaves out the decay",
            "train/optim.py",
            'below = gradient + group["weight_decay"] * weights',
            "below = gradient",
            "train/test_optim.py::test_as_the_paper[lars]",
        ),
        Fault(
            "a layer without a gradient but zeros loses the whole decay",
            "train/optim.py",
            "torch.where((weights > 0) & (below > 0)",
            "torch.where((weights > 0) & (gradient > 0)",
            "train/test_optim.py::test_a_gradient_of_zeros_is_no_exception_for_lars",
        ),
        Fault(
            "dampening acts on the first step, too",
            "train/optim.py",
            "v = d.clone()",
            'v = d * (1 - group["dampening"])',
            "train/test_optim.py::test_as_torch",
        ),
        Fault(
            "the second moment of LAMB is not corrected for its start",
            "train/optim.py",
            "root = (v / full2)",
            "root = (v * 1.0)",
            "train/test_optim.py::test_as_the_paper[lamb]",
        ),
        Fault(
            "a layer that is cut goes by the norms of its pieces",
            "train/norm.py",
            "        if cut:\n",
            "        if not rows.numel():\n",
            "train/test_optim.py::test_a_smaller_last_batch_and_blocks[lars]",
        ),
        Fault(
            "what is whole on every rank is summed, too",
            "train/norm.py",
            "cut = [i for i, names in enumerate(split) if way in names]",
            "cut = list(range(len(split)))",
            "train/test_optim.py::test_what_is_whole_on_every_rank_counts_once",
        ),
    ],
    "learning rates and ramps": [
        Fault(
            "what follows a warm-up does not begin at its own step 0",
            "train/schedule.py",
            "then(step - steps)",
            "then(step)",
            "train/test_schedule.py::test_one_after_the_other_as_torch",
        ),
        Fault(
            "a cosine rises again after its end",
            "train/schedule.py",
            "math.cos(math.pi * min(1.0, step / steps))",
            "math.cos(math.pi * step / steps)",
            ("train/test_schedule.py::test_cosine_as_torch_until_its_end_and_then_the_floor"),
        ),
        Fault(
            "a batch is rounded up to its multiple",
            "train/schedule.py",
            "int(first + (last - first) * share) // multiple * multiple",
            "-(-int(first + (last - first) * share) // multiple) * multiple",
            "train/test_schedule.py::test_multiples_never_shrink_nor_exceed",
        ),
    ],
    "noise scale": [
        Fault(
            "the two batches are taken for each other",
            "train/optim.py",
            "(big * big_square - small * small_square)",
            "(big * small_square - small * big_square)",
            "train/test_optim.py::test_without_noise_and_with_noise_alone",
        ),
        Fault(
            "a rank's square is summed over all steps",
            "train/optim.py",
            "        own, self._own = self._own, 0.0\n",
            "        own = self._own\n",
            "train/test_optim.py::test_over_ranks[world-2]",
        ),
        Fault(
            "hooks stay after they were taken away",
            "train/optim.py",
            "            hook.remove()\n",
            "            pass\n",
            "train/test_optim.py::test_removed_and_without_values",
        ),
    ],
    "clipping over a grid": [
        Fault(
            "what every tensor rank has whole is counted by each",
            "train/norm.py",
            "if p not in counted_elsewhere and (first or name in cut)",
            "if p not in counted_elsewhere",
            "train/test_norm.py::test_data_pipeline_and_tensor[1-1-3]",
        ),
        Fault(
            "a tied embedding is counted by both of its stages",
            "train/norm.py",
            "if p not in counted_elsewhere and (first or name in cut)",
            "if first or name in cut",
            "train/test_norm.py::test_a_tied_embedding_counts_once",
        ),
        Fault(
            "what another rank counts is not scaled",
            "train/norm.py",
            "return clip_(comm, grads, max_norm, norm_type, counted_here)",
            "return clip_(comm, counted_here, max_norm, norm_type)",
            "train/test_norm.py::test_data_pipeline_and_tensor[1-1-3]",
        ),
    ],
}

"""Faults of what sends less or seldom, and of what large batches need: compression, Local SGD, optimizers, clipping."""

from tests.mutants.fault import Fault

FAULTS = {
    "compression: half and signs": [
        Fault(
            "all bits travel, and are rounded when they have come",
            "train/compress/half.py",
            (
                "        half = bucket.buffer.to(self.dtype)\n"
                "        all_reduce_(comm, half, algorithm=algorithm)\n"
            ),
            "        half = all_reduce_(comm, bucket.buffer, algorithm=algorithm).to(self.dtype)\n",
            "train/compress/test_cost.py::test_counted[2-cpu]",
        ),
        Fault(
            "fp16 travels where bf16 was asked for",
            "train/compress/half.py",
            "bucket.buffer.to(self.dtype)",
            "bucket.buffer.to(torch.float16)",
            "train/compress/test_half.py::test_bf16_has_the_range_of_fp32",
        ),
        Fault(
            "what all ranks have sent is taken off this rank's error",
            "train/compress/sign.py",
            "            if rank == comm.rank:\n",
            "            if rank < comm.size:\n",
            "train/compress/test_sign.py::test_the_papers_rule[True-world-2]",
        ),
        Fault(
            "what no rank has a gradient for is sent all the same",
            "train/compress/base.py",
            "if name in there and name not in small}",
            "if name not in small}",
            "train/compress/test_base.py::test_what_no_rank_has_waits[sign]",
        ),
    ],
    "PowerSGD": [
        Fault(
            "each rank keeps all that the average misses, not its part",
            "train/compress/powersgd.py",
            "torch.sub(g, average, alpha=1 / n, out=g)",
            "torch.sub(g, average, out=g)",
            "train/compress/test_powersgd.py::test_the_papers_algorithm[1-world-2]",
        ),
        Fault(
            "every step begins with a new Q",
            "train/compress/powersgd.py",
            'if not self.warm_start or "q" not in state:',
            'if self.warm_start or "q" not in state:',
            "train/compress/test_powersgd.py::test_the_papers_algorithm[1-world-2]",
        ),
        Fault(
            "the random numbers begin again in a run that goes on",
            "train/compress/powersgd.py",
            "        self._seeds.randint(SEEDS, size=self.draws)\n",
            "",
            "train/compress/test_base.py::test_resumed_bit_for_bit[cold]",
        ),
    ],
    "DGC": [
        Fault(
            "what was sent is kept, and sent again",
            "train/compress/dgc.py",
            "        v[chosen] = 0\n",
            "",
            "train/compress/test_dgc.py::test_nothing_is_lost[1-None]",
        ),
        Fault(
            "each rank is clipped by the limit for all",
            "train/compress/dgc.py",
            "self.clip / comm.size**0.5",
            "self.clip",
            "train/compress/test_dgc.py::test_with_weights[clipped]",
        ),
        Fault(
            "the first entry of a block is put into the one before",
            "train/compress/coding.py",
            "block = torch.searchsorted(\n        ends.view(torch.int64), torch.arange(count, device=packed.device), right=True\n    )",
            "block = torch.searchsorted(ends.view(torch.int64), torch.arange(count, device=packed.device))",
            "train/compress/test_coding.py::test_only_in_the_last_block",
        ),
    ],
    "LocalSGD": [
        Fault(
            "parameters are averaged a step late",
            "train/local_sgd/optimizer.py",
            "if self.since >= period:",
            "if self.since > period:",
            "train/local_sgd/test_optimizer.py::test_the_oracle[2-sgd]",
        ),
        Fault(
            "samples of the period before count again",
            "train/local_sgd/optimizer.py",
            "self.since = 0\n        self._weight = 0.0\n        self._moved = {}",
            "self.since, self._moved = 0, {}",
            "train/local_sgd/test_optimizer.py::test_samples_of_a_period_count_in_it_alone",
        ),
        Fault(
            "parameters that were frozen all through a period are sent",
            "train/local_sgd/optimizer.py",
            "params = [p for p in self._params() if p in self._moved]\n",
            "params = self._params()\n",
            "train/local_sgd/test_post_local.py::test_frozen_parameters[0-36]",
        ),
        Fault(
            "gradients are averaged after the switch, too",
            "train/local_sgd/optimizer.py",
            "nullcontext() if self.model is None or self.dense else self.model.no_sync()",
            "nullcontext()",
            "train/local_sgd/test_optimizer.py::test_bytes_are_the_formulas[3-3-6-0]",
        ),
    ],
    "AdaComm": [
        Fault(
            "the period stands still where the loss does",
            "train/local_sgd/adaptive.py",
            "if period < before.period or fallen",
            "if period <= before.period or fallen",
            "train/local_sgd/test_adaptive.py::test_the_rule_by_hand",
        ),
        Fault(
            "each rank goes by its own loss",
            "train/local_sgd/adaptive.py",
            "all_reduce_(comm, mine).unbind()",
            "mine.unbind()",
            "train/local_sgd/test_adaptive.py::test_the_rule[3-20-0.5]",
        ),
        Fault(
            "an interval ends an average late",
            "train/local_sgd/adaptive.py",
            "step - self.intervals[-1].step >= self.steps",
            "step - self.intervals[-1].step > self.steps",
            "train/local_sgd/test_adaptive.py::test_it_steers_local_sgd",
        ),
        Fault(
            "an interval in seconds begins anew in a run that goes on",
            "train/local_sgd/adaptive.py",
            'now - state["elapsed"], state["over"]',
            'now, state["over"]',
            "train/local_sgd/test_adaptive.py::test_an_interval_in_seconds_goes_on",
        ),
    ],
    "slow momentum": [
        Fault(
            "the momentum depends on the learning rate",
            "train/local_sgd/slow.py",
            (
                "                u.add_(x - p, alpha=1 / rate)\n"
                "                p.copy_(x.add_(u, alpha=-self.rate * rate))\n"
            ),
            "                u.add_(x - p)\n                p.copy_(x.add_(u, alpha=-self.rate))\n",
            "train/local_sgd/test_slow.py::test_a_rate_that_changes",
        ),
        Fault(
            "the anchor is the parameter itself, and moves with it",
            "train/local_sgd/slow.py",
            "self.anchors[p], self.buffers[p] = p.detach().clone(), torch.zeros_like(p)",
            "self.anchors[p], self.buffers[p] = p.detach(), torch.zeros_like(p)",
            "train/local_sgd/test_slow.py::test_algorithm_1[sgd-0.5-1.0]",
        ),
        Fault(
            "the momentum is not saved",
            "train/local_sgd/slow.py",
            '"momenta": self.buffers}',
            '"momenta": {p: torch.zeros_like(u) for p, u in self.buffers.items()}}',
            "train/local_sgd/test_optimizer.py::test_resumed_bit_for_bit[options1]",
        ),
    ],
    "LARS and LAMB": [
        Fault(
            "the ratio of LARS leaves out the decay",
            "train/optim/sgd.py",
            '(gradient + group["weight_decay"] * weights)',
            "gradient",
            "train/optim/test_steps.py::test_as_the_paper[lars]",
        ),
        Fault(
            "the second moment of LAMB is not corrected for its start",
            "train/optim/adamw.py",
            '(state["exp_avg_sq"] / (1 - beta2 ** state["step"]))',
            '(state["exp_avg_sq"] * 1.0)',
            "train/optim/test_steps.py::test_as_the_paper[lamb]",
        ),
        Fault(
            "a layer that is cut goes by the norms of its pieces",
            "train/optim/norms.py",
            "        if cut:\n",
            "        if not rows.numel():\n",
            "train/optim/test_sharded.py::test_a_smaller_last_batch_and_blocks[lars]",
        ),
        Fault(
            "what is whole on every rank is summed, too",
            "train/optim/norms.py",
            "cut = [i for i, names in enumerate(split) if way in names]",
            "cut = list(range(len(split)))",
            "train/optim/test_sharded.py::test_what_is_whole_on_every_rank_counts_once",
        ),
    ],
    "learning rates and ramps": [
        Fault(
            "what follows a warm-up does not begin at its own step 0",
            "train/optim/schedules.py",
            "then(step - steps)",
            "then(step)",
            "train/optim/test_schedules.py::test_one_after_the_other_as_torch",
        ),
        Fault(
            "a cosine rises again after its end",
            "train/optim/schedules.py",
            "math.cos(math.pi * min(1.0, step / steps))",
            "math.cos(math.pi * step / steps)",
            (
                "train/optim/test_schedules.py::"
                "test_cosine_as_torch_until_its_end_and_then_the_floor"
            ),
        ),
        Fault(
            "a batch is rounded up to its multiple",
            "train/optim/ramp.py",
            "int(first + (last - first) * share) // multiple * multiple",
            "-(-int(first + (last - first) * share) // multiple) * multiple",
            "train/optim/test_ramp.py::test_multiples_never_shrink_nor_exceed",
        ),
    ],
    "noise scale": [
        Fault(
            "the two batches are taken for each other",
            "train/optim/noise.py",
            "(big * big_square - small * small_square)",
            "(big * small_square - small * big_square)",
            "train/optim/test_noise.py::test_without_noise_and_with_noise_alone",
        ),
        Fault(
            "a rank's square is summed over all steps",
            "train/optim/noise.py",
            "        own, self._own = self._own, 0.0\n",
            "        own = self._own\n",
            "train/optim/test_noise.py::test_over_ranks[world-2]",
        ),
        Fault(
            "hooks stay after they were taken away",
            "train/optim/noise.py",
            "            hook.remove()\n",
            "            pass\n",
            "train/optim/test_noise.py::test_saved_removed_and_without_values",
        ),
    ],
    "clipping over a grid": [
        Fault(
            "what every tensor rank has whole is counted by each",
            "train/optim/clip.py",
            "return [\n        p for name, p in module.named_parameters() if p not in others and (first or name in how)\n    ]",
            "return [p for name, p in module.named_parameters() if p not in others]",
            "train/optim/test_clip.py::test_data_pipeline_and_tensor[1-1-3]",
        ),
        Fault(
            "a tied embedding is counted by both of its stages",
            "train/optim/clip.py",
            "return [\n        p for name, p in module.named_parameters() if p not in others and (first or name in how)\n    ]",
            "return [p for name, p in module.named_parameters() if first or name in how]",
            "train/optim/test_clip.py::test_a_tied_embedding_counts_once",
        ),
        Fault(
            "what another rank counts is not scaled",
            "train/optim/clip.py",
            (
                "return clip_(\n        comm, [p.grad for p in module.parameters() if p.grad is not None], max_norm, norm_type, mine\n    )"
            ),
            "return clip_(comm, mine, max_norm, norm_type)",
            "train/optim/test_clip.py::test_data_pipeline_and_tensor[1-1-3]",
        ),
    ],
}

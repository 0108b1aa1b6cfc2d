"""Faults of ZeRO: owners and shards, what is gathered and freed, offload, norms of what is in parts."""

from tests.mutants.fault import Fault

FAULTS = {
    "ZeRO 1 and 2": [
        Fault(
            "the masters are written back after the gather",
            "parallel/zero/optimizer.py",
            "        self._shards.masters.write_back()\n        self._shards.gather()\n",
            "        self._shards.gather()\n        self._shards.masters.write_back()\n",
            "parallel/zero/test_masters.py::test_serial_bit_for_bit[2-1-dtype0]",
        ),
        Fault(
            "gradients stay on all ranks until backward ends",
            "parallel/zero/bucket.py",
            "        self._grads = {p: self._grads[p] for p in self._params(comm.rank)}\n",
            "",
            "parallel/zero/test_memory.py::test_stage_2_frees_during_backward[2]",
        ),
        Fault(
            "a backward adds to an average as if it were one rank's part",
            "parallel/zero/averages.py",
            "elif p.grad is self._made.get(p):",
            "elif p.grad is self._held.get(p):",
            "parallel/zero/test_averages.py::test_set_aside_and_added",
        ),
        Fault(
            "what a scheduler changes does not reach the step",
            "parallel/zero/optimizer.py",
            "        self._push()\n",
            "",
            "parallel/zero/test_optimizer.py::test_groups_and_schedulers[1-step]",
        ),
        Fault(
            "another rank's shard is loaded",
            "parallel/zero/state.py",
            "if shard is not None and shard != here:",
            "if shard is not None and shard.keys() != here.keys():",
            "parallel/zero/test_state.py::test_what_does_not_fit",
        ),
        Fault(
            "masters that were loaded become the rounded parameters",
            "parallel/zero/state.py",
            (
                "    shards.masters.refresh()\n"
                '    for i, master in state_dict.get("masters", {}).items():\n'
                "        if index[i] in shards.masters.of:\n"
                "            shards.masters.of[index[i]].copy_(master)\n"
            ),
            (
                '    for i, master in state_dict.get("masters", {}).items():\n'
                "        if index[i] in shards.masters.of:\n"
                "            shards.masters.of[index[i]].copy_(master)\n"
                "    shards.masters.refresh()\n"
            ),
            "parallel/zero/test_masters.py::test_masters_are_saved",
        ),
    ],
    "ZeRO 3": [
        Fault(
            "a block is never freed",
            "parallel/zero/fully/flat.py",
            "        self.full.untyped_storage().resize_(0)\n",
            "",
            "parallel/zero/fully/test_flat.py::test_whole_and_free[False-None]",
        ),
        Fault(
            "no block is gathered ahead in forward",
            "parallel/zero/fully/schedule.py",
            "self._ahead(self._order[done : done + self.prefetch])",
            "self._ahead([])",
            "parallel/zero/fully/test_schedule.py::test_one_ahead",
        ),
        Fault(
            "backward waits for each reduction",
            "parallel/zero/fully/schedule.py",
            "        if not self.prefetch:\n            self._settle()\n",
            "        self._settle()\n",
            "parallel/zero/fully/test_schedule.py::test_prefetch_hides_what_computing_takes",
        ),
        Fault(
            "the average forgets how many copies of a shard there are",
            "parallel/zero/fully/schedule.py",
            "return 1 / (self.comm.size * self._copies)",
            "return 1 / self.comm.size",
            "parallel/zero/fully/test_replicas.py::test_it_trains_as_one_rank[World-2-2]",
        ),
        Fault(
            "a state dict has a tied parameter under one name alone",
            "parallel/zero/fully/state.py",
            "found.update({prefix + name: value for *_, name in h.sites})",
            "found[prefix + h.name] = value",
            (
                "parallel/zero/fully/test_state.py::"
                "test_the_state_dict_of_the_unsharded_module[None]"
            ),
        ),
        Fault(
            "a gradient that is missing is told by nothing from zeros",
            "parallel/zero/fully/gradients.py",
            "            view.fill_(-0.0)\n",
            "            view.zero_()\n",
            (
                "parallel/zero/fully/test_gradients.py::"
                "test_minus_zero_is_sent_for_what_is_missing_alone"
            ),
        ),
        Fault(
            "a second backward overwrites the gradients of the first",
            "parallel/zero/fully/gradients.py",
            "            piece.grad.add_(new)\n",
            "            piece.grad.copy_(new)\n",
            "parallel/zero/fully/test_sharded.py::test_accumulation[True-2]",
        ),
        Fault(
            "gradients travel in the precision of the shards",
            "parallel/zero/fully/gradients.py",
            "torch.empty(flat.total, dtype=flat.full.dtype, device=flat.full.device)",
            "torch.empty(flat.total, dtype=flat.shard.dtype, device=flat.full.device)",
            "parallel/zero/fully/test_precision.py::test_what_travels_is_16_bits",
        ),
        Fault(
            "the gradients of a frozen block are reduced",
            "parallel/zero/fully/schedule.py",
            "            if flat.trains:\n",
            "            if flat.held:\n",
            "parallel/zero/fully/test_memory.py::test_traffic_of_a_step_with_frozen_blocks",
        ),
        Fault(
            "zero_grad leaves what no_sync has accumulated",
            "parallel/zero/fully/sharded.py",
            "        for unit in self.units:\n            unit.forget()\n",
            "",
            "parallel/zero/fully/test_sharded.py::test_zero_grad_drops_what_no_sync_has_kept",
        ),
    ],
    "offload": [
        Fault(
            "an update lands a step too early after the warm-up",
            "parallel/zero/offload.py",
            'if self.mode == "exact" or self.steps <= self.warmup:',
            'if self.mode == "exact" or self.steps <= self.warmup + 1:',
            "parallel/zero/test_offload.py::test_when_an_update_lands",
        ),
        Fault(
            "the device waits for the host although it need not",
            "parallel/zero/offload.py",
            "        self.steps += 1\n",
            "        self._update.wait()\n        self.steps += 1\n",
            "parallel/zero/test_offload_host.py::test_the_host_steps_while_the_device_computes",
        ),
        Fault(
            "gradients are widened before they go down",
            "parallel/zero/offload_host.py",
            "there, before = self._coming(grad), self.gradients.get(p)",
            "there, before = self._coming(self._wide(grad, p)), self.gradients.get(p)",
            (
                "parallel/zero/test_offload_host.py::"
                "test_bytes_on_the_device_on_the_host_and_between[exact]"
            ),
        ),
        Fault(
            "the copy on the host is stepped again with an old gradient",
            "parallel/zero/offload_host.py",
            "                self.masters[p].grad = None\n",
            "                pass\n",
            (
                "parallel/zero/test_offload.py::"
                "test_one_that_has_no_gradient_for_a_while_is_not_stepped"
            ),
        ),
        Fault(
            "an update that waits is not saved",
            "parallel/zero/offload.py",
            '"pending": self.hosted.fresh is not None}',
            '"pending": False}',
            "parallel/zero/test_offload.py::test_a_run_goes_on_bit_for_bit[5-delayed]",
        ),
    ],
    "norms and clipping of shards": [
        Fault(
            "each rank goes by the norm of its own part",
            "train/norm.py",
            "all_reduce_(comm, (each**norm_type).sum()) ** (1 / norm_type)",
            "(each**norm_type).sum() ** (1 / norm_type)",
            "train/test_norm.py::test_norm[2.0]",
        ),
        Fault(
            "the factor is rounded to 16 bits",
            "train/norm.py",
            "scale.to(g.device, torch.promote_types(g.dtype, torch.float32))",
            "scale.to(g.device, g.dtype)",
            "train/test_norm.py::test_a_norm_beyond_fp16",
        ),
        Fault(
            "short gradients are lengthened to the limit",
            "train/norm.py",
            "(max_norm / (norm + 1e-6)).clamp(max=1.0)",
            "max_norm / (norm + 1e-6)",
            "parallel/zero/fully/test_clipping.py::test_as_torch_clips[3-100.0-2.0]",
        ),
        Fault(
            "the step takes its gradients anew, as they were before they were clipped",
            "parallel/zero/optimizer.py",
            "        if not self._converted:\n",
            "        if self._at_owners:\n",
            "train/test_norm.py::test_sharded_gradients_beside_tensor_ranks[2-2]",
        ),
    ],
}

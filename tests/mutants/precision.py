"""Faults of mixed precision: the loss scale, master weights, autocast, the levels."""

from tests.mutants.fault import Fault

FAULTS = {
    "loss scaling": [
        Fault(
            "a skipped step does not start the count of good ones anew",
            "train/amp.py",
            "self._good = 0 if overflow else self._good + 1",
            "self._good = self._good if overflow else self._good + 1",
            "train/test_amp.py::test_step_by_step_as_torch",
        ),
        Fault(
            "gradients that were unscaled to be clipped are divided again at the step",
            "train/amp.py",
            "        if id(optimizer) not in self._progress:\n            self.unscale_(",
            "        if self._progress.pop(id(optimizer), 1):\n            self.unscale_(",
            "train/test_amp.py::test_clipping_is_after_unscaling",
        ),
        Fault(
            "S falls below the smallest",
            "train/amp.py",
            "max(float32(self._scale * self.backoff_factor), float32(self.min_scale))",
            "float32(self._scale * self.backoff_factor)",
            "train/test_amp.py::test_the_smallest_scale",
        ),
        Fault(
            "a step is skipped only where all ranks have found an inf",
            "train/amp.py",
            'all_reduce_(self.comm, flag, "max")',
            'all_reduce_(self.comm, flag, "min")',
            "train/test_amp.py::test_all_ranks_skip_the_same_step_and_no_other",
        ),
        Fault(
            "a step with an inf backs off, and is taken all the same",
            "train/amp.py",
            "return None if overflow else optimizer.step(**kwargs)",
            "return optimizer.step(**kwargs)",
            "train/test_amp.py::test_a_static_scale_skips_and_stays",
        ),
        Fault(
            "a rank without a gradient does not join the others",
            "train/amp.py",
            "if self.comm is not None:\n            all_reduce_(",
            "if self.comm is not None and grads:\n            all_reduce_(",
            "train/test_amp.py::test_one_all_reduce_of_four_bytes",
        ),
        Fault(
            "gradients in fp16 are divided where they are",
            "train/amp.py",
            "    if low:\n",
            "    if low > len(grads):\n",
            "train/test_amp.py::test_gradients_in_fp16_are_refused",
        ),
    ],
    "master weights": [
        Fault(
            "the parameters are not written after a step",
            "train/amp.py",
            "            m.grad = None\n        self._round()\n",
            "            m.grad = None\n",
            "train/test_amp.py::test_small_updates_add_up",
        ),
        Fault(
            "where others changed one number, all masters lose their bits",
            "train/amp.py",
            "m.copy_(torch.where(m.to(p.dtype) == p, m, p.to(m.dtype)))",
            "m.copy_(p)",
            "train/test_amp.py::test_what_others_write_is_followed",
        ),
        Fault(
            "the masters' gradients stay after the step",
            "train/amp.py",
            "        for _, m in self._pairs():\n            m.grad = None\n",
            "",
            "train/test_amp.py::test_gradients_are_there_in_fp32_for_all_to_see",
        ),
        Fault(
            "a learning rate that changed does not reach the inner optimizer",
            "train/amp.py",
            (
                "        _options(self.param_groups, self.inner.param_groups)\n"
                "        self.inner.step()\n"
            ),
            "        self.inner.step()\n",
            "train/test_amp.py::test_groups_and_options",
        ),
        Fault(
            "masters are loaded, and the parameters stay as they were",
            "train/amp.py",
            "                m.copy_(value)\n            self._round()\n",
            "                m.copy_(value)\n",
            "train/test_amp.py::test_loaded_masters_are_rounded_into_the_parameters",
        ),
    ],
    "autocast lists": [
        Fault(
            "softmax runs in half",
            "train/amp.py",
            "    softmax softmin log_softmax",
            "    softmin log_softmax",
            "train/test_amp.py::test_sums_and_powers_are_fp32_here",
        ),
        Fault(
            "a weight that was changed is used as it was cast before",
            "train/amp.py",
            "if x not in self._casts or self._casts[x][0] != x._version:",
            "if x not in self._casts:",
            "train/test_amp.py::test_a_changed_weight_is_cast_again",
        ),
        Fault(
            "casts made under no_grad are kept",
            "train/amp.py",
            "x.is_leaf and x.requires_grad and torch.is_grad_enabled()",
            "x.is_leaf and x.requires_grad",
            "train/test_amp.py::test_a_cast_without_grad_is_not_kept",
        ),
        Fault(
            "the cast weights outlive the context",
            "train/amp.py",
            (
                "        self._entered -= 1\n"
                "        if not self._entered:\n"
                "            self._casts.clear()\n"
            ),
            "        self._entered -= 1\n",
            "train/test_amp.py::test_the_cache_ends_with_the_context",
        ),
        Fault(
            "an enclosing autocast casts, too",
            "train/amp.py",
            "outer = [mode for mode in autocasts() if mode is not self]",
            "pass",
            "train/test_amp.py::test_nesting",
        ),
    ],
    "levels O0 to O3": [
        Fault(
            "O2 halves batch norm, too",
            "train/amp.py",
            '"O2": Level(lists=False, half=True, wide_norms=True,',
            '"O2": Level(lists=False, half=True, wide_norms=False,',
            "train/test_amp.py::test_what_is_in_which_dtype",
        ),
        Fault(
            "bf16 gets a loss scale",
            "train/amp.py",
            "enabled=chosen.scaled and dtype == torch.float16",
            "enabled=chosen.scaled",
            "train/test_amp.py::test_bf16_needs_no_scale",
        ),
        Fault(
            "the result of a forward in half is left in half",
            "train/amp.py",
            "lambda module, args, out: cast(out, lambda x: x.float())",
            "lambda module, args, out: out",
            "train/test_amp.py::test_what_is_in_which_dtype",
        ),
        Fault(
            "gradients add up from step to step",
            "train/amp.py",
            "        self.scaler.update()\n        self.optimizer.zero_grad()\n",
            "        self.scaler.update()\n",
            "train/test_amp.py::test_near_the_fp32_step",
        ),
    ],
}

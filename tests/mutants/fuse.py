"""Faults of fused operators, of attention in tiles, and of optimizers over flat buffers."""

from tests.mutants.fault import Fault

FAULTS = {
    "fused operators": [
        Fault(
            "the variance of a norm is mean(x²) − mean²",
            "train/fuse/norm.py",
            "rstd = ((centred * centred).mean(-1, keepdim=True) + eps).rsqrt()",
            "rstd = ((wide * wide).mean(-1, keepdim=True) - mean * mean + eps).rsqrt()",
            "train/fuse/test_norm.py::test_a_large_mean_costs_no_digits",
        ),
        Fault(
            "a softmax's sum is not brought to the new peak",
            "train/fuse/online.py",
            "return peak, s * (m - peak).exp() + ",
            "return peak, s + ",
            "train/fuse/test_online.py::test_parts_of_any_size_give_one_normalizer",
        ),
        Fault(
            "a softmax reads its row once, says the meter",
            "train/fuse/online.py",
            "moved=lambda x, out_val: 3 * x.nbytes",
            "moved=lambda x, out_val: 2 * x.nbytes",
            "train/fuse/test_online.py::test_launches_and_bytes",
        ),
        Fault(
            "the mean of losses counts tokens that are ignored",
            "train/fuse/loss.py",
            "return losses.sum() / (targets != ignore_index).sum() if",
            "return losses.sum() / targets.numel() if",
            "train/fuse/test_loss.py::test_equals_torch",
        ),
        Fault(
            "ignored tokens have a gradient",
            "train/fuse/loss.py",
            "scale = dloss.reshape(-1).where(counted, 0)",
            "scale = dloss.reshape(-1)",
            "train/fuse/test_loss.py::test_all_ignored",
        ),
        Fault(
            "the slope of GELU's tanh lacks a factor of 3",
            "train/fuse/gelu.py",
            "slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * math.sqrt(2 / math.pi) * (\n            1 + 3 * CUBE * z * z\n        )",
            "slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + CUBE * z * z)",
            "train/fuse/test_gelu.py::test_the_gradient",
        ),
        Fault(
            "a sum of three is rounded twice",
            "train/fuse/add.py",
            "return (exact(a) + exact(b) + exact(c)).to(a.dtype)",
            "return a + b + c",
            "train/fuse/test_add.py::test_rounds_once",
        ),
        Fault(
            "autocast reaches inside an operator",
            "train/fuse/operator.py",
            "with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():",
            "with torch._C.DisableTorchFunction():",
            "train/fuse/test_operator.py::test_a_caller_that_casts_does_not_reach_inside",
        ),
    ],
    "flash attention": [
        Fault(
            "a query sees one key of the future",
            "train/fuse/tiles.py",
            "device=s.device).triu(1)",
            "device=s.device).triu(2)",
            "train/fuse/test_flash.py::test_equals_torch_and_the_plain_one",
        ),
        Fault(
            "what was summed up is not brought to the new peak",
            "train/fuse/tiles.py",
            "a * less[..., None] + p @ v",
            "a + p @ v",
            "train/fuse/test_flash.py::test_equals_torch_and_the_plain_one",
        ),
        Fault(
            "backward leaves out the tiles on the diagonal",
            "train/fuse/tiles.py",
            "range(j if causal else 0, len(queries))",
            "range(j + 1 if causal else 0, len(queries))",
            "train/fuse/test_flash.py::test_the_gradient",
        ),
        Fault(
            "the gradient of the queries lacks the scale",
            "train/fuse/tiles.py",
            "torch.cat(dq, 1).mul_(scale)",
            "torch.cat(dq, 1)",
            "train/fuse/test_flash.py::test_the_gradient",
        ),
        Fault(
            "gradients are summed over tiles in half",
            "train/fuse/tiles.py",
            "dkj, dvj = torch.zeros_like(kj), torch.zeros_like(vj)",
            "dkj, dvj = torch.zeros_like(kj, dtype=k.dtype), torch.zeros_like(vj, dtype=v.dtype)",
            "train/fuse/test_flash.py::test_a_gradient_is_the_sum_of_many_tiles",
        ),
        Fault(
            "the scores that backward forms again are not counted",
            "train/fuse/flash.py",
            "return 5 * _product(",
            "return 4 * _product(",
            "train/fuse/test_flash.py::test_launches_flops_and_bytes",
        ),
    ],
    "flat optimizers": [
        Fault(
            "parameters without a gradient are stepped, too",
            "train/fuse/flat.py",
            "kinds = [\n                    None if p.grad is None else self._kind(self.state.get(p, {}))\n                    for p in flat.params\n                ]",
            "kinds = [self._kind(self.state.get(p, {})) for p in flat.params]",
            "train/fuse/test_optimizers.py::test_twenty_steps",
        ),
        Fault(
            "dampening acts on the first step, too",
            "train/fuse/optimizers.py",
            "if moves else (0.0, 1.0)",
            'if moves else (0.0, 1 - float(group["dampening"]))',
            "train/fuse/test_optimizers.py::test_twenty_steps",
        ),
        Fault(
            "AdamW's decay goes into the averages, too",
            "train/fuse/steps.py",
            "grad, mean = exact(g), exact(m)",
            "grad, mean = exact(g) + decay * exact(p), exact(m)",
            "train/fuse/test_optimizers.py::test_twenty_steps",
        ),
        Fault(
            "only the first parameter is asked whether it still lies in the buffer",
            "train/fuse/flat.py",
            "return all(p.untyped_storage()._cdata == key for p in self.params)",
            "return self.params[0].untyped_storage()._cdata == key",
            "train/fuse/test_optimizers.py::test_parameters_that_got_other_memory",
        ),
        Fault(
            "a backward overwrites gradients that somebody holds",
            "train/fuse/slots.py",
            "        if _uses(self.buffer) > self._alone[0] + len(self._lent):\n"
            "            self.buffer = None\n",
            "",
            "train/fuse/test_slots.py::test_gradients_that_somebody_holds_stay_as_they_are",
        ),
        Fault(
            "all gradients are copied at the step",
            "train/fuse/slots.py",
            "                p.register_post_accumulate_grad_hook(_taking(weakref.ref(self)))\n",
            "",
            (
                "train/fuse/test_slots.py"
                "::test_a_backward_fills_one_buffer_and_the_step_gathers_nothing"
            ),
        ),
    ],
}

"""Faults of fused operators, of attention in tiles, and of optimizers over flat buffers."""

from tests.mutants.fault import Fault

FUSE = "train/fuse.py"
FLAT = "train/flat_optim.py"
TESTS = "train/test_fuse.py::test_"
OF_FLAT = "train/test_flat_optim.py::test_"

FAULTS = {
    "fused operators": [
        Fault(
            "the variance of a norm is mean(x²) − mean²",
            FUSE,
            "rstd = ((centred * centred).mean(-1, keepdim=True) + eps).rsqrt()",
            "rstd = ((wide * wide).mean(-1, keepdim=True) - mean * mean + eps).rsqrt()",
            TESTS + "a_large_mean_costs_no_digits",
        ),
        Fault(
            "a softmax's sum is not brought to the new peak",
            FUSE,
            "return peak, s * (m - peak).exp() + ",
            "return peak, s + ",
            TESTS + "parts_of_any_size_give_one_normalizer",
        ),
        Fault(
            "a softmax reads its row once, says the meter",
            FUSE,
            "moved=lambda x, out_val: 3 * x.nbytes",
            "moved=lambda x, out_val: 2 * x.nbytes",
            TESTS + "cost_of_softmax",
        ),
        Fault(
            "the mean of losses counts tokens that are ignored",
            FUSE,
            "return losses.sum() / (targets != ignore_index).sum()",
            "return losses.sum() / targets.numel()",
            TESTS + "cross_entropy_equals_torchs",
        ),
        Fault(
            "ignored tokens have a gradient",
            FUSE,
            "scale = dloss.where(targets != ignore, 0)",
            "scale = dloss",
            TESTS + "all_ignored",
        ),
        Fault(
            "the slope of GELU lacks z·φ(z)",
            FUSE,
            "slope = 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * density",
            "slope = 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + 0 * density",
            TESTS + "the_gradient",
        ),
        Fault(
            "a sum of three is rounded twice",
            FUSE,
            "return (exact(a) + exact(b) + exact(c)).to(a.dtype)",
            "return a + b + c",
            TESTS + "add3_rounds_once",
        ),
        Fault(
            "autocast reaches inside an operator",
            FUSE,
            "with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():",
            "with torch._C.DisableTorchFunction():",
            TESTS + "a_caller_that_casts_does_not_reach_inside",
        ),
        Fault(
            "an operator finds its tensors as the caller has them",
            FUSE,
            "return fn(*map(_contiguous, args))",
            "return fn(*args)",
            TESTS + "inputs_that_lie_otherwise",
        ),
    ],
    "flash attention": [
        Fault(
            "a query sees one key of the future",
            FUSE,
            "device=scores.device).triu(1)",
            "device=scores.device).triu(2)",
            TESTS + "tiles_of_any_size",
        ),
        Fault(
            "what was summed up is not brought to the new peak",
            FUSE,
            "a * less[..., None] + p @ v",
            "a + p @ v",
            TESTS + "tiles_of_any_size",
        ),
        Fault(
            "backward leaves out the tiles on the diagonal",
            FUSE,
            "if causal and j > i:",
            "if causal and j >= i:",
            TESTS + "the_gradient",
        ),
        Fault(
            "the gradient of the queries lacks the scale",
            FUSE,
            "return (dq * scale).to(q.dtype)",
            "return dq.to(q.dtype)",
            TESTS + "the_gradient",
        ),
        Fault(
            "gradients are summed over tiles in half",
            FUSE,
            "dq, dk, dv = (exact(x.new_zeros(x.shape)) for x in (q, k, v))",
            "dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))",
            TESTS + "a_gradient_is_the_sum_of_many_tiles",
        ),
        Fault(
            "the scores that backward forms again are not counted",
            FUSE,
            "5 * _product(",
            "4 * _product(",
            TESTS + "cost_of_attention",
        ),
    ],
    "flat optimizers": [
        Fault(
            "parameters without a gradient are stepped with zeros",
            FLAT,
            "                    if steps is not None:\n"
            "                        self._step_run(group, buffer, run, steps + 1)\n",
            "                    for p in buffer.params[run]:\n"
            "                        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"
            "                    self._step_run(group, buffer, run, (steps or 0) + 1)\n",
            OF_FLAT + "twenty_steps",
        ),
        Fault(
            "AdamW's decay goes into the averages, too",
            FLAT,
            "moments_(wide_m, wide_v, exact(g), (beta1, beta2))",
            "moments_(wide_m, wide_v, exact(g) + weight_decay * wide_p, (beta1, beta2))",
            OF_FLAT + "twenty_steps",
        ),
        Fault(
            "only the first parameter is asked whether it still lies in the buffer",
            FLAT,
            "all(_within(buffer.data, p) for p in buffer.params)",
            "_within(buffer.data, buffer.params[0])",
            OF_FLAT + "parameters_that_got_other_memory",
        ),
        Fault(
            "one gradient in the buffer stands for all of them",
            FLAT,
            "all(_within(self.grads, grad) for grad in grads)",
            "any(_within(self.grads, grad) for grad in grads)",
            OF_FLAT + "a_gradient_that_left_the_buffer",
        ),
        Fault(
            "the gradients are copied at every step",
            FLAT,
            "if self.grads is not None and all(",
            "if False and all(",
            OF_FLAT + "launches_bytes_and_memory",
        ),
        Fault(
            "gradients are copied into the buffer that autograd adds to",
            FLAT,
            "out=self.copies[place])",
            "out=(self.copies if self.grads is None else self.grads)[place])",
            OF_FLAT + "a_gradient_that_left_the_buffer",
        ),
        Fault(
            "fp16 is stepped in fp16",
            FLAT,
            "wide_p, wide_m, wide_v = (exact(x) for x in (p, m, v))",
            "wide_p, wide_m, wide_v = (x.clone() for x in (p, m, v))\n    exact = lambda x: x",
            OF_FLAT + "half_precision_is_worked_on_in_float32",
        ),
    ],
}

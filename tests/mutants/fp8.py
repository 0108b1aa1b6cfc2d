"""Faults of eight bits and of TF32: scales, blocks, who agrees, histories, which format."""

from tests.mutants.fault import Fault

BLOCKS = "train/test_fp8.py::test_a_scale_for_each_block"
RANKS = "train/test_fp8.py::test_ranks_agree_on_scales"
LAYER = "train/test_fp8.py::test_a_linear_layer_and_its_gradients"

FAULTS = {
    "fp8": [
        Fault(
            "the scale is a power of two too large",
            "train/fp8.py",
            "return 1 / power + 0 * amax",
            "return 2 / power + 0 * amax",
            "train/test_fp8.py::test_the_smallest_power_of_two_that_fits",
        ),
        Fault(
            "an inf is cut off and never seen",
            "train/fp8.py",
            "return 1 / power + 0 * amax",
            "return 1 / power.clamp(min=2.0**-100)",
            "train/test_fp8.py::test_what_is_not_finite_is_seen",
        ),
        Fault(
            "what is beyond the range becomes inf",
            "train/fp8.py",
            "scaled.clamp(-limit, limit).to(dtype)",
            "scaled.to(dtype)",
            "train/test_fp8.py::test_rounding",
        ),
        Fault(
            "amax of negative numbers is not seen",
            "train/fp8.py",
            "return blocks.abs().amax((1, 3))",
            "return blocks.amax((1, 3)).abs()",
            BLOCKS,
        ),
        Fault(
            "a block takes the scale of the next one",
            "train/fp8.py",
            "scale = scale.narrow(dim, 0, shape[dim])",
            "scale = scale.roll(1, dim).narrow(dim, 0, shape[dim])",
            BLOCKS,
        ),
        Fault(
            "gradients in E4M3",
            "train/fp8.py",
            '"grad": E5M2}',
            '"grad": E4M3}',
            LAYER,
        ),
        Fault(
            "dW contracts over x as it was rounded for y",
            "train/fp8.py",
            "        if scaled.grain == scaled.grain.turned:\n",
            "        if scaled.scale.numel():\n",
            LAYER,
        ),
        Fault(
            "amax is not agreed where the contraction is split",
            "train/fp8.py",
            "            if side is None and comm is not None:",
            "            if side is None and comm is not None and dimension == 'tokens':",
            RANKS,
        ),
        Fault(
            "the smallest amax of the ranks makes the scale",
            "train/fp8.py",
            'amax = all_reduce_(comm, amax.contiguous(), "max")',
            'amax = all_reduce_(comm, amax.contiguous(), "min")',
            RANKS,
        ),
        Fault(
            "of a transposed matrix rows and columns are mistaken",
            "train/fp8.py",
            "DIMENSIONS[name][::-1] if turned else DIMENSIONS[name]",
            "DIMENSIONS[name]",
            RANKS,
        ),
        Fault(
            "ranks that split outputs are taken for those that split inputs",
            "train/fp8.py",
            "inputs=layer.comm if cut is not None and cut.dim == 1 else None",
            "inputs=layer.comm if cut is not None and cut.dim == 0 else None",
            RANKS,
        ),
        Fault(
            "x is kept in 16 bits",
            "train/fp8.py",
            "ctx.save_for_backward(kept.values, kept.scale",
            "ctx.save_for_backward(kept.values.to(x.dtype), kept.scale",
            "train/test_fp8.py::test_half_the_bytes_are_kept",
        ),
        Fault(
            "the scales of tiles lie row by row",
            "train/fp8.py",
            "return x.scale.t().contiguous().t()",
            "return x.scale.contiguous()",
            "train/test_fp8.py::test_the_kernel_takes_all_sizes",
        ),
        Fault(
            "sizes are not filled up",
            "train/fp8.py",
            "(128, 128) if blocks else (16, 16)",
            "(1, 1)",
            "train/test_fp8.py::test_the_kernel_takes_all_sizes",
        ),
    ],
    "fp8, predicted": [
        Fault(
            "agreement along tokens is left out of the bytes",
            "study/predict.py",
            "return 2 * 4 * ((data - 1) * along_tokens + (tensor - 1) * along_features)",
            "return 2 * 4 * (tensor - 1) * along_features",
            "train/test_fp8.py::test_bytes_of_the_agreement",
        ),
        Fault(
            "fused attention's output is kept once",
            "study/predict.py",
            'model.hidden if attention == "explicit" else -model.hidden',
            "model.hidden",
            "study/predict/test_saved.py::test_eight_bits_keep_half_of_what_products_read",
        ),
        Fault(
            "rounding takes no time",
            "study/step.py",
            "forward += machine.passes(6 * tokens * k + 5 * n * k, 4)",
            "forward += 0",
            "study/test_plan.py::test_products_in_eight_bits",
        ),
        Fault(
            "eight bits have the rate of sixteen",
            "comm/cluster.py",
            "2 * tensor * TERA",
            "tensor * TERA",
            "train/test_fp8.py::test_a_modelled_gpu_is_charged_for_eight_bits study/test_runs.py::test_errors",
        ),
    ],
    "delayed scaling": [
        Fault(
            "this step's amax counts at once",
            "train/fp8.py",
            "        if history.steps:\n            scale =",
            "        history.steps.append(amax)\n        if history.steps:\n            scale =",
            "train/test_fp8.py::test_the_scale_is_that_of_the_steps_before",
        ),
        Fault(
            "the last amax makes the scale, not the largest",
            "train/fp8.py",
            "torch.stack([*history.steps]).amax(0)",
            "history.steps[-1]",
            "train/test_fp8.py::test_the_scale_is_that_of_the_steps_before",
        ),
        Fault(
            "what has no backward is written down, too",
            "train/fp8.py",
            "        if recorded:\n",
            "        if name:\n",
            "train/test_fp8.py::test_what_has_no_backward_is_not_written_down",
        ),
        Fault(
            "histories are not agreed",
            "train/fp8.py",
            "    if comm is not None:\n        amax =",
            "    if comm is not None and comm.size > 9:\n        amax =",
            "train/test_fp8.py::test_histories_are_agreed train/test_fp8.py::test_one_message_a_step",
        ),
        Fault(
            "an inf stays in the history",
            "train/fp8.py",
            "torch.where(value.isfinite(), value, last)",
            "value",
            "train/test_fp8.py::test_what_is_beyond_a_stale_scale_is_cut_off",
        ),
    ],
    "tf32": [
        Fault(
            "an even number goes up at a tie",
            "train/amp.py",
            "(unit // 2 - 1) + (bits >> TF32_UNUSED & 1)",
            "(unit // 2 - 1) + (~bits >> TF32_UNUSED & 1)",
            "train/test_tf32.py::test_bit_for_bit",
        ),
        Fault(
            "11 bits of fraction are read",
            "train/amp.py",
            "TF32_UNUSED = 13",
            "TF32_UNUSED = 12",
            "train/test_tf32.py::test_bit_for_bit",
        ),
        Fault(
            "a nan of other bits is rounded to a number",
            "train/amp.py",
            "torch.where(x.isfinite(), (bits & -unit).view(torch.float32), x)",
            "(bits & -unit).view(torch.float32)",
            "train/test_tf32.py::test_ends_of_the_range",
        ),
        Fault(
            "the switch stays on",
            "train/amp.py",
            'switch.allow_tf32 = before == "tf32"',
            "switch.allow_tf32 = True",
            "train/test_tf32.py::test_the_switch",
        ),
        Fault(
            "an autocast lowers the emulation to its half",
            "train/amp.py",
            "    with autocast(enabled=False):\n        return tf32(a",
            "    if True:\n        return tf32(a",
            "train/test_tf32.py::test_precision_of_a_product",
        ),
    ],
}

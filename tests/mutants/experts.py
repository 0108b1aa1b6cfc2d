"""Faults of experts: router, capacity, losses, dispatch, gradients, the mesh."""

from tests.mutants.fault import Fault

LAYER = "parallel/test_experts.py::test_the_layer_is_its_definition"
SERIAL = "parallel/test_experts.py::test_the_serial_gradients"
MESH = "parallel/test_experts.py::test_a_gpt_on_a_mesh"

FAULTS = {
    "router": [
        Fault(
            "a single expert's gate is divided by itself",
            "models.py",
            "if self.top_k > 1:",
            "if self.top_k > 0:",
            LAYER,
        ),
        Fault(
            "gates of several experts are not divided by their sum",
            "models.py",
            "if self.top_k > 1:",
            "if self.top_k > 99:",
            LAYER,
        ),
        Fault(
            "of equal experts any is taken",
            "models.py",
            "p.sort(dim=-1, descending=True, stable=True)",
            "(y.flip(-1) for y in p.sort(dim=-1, stable=True))",
            "parallel/test_experts.py::test_equal_probabilities_go_to_the_first_and_balance_is_one",
        ),
        Fault(
            "an autocast rounds the logits",
            "models.py",
            "with torch._C.DisableTorchFunction():",
            "if True:",
            "parallel/test_experts.py::test_the_router_decides_in_float32_under_an_autocast",
        ),
    ],
    "capacity": [
        Fault(
            "one more finds a seat",
            "models.py",
            "return (before * chosen).sum(-1) < self.seats(chosen.shape[1])",
            "return (before * chosen).sum(-1) <= self.seats(chosen.shape[1])",
            LAYER,
        ),
        Fault(
            "seats are counted over all samples of the rank",
            "models.py",
            "before = chosen.flatten(1, 2).cumsum(1).view_as(chosen) - chosen.long()",
            "before = chosen.flatten(0, 2).cumsum(0).view_as(chosen) - chosen.long()",
            LAYER,
        ),
        Fault(
            "all first choices are seated before the second ones",
            "models.py",
            "before = chosen.flatten(1, 2).cumsum(1).view_as(chosen) - chosen.long()",
            "before = chosen.transpose(1, 2).flatten(1, 2).cumsum(1).unflatten(1, chosen.shape[2:0:-1])"
            ".transpose(1, 2) - chosen.long()",
            LAYER,
        ),
        Fault(
            "seats do not grow with the experts of a token",
            "models.py",
            "math.ceil(self.capacity * self.top_k * tokens / self.out_features)",
            "math.ceil(self.capacity * tokens / self.out_features)",
            LAYER,
        ),
    ],
    "losses of the router": [
        Fault(
            "the balance loss lacks the number of experts",
            "models.py",
            "balance = self.out_features * (frequency",
            "balance = 1 * (frequency",
            LAYER,
        ),
        Fault(
            "balance is counted after drops",
            "models.py",
            "frequency = chosen.to(exact).mean((1, 2))  # (B, E)",
            "frequency = chosen.to(exact)\n"
            "        if self.capacity is not None:\n"
            "            frequency = frequency * self.seated(chosen)[..., None]\n"
            "        frequency = frequency.mean((1, 2))",
            LAYER,
        ),
        Fault(
            "balance is one product of the batch's means",
            "models.py",
            "(frequency * p.mean(1)).sum(-1).mean()",
            "(frequency.mean(0) * p.mean((0, 1))).sum()",
            "parallel/test_experts.py::test_samples_are_routed_by_themselves",
        ),
        Fault(
            "the losses' gradient does not count as the batch's loss does",
            "models.py",
            "return grad, ctx.one * ctx.layer.loss_scale, None",
            "return grad, ctx.one, None",
            LAYER,
        ),
        Fault(
            "the losses give no gradient",
            "models.py",
            "return grad, ctx.one * ctx.layer.loss_scale, None",
            "return grad, None, None",
            "parallel/test_experts.py::test_the_gradient_of_the_losses_by_hand",
        ),
        Fault(
            "the z-loss is not squared",
            "models.py",
            "z = logits.logsumexp(-1).square().mean()",
            "z = logits.logsumexp(-1).mean()",
            LAYER,
        ),
        Fault(
            "each micro-batch's added loss counts in full",
            "parallelize.py",
            "part.loss_scale = self.parts[action.micro] * self.scale",
            "part.loss_scale = self.scale",
            MESH + "[ep5-uneven]",
        ),
    ],
    "dispatch and combine": [
        Fault(
            "gradients go on instead of back",
            "parallel/experts.py",
            "return [all_to_all(comm, x, come, to) for x in xs]",
            "return [all_to_all(comm, x.flip(0), come, to) for x in xs]",
            SERIAL,
        ),
        Fault(
            "an expert's rows go back by expert, not by rank",
            "parallel/experts.py",
            "results[i::own] = result.split([row[i] for row in table])",
            "results[i * self.comm.size : (i + 1) * self.comm.size] = result.split([row[i] for row in table])",
            SERIAL,
        ),
        Fault(
            "rows from the last rank first",
            "parallel/experts.py",
            "result = expert(torch.cat(pieces[i::own]))",
            "result = expert(torch.cat(pieces[i::own][::-1]))",
            SERIAL,
        ),
        Fault(
            "ranks hold the wrong experts",
            "parallel/experts.py",
            "first, end = bounds(self.sizes)[comm.rank]\n        super()",
            "first, end = bounds(self.sizes)[comm.rank - 1]\n        super()",
            SERIAL,
        ),
        Fault(
            "every rank holds all experts",
            "parallel/experts.py",
            "{str(e): experts[str(e)] for e in range(first, end)}",
            "{str(e): experts[str(e)] for e in range(number)}",
            "parallel/test_experts.py::test_a_rank_holds_its_experts_alone",
        ),
        Fault(
            "all rows travel everywhere",
            "parallel/experts.py",
            'layer: type[ExpertParallel] = ExpertParallel,\n) -> nn.Module:\n    """Share out',
            'layer: type[ExpertParallel] = GatheredExperts,\n) -> nn.Module:\n    """Share out',
            "parallel/test_experts.py::test_bytes_of_a_layer",
        ),
    ],
    "gradients of experts": [
        Fault(
            "experts keep the sum over the ranks whose tokens they had",
            "parallel/experts.py",
            "p.register_hook(partial(torch.mul, other=data.size / everyone.size))",
            "p.register_hook(partial(torch.mul, other=1))",
            SERIAL,
        ),
        Fault(
            "experts are divided by all ranks, and averaged",
            "parallel/experts.py",
            "p.register_hook(partial(torch.mul, other=data.size / everyone.size))",
            "p.register_hook(partial(torch.mul, other=1 / everyone.size))",
            "parallel/test_experts.py::test_data_and_expert_ranks",
        ),
        Fault(
            "experts are averaged with others",
            "parallel/experts.py",
            "self.parts.append(DataParallel(_Part(experts), data, **options))",
            "self.parts.append(DataParallel(_Part({k: experts[k] for k in experts}), everyone, **options))",
            "parallel/test_experts.py::test_data_and_expert_ranks",
        ),
        Fault(
            "the rest is averaged over the data ranks alone",
            "parallel/experts.py",
            "self.parts = [DataParallel(_Part(rest), everyone, **options)]",
            "self.parts = [DataParallel(_Part(rest), data, **options)]",
            SERIAL,
        ),
        Fault(
            "every expert rank counts the rest in the norm",
            "parallel/experts.py",
            "return [p for p in module.parameters() if comm.rank and p not in own]",
            "return []",
            "parallel/test_experts.py::test_the_norm_counts_each_gradient_once",
        ),
        Fault(
            "experts of later ranks are left out of the norm",
            "parallel/experts.py",
            "return [p for p in module.parameters() if comm.rank and p not in own]",
            "return [p for p in module.parameters() if comm.rank]",
            "parallel/test_experts.py::test_the_norm_counts_each_gradient_once",
        ),
        Fault(
            "the norm of a mesh leaves out the axis ep",
            "parallelize.py",
            'along(mesh, "pp", "ep", "tp")',
            'along(mesh, "pp", "tp")',
            MESH + "[ep2]",
        ),
        Fault(
            "ranks with fewer samples weigh their losses after backward",
            "parallelize.py",
            "self.pipeline.factor = everyone.size * decide(part, on_meta=1 / everyone.size)",
            "self.pipeline.factor = 1.0",
            MESH + "[ep5-uneven]",
        ),
    ],
    "formulas of experts": [
        Fault(
            "what comes to a rank's experts is not sent back",
            "study/predict.py",
            "rows = (away + visitors) * hidden * itemsize",
            "rows = 2 * away * hidden * itemsize",
            "parallel/test_experts.py::test_bytes_of_a_layer",
        ),
        Fault(
            "experts are averaged over all ranks",
            "study/predict.py",
            "shared = 2 * (data - 1) * (experts + tensors[0])",
            "shared = 2 * (data * ranks - 1) * (experts + tensors[0])",
            "parallel/test_experts.py::test_bytes_of_a_step",
        ),
        Fault(
            "the first layer has experts, not the second",
            "study/predict.py",
            "return ((first + layers[stage]) // 2 - first // 2)",
            "return ((first + layers[stage] + 1) // 2 - (first + 1) // 2)",
            "study/predict/test_grid.py::test_parameters_of_a_rank_that_shares_out_experts",
        ),
        Fault(
            "a rank holds all experts",
            "study/predict.py",
            "own = uneven(model.experts or 0, expert)[0]",
            "own = model.experts or 0",
            "study/predict/test_grid.py::test_parameters_of_a_rank_that_shares_out_experts",
        ),
        Fault(
            "a token's FLOPs grow with all experts",
            "study/predict.py",
            "weights = (model.top_k - 1) * mlp_matrices(model) + model.hidden * model.experts",
            "weights = (model.experts - 1) * mlp_matrices(model) + model.hidden * model.experts",
            "study/predict/test_grid.py::test_flops_of_a_token_grow_with_its_experts_alone",
        ),
        Fault(
            "ZeRO is searched with experts that are shared out",
            "study/plan.py",
            'alone or chosen["expert"] > 1 else 4',
            "alone else 4",
            "study/test_plan.py::test_experts_are_shared_out_where_one_rank_has_no_room",
        ),
    ],
}

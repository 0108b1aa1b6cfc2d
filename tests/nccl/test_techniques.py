"""Every technique of minidist.parallel and minidist.train over the pretended NCCL, compared with its oracle.

A row of a table is a technique, the numbers of ranks, and the tests of other files which run there over the pretence
(see `instead`): program, oracle and comparison are those of that test. `make test` runs SMALL. With `--full` all
rows run with headers, and what sends and receives itself without them, too.
"""

import math
from functools import partial as call
from itertools import product

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.parallel.schedules import gpipe, interleaved, one_f_one_b, zb_h1
from tests import parallelized, test_parallelize
from tests import test_parallelize as test_trainer
from tests.checkpoint import test_checkpoint, test_resume
from tests.collectives import test_algorithms, test_verbs
from tests.comm import test_nccl
from tests.examples import gpts, scripts
from tests.gpu import ranks, runs
from tests.nccl import programs
from tests.nccl.instead import Row, wrong
from tests.parallel import (
    test_accumulate,
    test_batchnorm,
    test_compositions,
    test_compress,
    test_data,
    test_experts,
    test_fully_sharded,
    test_local_sgd,
    test_offload,
    test_pipedream,
    test_pipeline,
    test_tensor,
    test_vocab,
    test_zero,
)
from tests.size import FULL
from tests.train import optim_cases as large_batches
from tests.train import test_amp, test_norm, test_optim, test_remat

ALL = (2, 3, 4)
PAIR = (2,)
THREE = (3,)
FOUR = (4,)
BOTH = (False, True)


def each(test, *cases):
    """The same test with several tuples of arguments."""
    return [call(test, *case) for case in cases]


def fixed(*tests):
    """Tests that know the number of ranks themselves."""
    return lambda n, folder: list(tests)


def at(test, *more, where=()):
    """A test that is told the number of ranks, between other arguments."""
    return lambda n, folder: [call(test, *where, n, *more)]


def over(n):
    """In place of the runner that a test is given."""
    return lambda *args, **kwargs: World(n).run(*args, **kwargs)


def unsaid(words):
    """In place of the fixture `figure`."""


def inside(folder, name):
    """A folder of its own."""
    (folder / name).mkdir(exist_ok=True)  # a test runs again from its beginning
    return folder / name


OTHERS = ("naive", "tree", "double_tree", "halving_doubling", "pipelined", "hierarchical", "auto")
COLLECTIVES = {
    "verbs, ring": Row(ALL, at(test_verbs.test_verbs_world, "ring")),
    "verbs, native": Row(ALL, at(test_verbs.test_verbs_world, "native")),
    "verbs, other algorithms": Row(
        ALL, lambda n, _: each(test_verbs.test_verbs_world, *product([n], OTHERS))
    ),
    "lengths, ring": Row(ALL, at(test_algorithms.test_in_a_world, where=["ring"])),
    "lengths, native": Row(ALL, at(test_algorithms.test_in_a_world, where=["native"])),
    "lengths, other algorithms": Row(
        ALL, lambda n, _: each(test_algorithms.test_in_a_world, *product(OTHERS, [n]))
    ),
    "in place": Row(
        ALL,
        lambda n, _: each(
            test_verbs.test_in_place_world,
            *((n, name) for name in (*test_verbs.IN_PLACE_ALGORITHMS, "native")),
        ),
    ),
    "native, on parts": Row(THREE, fixed(test_nccl.test_every_collective_on_every_kind_of_comm)),
}

BACKWARDS = (
    ("two backwards", None),
    ("retain_graph", 2),
    ("two forwards", None),
    ("create_graph", 1),
    ("after an error early", 1),
    ("after an error late", 1),
    ("checkpointed", 1),
    ("recomputed", 1),
)
COMPRESSED = ({}, {"bucket_bytes": 1}, {"bucket_bytes": 300, "overlap": False})
NORMED = {2: ([2, 4], "sum"), 3: ([4, 0, 2], "sum"), 4: ([2, 2, 2, 2], "mean")}
DATA = {
    "DataParallel": Row(ALL, at(test_data.test_the_serial_step, where=["processes"])),
    "DataParallel, all models and buckets": Row(
        ALL, at(test_data.test_the_serial_step, where=["world"])
    ),
    "DataParallel, accumulation": Row(
        ALL, lambda n, _: each(test_data.test_accumulation, *product([n], (1, 2, 4)))
    ),
    "DataParallel, backward in other ways": Row(
        ALL,
        lambda n, _: each(
            test_data.test_backward_in_other_ways, *((*case, n) for case in BACKWARDS)
        ),
    ),
    "DataParallel, unused parameters": Row(
        ALL,
        lambda n, _: each(test_data.test_unused_on_some_ranks_and_on_all, *product([n], BOTH)),
    ),
    "DataParallel, no work": Row(PAIR, fixed(test_data.test_a_rank_without_work_calls_average)),
    "DataParallel, start": Row(ALL, at(test_data.test_all_start_as_rank_0)),
    "DataParallel, buffers": Row(THREE, fixed(test_data.test_buffers_follow_rank_0)),
    "DataParallel, dtypes": Row(
        THREE,
        fixed(
            *each(
                test_data.test_dtypes,
                (torch.float32, 1e-6),
                (torch.bfloat16, 2e-2),
                (torch.float16, 2e-3),
            )
        ),
    ),
    "compressed buckets": Row(
        THREE,
        fixed(*each(test_data.test_shares_in_sums_out, *product(COMPRESSED, BOTH, BOTH))),
    ),
    "half": Row(
        ALL,
        lambda n, _: each(
            test_compress.test_within_a_rounding,
            ("world", n, torch.float16, 2**-11),
            ("world", n, torch.bfloat16, 2**-8),
        ),
    ),
    "PowerSGD": Row(
        ALL,
        lambda n, _: each(
            test_compress.test_the_papers_algorithm, *product(["world"], [n], (1, 2))
        ),
    ),
    "DGC": Row(
        ALL,
        lambda n, _: each(
            test_compress.test_over_ranks,
            *product(["world"], [n], ("plain", "clipped, another momentum")),
        ),
    ),
    "DGC, weights": Row(
        THREE,
        fixed(
            *each(test_compress.test_dgc_with_weights, ("plain",), ("clipped",)),
            call(test_compress.test_nothing_is_lost, 3),
        ),
    ),
    "signs": Row(ALL, at(test_compress.test_the_papers_rule, where=["world"])),
    "signs, weights": Row(THREE, fixed(test_compress.test_sign_with_weights)),
    "SyncBatchNorm": Row(ALL, at(test_batchnorm.test_the_serial_norm, where=["world"])),
    "SyncBatchNorm, DataParallel": Row(
        ALL, lambda n, _: each(test_batchnorm.test_under_data_parallel, NORMED[n])
    ),
    "SyncBatchNorm, recomputed": Row(PAIR, fixed(test_batchnorm.test_recomputed_in_backward)),
    "accumulation by tokens": Row(
        (2, 3),
        at(
            test_accumulate.test_among_ranks_with_different_numbers_of_tokens_and_one_without,
            where=["world"],
        ),
    ),
    "recomputation, random numbers": Row(
        THREE,
        fixed(
            *each(
                test_remat.test_among_ranks_with_random_numbers_of_their_own,
                *product(["world"], test_remat.FORMS),
            )
        ),
    ),
    "recomputation, collectives": Row(
        THREE, fixed(*each(test_remat.test_collectives_are_repeated, *product(test_remat.FORMS)))
    ),
    "compositions": Row((2, 3), at(test_compositions.test_all_pairs, where=["World"])),
}

STAGES = (1, 2)
ROUTES = {2: ((0, 1), (2, 2)), 3: ((1, 1, 1), (0, 2, 2), (0, 1, 2))}
BUCKETS = (
    {"overlap": False},
    {"bucket_bytes": 1},
    {},
)
HOW = ("no_sync", "none", "zeros", "module", "kept", "average")
ZERO = {
    "ZeRO 1": Row(
        ALL,
        lambda n, _: each(test_zero.test_serial, *product(test_zero.OPTIMIZERS, [n], [1])),
    ),
    "ZeRO 2": Row(
        ALL,
        lambda n, _: each(test_zero.test_serial, *product(test_zero.OPTIMIZERS, [n], [2])),
    ),
    "ZeRO 2, AdamW": Row(ALL, lambda n, _: each(test_zero.test_serial, ("adamw", n, 2))),
    "ZeRO, models": Row(
        THREE, fixed(*each(test_zero.test_other_models, *product(("mlp", "mixed"), STAGES)))
    ),
    "ZeRO, weights": Row(
        ALL, lambda n, _: each(test_zero.test_uneven_batches, *product([n], STAGES))
    ),
    "ZeRO, buckets": Row(THREE, fixed(*each(test_zero.test_options, *product(BUCKETS)))),
    "ZeRO, groups": Row(
        THREE,
        fixed(
            *each(test_zero.test_groups_and_schedulers, *product(("cycle", "step"), STAGES)),
            *each(test_zero.test_groups_grow_and_parameters_thaw, *product(STAGES)),
        ),
    ),
    "ZeRO, accumulation": Row(
        THREE,
        fixed(
            *each(test_zero.test_accumulation, *product(STAGES, HOW)),
            *each(
                test_zero.test_an_average_is_told_from_what_is_added_to_it,
                ("plain",),
                ("dropped",),
                ("clipped",),
                ("again",),
            ),
        ),
    ),
    "ZeRO, gradients of some ranks": Row(
        (2, 3),
        lambda n, _: each(
            test_zero.test_gradients_that_some_ranks_or_none_have, *product(ROUTES[n], STAGES)
        ),
    ),
    "ZeRO, clipping": Row(
        THREE, fixed(*each(test_norm.test_clipping, *product(STAGES, [0.3], [2.0])))
    ),
    "ZeRO, state": Row(THREE, fixed(*each(test_zero.test_whole, *product(test_zero.OPTIMIZERS)))),
    "ZeRO, masters": Row(
        (2, 4),
        lambda n, _: each(
            test_zero.test_serial_bit_for_bit,
            *product((torch.float16, torch.bfloat16), [n], [n // 2]),
        ),
    ),
    "ZeRO, loss scaling": Row(
        PAIR,
        fixed(*each(test_zero.test_a_loss_scaler_steps_all_ranks_or_none, *product(STAGES))),
    ),
    "ZeRO, replicas of shards": Row(
        FOUR,
        fixed(
            *each(
                test_zero.test_replicas_are_the_serial_optimizer,
                *product(["adamw"], [2], [2], STAGES),
            ),
            *each(
                test_zero.test_gradients_that_one_replica_has_and_buckets_in_its_order,
                *product([(0, 1, 2, 2)], STAGES),
            ),
        ),
    ),
    "ZeRO, experts": Row(
        FOUR,
        fixed(
            *each(
                test_experts.test_a_gpt_on_a_mesh,
                *product(["dp2-ep2", "pp2-ep2-zero2-halves"], [unsaid]),
            )
        ),
    ),
    "offload, replicas": Row(
        ALL, fixed(*each(test_offload.test_over_ranks, ("exact",), ("delayed",)))
    ),
    "offload, in backward": Row(
        PAIR,
        fixed(
            *each(
                test_offload.test_exact_is_the_plain_optimizer,
                *product(("mlp", "hard", "mixed"), ["adamw"], BOTH),
            )
        ),
        alone=True,
    ),
    "offload, delayed": Row(
        PAIR,
        fixed(
            *each(
                test_offload.test_delayed_is_a_serial_loop_one_update_behind,
                ("adamw", 0),
                ("adamw", 3),
            )
        ),
        alone=True,
    ),
    "offload, shards": Row(
        FOUR,
        fixed(
            *each(
                test_offload.test_shards_on_several_hosts,
                *product(("adamw", "lion"), ("exact", "delayed"), STAGES),
            )
        ),
    ),
}


def prefetched(n, k):
    """With k blocks gathered ahead the serial parameters."""
    for state in World(n).run(test_fully_sharded.trained, "plain", False, k):
        assert test_fully_sharded.far(state, test_fully_sharded.oracle("plain")) < 1e-14


OURS = ("inside ours", "inside ours reentrant", "outside ours", "outside ours reentrant")
SHARDED = ({"prefetch": 0}, {"prefetch": 2, "blocks": nn.Linear})
FULLY = {
    "FullySharded": Row(
        ALL,
        lambda n, _: each(
            test_fully_sharded.test_trains_as_one_rank,
            *product([n], ["hard"], test_fully_sharded.OPTIMIZERS),
        ),
    ),
    "FullySharded, prefetch": Row(ALL, lambda n, _: each(prefetched, *product([n], (0, 1, 2)))),
    "FullySharded, weights": Row(ALL, at(test_fully_sharded.test_uneven_last_batches)),
    "FullySharded, two dtypes": Row(THREE, fixed(test_fully_sharded.test_parameters_of_two_dtypes)),
    "FullySharded, groups, thawed": Row(
        THREE,
        fixed(
            test_fully_sharded.test_groups_of_parameters,
            test_fully_sharded.test_frozen_and_thawed_on_the_way,
        ),
    ),
    "FullySharded, accumulation": Row(
        (2, 3), lambda n, _: each(test_fully_sharded.test_accumulation, *product([n], BOTH))
    ),
    "FullySharded, recomputed": Row(
        (2, 3),
        lambda n, _: each(
            test_fully_sharded.test_recomputed_and_called_twice,
            *product(test_fully_sharded.HOW, [n]),
        ),
    ),
    "FullySharded, recomputed by ours": Row(
        THREE,
        fixed(*each(test_fully_sharded.test_recomputed_by_our_own_checkpoint, *product(OURS))),
    ),
    "FullySharded, the whole recomputed": Row(
        PAIR, fixed(*each(test_fully_sharded.test_the_whole_recomputed, ("plain",), ("outside",)))
    ),
    "FullySharded, other calls": Row(
        PAIR,
        fixed(
            test_fully_sharded.test_a_block_that_calls_itself,
            test_fully_sharded.test_forms_of_inputs_and_outputs,
            test_fully_sharded.test_recomputation_draws_the_same_numbers,
            *each(
                test_fully_sharded.test_without_a_backward,
                ("eval",),
                ("no_grad",),
                ("inference",),
                ("graph",),
            ),
            *each(
                test_fully_sharded.test_after_an_error, ("forward", over(2)), ("backward", over(2))
            ),
        ),
    ),
    "FullySharded, a GPT in blocks": Row(
        THREE,
        fixed(
            *each(
                test_fully_sharded.test_a_gpt,
                ("one", True),
                ("deep", True),
                ("deep", False),
            )
        ),
    ),
    "FullySharded, missing gradients": Row(
        ALL,
        lambda n, _: each(
            test_fully_sharded.test_missing_here_elsewhere_and_everywhere, *product([n], BOTH, BOTH)
        ),
    ),
    "FullySharded, clipping": Row(
        THREE,
        fixed(
            *each(
                test_fully_sharded.test_as_torch_clips, *product([3], [0.01], (2.0, 1.0, math.inf))
            ),
            call(test_fully_sharded.test_training_with_clipping, over(3)),
            test_fully_sharded.test_nothing_to_clip,
        ),
    ),
    "FullySharded, 16 bits": Row(
        THREE,
        fixed(*each(test_fully_sharded.test_masters_by_hand, (torch.float16,), (torch.bfloat16,))),
    ),
    "FullySharded, loss scaling": Row(
        (2, 4),
        lambda n, _: each(
            test_fully_sharded.test_a_loss_scaler_skips_on_all_ranks_and_losses_are_those_of_o2,
            (n, None),
            (n, 2),
        ),
    ),
    "FullySharded, offload": Row(
        THREE, fixed(call(test_fully_sharded.test_offloaded_trains_as_one_rank, over(3)))
    ),
    "FullySharded, state": Row(
        THREE,
        fixed(
            *each(
                test_fully_sharded.test_the_state_dict_of_the_unsharded_module, (None,), (0,), (1,)
            ),
            *each(test_fully_sharded.test_loading, (None,), (0,), (2,)),
            test_fully_sharded.test_shards_are_saved_and_loaded,
        ),
    ),
    "FullySharded, replicas": Row(
        (3, 4),
        lambda n, _: each(
            test_fully_sharded.test_it_trains_as_one_rank,
            *(("World", s, r) for s, r in test_fully_sharded.GRIDS if s * r == n),
        ),
    ),
    "FullySharded, replicas, options": Row(
        FOUR,
        fixed(
            *each(test_fully_sharded.test_options, *product(("hard", "mixed"), SHARDED)),
            call(test_fully_sharded.test_clipping_counts_each_shard_once, 2, 2),
            test_fully_sharded.test_clipping_by_the_function_for_any_model,
            test_fully_sharded.test_a_full_state_dict_from_one_rank_reaches_all,
        ),
    ),
}


def of_large_batches(n):
    """Sharded steps of LARS and LAMB."""
    test_optim.test_zero(
        "world", n, {name: large_batches.serial(name) for name in large_batches.OPTIMIZERS}
    )


ADAPTIVE = {
    2: [test_local_sgd.test_it_steers_local_sgd],
    4: [],
    3: [test_local_sgd.test_the_parameters, test_local_sgd.test_adaptive_in_both_worlds],
}
CLIPPED = {n: [grid for grid in test_norm.GRIDS if math.prod(grid) == n] for n in ALL}
STEPS = {
    "LocalSGD": Row(
        ALL,
        lambda n, _: each(
            test_local_sgd.test_optimizer_the_oracle, *product(test_local_sgd.OPTIMIZERS, [n])
        ),
    ),
    "LocalSGD, weights": Row(ALL, at(test_local_sgd.test_uneven_parts)),
    "LocalSGD, weights of nobody": Row(THREE, fixed(test_local_sgd.test_weights_of_nobody)),
    "LocalSGD, states": Row(
        THREE,
        fixed(
            *each(
                test_local_sgd.test_states_the_oracle,
                *product(("momentum", "adamw"), test_local_sgd.STATES),
            )
        ),
    ),
    "LocalSGD, masters": Row((2, 3), at(test_local_sgd.test_masters_are_averaged)),
    "post-local SGD": Row(
        ALL, lambda n, _: each(test_local_sgd.test_post_local, (n, "momentum"), (n, "adamw"))
    ),
    "slow momentum": Row(
        THREE, fixed(*each(test_local_sgd.test_algorithm_1, ("sgd", 0.5), ("adamw", 0.7)))
    ),
    "AdaComm": Row(
        ALL, lambda n, _: [call(test_local_sgd.test_the_rule, n, 20, 0.5), *ADAPTIVE[n]]
    ),
    "large batches, ZeRO 1, 2 and 3": Row(ALL, at(of_large_batches)),
    "large batches, tensor ranks": Row(
        ALL,
        lambda n, _: each(
            test_optim.test_tensor_parallel, *(("world", n, *how) for how in test_optim.TENSOR)
        ),
    ),
    "large batches, a grid": Row(
        FOUR,
        fixed(
            *each(test_optim.test_both, *((2, 2, *how) for how in test_optim.TENSOR)),
            *each(test_optim.test_replicas, *test_optim.TENSOR),
        ),
    ),
    "the noise scale": Row(ALL, at(test_optim.test_over_ranks, where=["world"])),
    "the norm on a grid": Row(
        ALL, lambda n, _: each(test_norm.test_data_pipeline_and_tensor, *CLIPPED[n])
    ),
    "the norm, a tied embedding": Row(THREE, fixed(test_norm.test_a_tied_embedding_counts_once)),
    "loss scaling": Row((2, 3), at(test_amp.test_all_ranks_skip_the_same_step_and_no_other)),
    "loss scaling, masters": Row(
        PAIR, fixed(*each(test_amp.test_with_data_parallel, ("masters",), ("parallel",)))
    ),
    "loss scaling, ZeRO": Row(
        (2, 3),
        lambda n, _: each(
            test_amp.test_a_sharded_optimizer_skips_on_all_ranks,
            *product([n], STAGES, (None, 0.1)),
        ),
    ),
}

OPTIONS = (
    dict(attention="explicit"),
    dict(gelu="none"),
    dict(rotary=True),
    dict(gated=True, ffn=13),
)
AROUND = {
    2: [test_tensor.test_dropout],
    3: [test_tensor.test_dropout_of_whole_and_split_data_in_turn],
    4: [],
}
RANDOM = {
    3: call(test_tensor.test_same_and_different, "world"),
    4: test_tensor.test_groups,
}
TENSOR = {
    "operators": Row(ALL, at(test_tensor.test_the_backward_is_the_transpose, where=["world"])),
    "linear layers": Row(ALL, at(test_tensor.test_the_serial_layers, where=["world"])),
    "tensor layers, whole and sequence": Row(
        ALL, at(test_tensor.test_the_serial_layer, where=["world"])
    ),
    "tensor layers, options": Row(
        THREE, fixed(*each(test_tensor.test_other_options, *product(OPTIONS)))
    ),
    "tensor layers, dtypes": Row(
        THREE,
        fixed(
            *each(
                test_tensor.test_dtypes,
                *product((torch.float32, torch.bfloat16, torch.float16), ("whole", "regather")),
            )
        ),
    ),
    "rows first": Row(ALL, at(test_tensor.test_rows_first_is_the_serial_mlp_too)),
    "parts": Row(ALL, at(test_tensor.test_apart_and_together, where=["world"])),
    "gathered again": Row(THREE, fixed(test_tensor.test_as_the_operator_and_a_linear_layer)),
    "norms of sequences": Row(
        ALL,
        lambda n, _: [
            call(test_tensor.test_a_norm_of_parts_of_the_sequence, "world", n),
            *AROUND[n],
        ],
    ),
    "random numbers": Row((3, 4), lambda n, _: [RANDOM[n]]),
    "cross entropy": Row(ALL, at(test_vocab.test_the_serial_loss, where=["world"])),
    "embedding": Row(
        ALL,
        lambda n, _: each(test_vocab.test_trained_as_one, ("world", n, 5), ("world", n, 11)),
    ),
}


def every_schedule(n):
    """All schedules, V among them."""
    ranks.pipelines_as_serial(World(n).run(ranks.pipelines))


BATCHES = {
    2: test_pipeline.test_micro_batches_of_different_lengths,
    3: test_pipeline.test_batches_of_other_sizes_follow_each_other,
}
FORWARDS = {2: [(2, 3, "loop")], 3: [(3, 1, "loop"), (3, 2, "loop"), (3, 2, "V")]}
FROZEN = ((), (0,), (1, 2), (3,))
TIED = {2: [(interleaved, 2), (gpipe, 1)], 3: [(zb_h1, 1), (one_f_one_b, 1)], 4: [(one_f_one_b, 1)]}
SUMS = {
    2: test_pipeline.test_two_names_are_two_sums,
    4: test_pipeline.test_some_hold_it_and_some_have_no_gradient,
}
PIPELINES = {
    "pipelines": Row(
        ALL, at(test_pipeline.test_the_serial_gradient_over_processes, where=["processes"])
    ),
    "pipelines, every schedule": Row((2, 4), at(every_schedule)),
    "pipelines, any order": Row(
        FOUR, fixed(*each(test_pipeline.test_any_order_that_can_be, *product(range(25))))
    ),
    "pipelines, several tensors": Row(
        FOUR,
        fixed(
            *each(
                test_pipeline.test_several_tensors_and_frozen_stages,
                *product(("1f1b", "gpipe", "h1"), BOTH, FROZEN),
            )
        ),
    ),
    "pipelines, other batches": Row((2, 3), lambda n, _: [BATCHES[n]]),
    "pipelines, forward": Row(
        (2, 3),
        lambda n, _: each(
            test_pipeline.test_the_serial_outputs, *(("world", *how) for how in FORWARDS[n])
        ),
    ),
    "tied parameters": Row(
        ALL,
        lambda n, _: each(
            test_pipeline.test_the_serial_steps, *(("world", n, *how) for how in TIED[n])
        ),
    ),
    "tied parameters, sums": Row((2, 4), lambda n, _: [SUMS[n]]),
    "PipeDream": Row(ALL, at(test_pipedream.test_the_serial_simulation, where=["processes"])),
    "PipeDream, recomputed": Row(
        THREE,
        fixed(
            *each(
                test_pipedream.test_recomputed_with_the_same_weights,
                ("stash",),
                ("vertical",),
                ("2bw",),
            )
        ),
    ),
    "PipeDream, own lists": Row(
        PAIR,
        fixed(test_pipedream.test_a_list_of_ones_own, test_pipedream.test_a_second_stream_goes_on),
    ),
    "PipeDream, gradients": Row(
        FOUR,
        fixed(
            *each(
                test_pipedream.test_the_gradient_at_the_weights_of_the_forward,
                (over(4), "stash"),
                (over(4), "vertical"),
            ),
            test_pipedream.test_of_a_group,
        ),
    ),
}


def again_and_again():
    ranks.mixed_as_serial(World(4).run(ranks.mixed))


def server():
    """Refused in a sentence that says what to do."""
    assert all("--backend gloo" in words for words in World(2).run(programs.server))


def nobody_waits(n):
    """In a step after the first the host waits for no device."""
    for rank, found in enumerate(World(n).run(programs.waits)):
        assert not any(found.values()), f"rank {rank}: {found}"


def saved(n, folder, how):
    test_resume.test_every_bit(inside(folder, how), "world", n, how)


def last_k(n, folder, wait):
    test_checkpoint.test_the_last_k(inside(folder, f"wait {wait}"), "world", n, wait)


def other_masters(folder, before, after):
    test_trainer.test_masters_at_another_stage(inside(folder, f"{before} {after}"), before, after)


LEVELS = (("O1", torch.bfloat16), ("O2", torch.float16), ("O3", torch.bfloat16))
LOGITS = (
    (dict(dp=2, pp=2), dict(micro_batches=3, zero=3)),
    (dict(dp=2, pp=2), dict(micro_batches=4, schedule=interleaved, chunks=2, zero=1)),
)
GRIDS = {
    name: parallelized.ranks(dict(enumerate(axes)))
    for name, (axes, *_) in test_parallelize.CASES.items()
}
WHOLE = {
    **{
        f"grid, {name}": Row((n,), fixed(call(test_parallelize.compare, "world", name)))
        for name, n in GRIDS.items()
        if n in ALL
    },
    "data 2 × tensor 2 × ZeRO 3": Row(FOUR, fixed(again_and_again)),
    "mixed precision on grids": Row(FOUR, fixed(*each(test_trainer.test_mixed_precision, *LEVELS))),
    "logits and losses": Row(
        FOUR, fixed(*each(test_trainer.test_values_that_are_given_logits_and_losses, *LOGITS))
    ),
    "dropout on a grid": Row(FOUR, fixed(test_trainer.test_dropout)),
    "a grid, stopped and resumed": Row(
        FOUR, lambda n, folder: [call(test_trainer.test_stopped_and_resumed_bit_for_bit, folder)]
    ),
    "masters at another stage": Row(
        PAIR,
        lambda n, folder: each(
            other_masters, *((folder, *how) for how in ((0, 1), (1, 0), (2, 0), (3, 3)))
        ),
    ),
    "saved during training": Row(
        ALL, lambda n, folder: each(saved, *product([n], [folder], ("compressed", "zero", "fully")))
    ),
    "the last checkpoints": Row(ALL, lambda n, folder: each(last_k, *product([n], [folder], BOTH))),
    "a parameter server": Row(PAIR, fixed(server)),
    "host waits": Row(ALL, at(nobody_waits)),
}


def learns(script, flags, n, folder):
    """A script that trains a GPT has the losses of the serial model."""
    gpts.check_losses(
        scripts.results(
            script, {"here": [*gpts.SHORT, *flags]}, folder, scripts.as_torchrun, ranks=n
        )
    )


def of_runs(name):
    """What the first hour on GPUs compares of a script."""
    return lambda n, folder: [call(runs.RUNS[name], scripts.as_torchrun, n, "nccl", folder)]


SEQUENCE = {2: ["--sequence"], 3: []}
SCHEDULE = {2: "1f1b", 3: "zb_h1", 4: "gpipe"}
EXAMPLES = {
    "train_digits.py": Row(ALL, of_runs("digits")),
    "train_tensor.py": Row(
        (2, 3), lambda n, folder: [call(learns, "train_tensor.py", SEQUENCE[n], n, folder)]
    ),
    "train_pipeline.py": Row(
        ALL,
        lambda n, folder: [
            call(
                learns,
                "train_pipeline.py",
                ["--schedule", SCHEDULE[n], "--micro-batches", "4"],
                n,
                folder,
            )
        ],
    ),
    "train_gpt.py": Row((2, 4), of_runs("trainer")),
    "train_gpt.py, saves": Row(ALL, of_runs("saving")),
}

GROUPS = {
    "collectives": COLLECTIVES,
    "data": DATA,
    "zero": ZERO,
    "fully": FULLY,
    "steps": STEPS,
    "tensor": TENSOR,
    "pipelines": PIPELINES,
    "whole": WHOLE,
    "examples": EXAMPLES,
}
EVERY = {name: row for rows in GROUPS.values() for name, row in rows.items()}

# What runs in `make test`, by the number of ranks: some row of each technique, where it costs least.
SMALL = {
    2: (
        "lengths, native",
        "signs",
        "half",
        "offload, in backward",
        "offload, delayed",
        "accumulation by tokens",
        "SyncBatchNorm, recomputed",
        "loss scaling",
        "LocalSGD, masters",
        "pipelines, other batches",
        "pipelines, forward",
        "PipeDream, own lists",
        "the last checkpoints",
        "a parameter server",
        "host waits",
        "train_pipeline.py",
    ),
    3: (
        "lengths, ring",
        "native, on parts",
        "DataParallel",
        "PowerSGD",
        "DGC",
        "ZeRO 2, AdamW",
        "FullySharded, prefetch",
        "large batches, tensor ranks",
        "linear layers",
        "cross entropy",
        "embedding",
        "PipeDream",
        "grid, pp 3, whole stages again",
    ),
    4: (
        "random numbers",
        "the norm on a grid",
        "grid, dp 2, pp 2, zero 3, interleaved",
        "grid, dp 2, tp 2, selective",
    ),
}


def told(failed):
    return "".join(f"\n{name}: {type(error).__name__}: {error}" for name, error in failed)


def asks_for(program, expected):
    """A row for one rank, whose comparison is equality."""

    def test():
        assert World(1).run(program) == expected

    return Row((1,), fixed(test), alone=True)


def test_mistakes_are_told(tmp_path):
    """Each by the name of its row; the others run all the same."""
    here = torch.device("cpu", 0)
    rows = {
        "unplaced": asks_for(programs.unplaced, []),
        "unwaited": asks_for(programs.unwaited, []),
        "another result": asks_for(programs.placed, []),
        "right": asks_for(programs.placed, [(here, here, here, 3.0)]),
    }
    failed = {name: type(error).__name__ for name, error in wrong(rows, 1, tmp_path)}
    assert failed == {"unplaced": "Refused", "unwaited": "Race", "another result": "AssertionError"}


@pytest.mark.parametrize("n", ALL)
def test_some_techniques(n, tmp_path):
    failed = wrong({name: EVERY[name] for name in SMALL[n]}, n, tmp_path)
    assert not failed, told(failed)


# Without headers nothing is different but in what sends and receives itself.
WITHOUT = ("collectives", "pipelines", "whole")

if FULL:

    @pytest.mark.parametrize("n", ALL)
    @pytest.mark.parametrize(
        ("group", "checked"), [*product(GROUPS, [True]), *product(WITHOUT, [False])]
    )
    def test_all_techniques(group, n, checked, tmp_path, figure):
        failed = wrong(GROUPS[group], n, tmp_path, checked)
        count = sum(n in row.ns for row in GROUPS[group].values())
        headers = "with" if checked else "without"
        figure(f"{group}, {n} ranks, {headers} headers: {len(failed)} of {count} fail")
        assert not failed, told(failed)

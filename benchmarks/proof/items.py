"""What each capability must show: title → what the figure means, and the tests that show it, as pytest names them."""

from __future__ import annotations


def lessons(*names: str) -> tuple[str, ...]:
    """No notebook is stale, and all of these lessons is right."""
    return (
        "planted answers that are caught; seconds for the bank and for each notebook",
        "tests/repository/test_notebooks.py::test_nothing_is_stale",
        *(f"tests/bank/test_lesson.py::test_a_lesson[{name}]" for name in names),
    )


FOUNDATION = {
    "1 fresh clone": (
        "minutes of the installation and of `make test`, which drives `make lab` in a browser",
        "tests/repository/test_clone.py",
    ),
    "2 digits in three worlds": (
        "accuracy, and the losses beside the serial run's",
        "tests/examples/test_train_digits.py::test_every_world",
    ),
    "3 all-reduce, every n and length": (
        "results beside the serial sum; messages and bytes by formula; two runs are identical",
        "tests/collectives/test_ring.py",
    ),
    "4 cost of a message in a World": (
        "µs of this process's own time, and their ratio to that among 8 ranks",
        "tests/benchmarks/test_world.py",
    ),
    "5 launch": (
        "seconds until four ranks run; what 200 launches leave behind",
        "tests/benchmarks/test_ratios.py::test_start",
        "tests/comm/test_launch.py::test_many_launches_leave_nothing_behind",
    ),
    "6 ring over processes against gloo": (
        "how many times as fast as gloo's own all-reduce, at every size",
        "tests/benchmarks/test_ratios.py::test_all_reduce",
    ),
    "7 bank and notebooks": lessons("02_messages", "05_data_parallel"),
    "8 failures": (
        "what the user sees of five failures, and after how many seconds",
        "tests/comm/test_failures.py",
    ),
    "9 nbgrader round trip": (
        "points of a right, a half-right and a cheating submission",
        "tests/repository/test_nbgrader.py",
    ),
}

WORLD = {
    "1 1,024 ranks": (
        "1 GiB over 1,024 simulated GPUs, without and with the meter; the cost of a message beside that at 8",
        "tests/collectives/test_ring.py::test_many_ranks",
        "tests/benchmarks/test_world.py",
    ),
    "2 topologies": (
        "64 MiB on 16 DGX H100: predicted and simulated; a ring in an H200 node: simulated and measured",
        "tests/collectives/test_verbs.py::test_clusters[16 nodes-67108864]",
        "tests/collectives/test_verbs.py::test_auto_is_the_fastest[cluster3-128-67108864]",
        "tests/collectives/test_ring.py::test_the_bandwidth_inside_a_node_is_what_was_measured",
    ),
    "3 published figures": (
        "what the calculators of memory reproduce",
        "tests/study/predict/test_states.py",
        "tests/study/predict/test_transformer.py",
        "tests/study/predict/test_claims.py",
    ),
    "4 the meter": (
        "FLOPs of a layer against a count by hand; peaks against what the allocator says",
        "tests/comm/test_meter.py",
        "tests/study/predict/test_saved.py",
    ),
    "5 DataParallel and overlap": (
        "how many times as fast as DDP over gloo; what overlap gains over a slow link",
        "tests/benchmarks/test_ratios.py::test_data_parallel",
    ),
    "6 SyncBatchNorm": (
        "against one process with the whole batch",
        "tests/parallel/test_batchnorm.py",
    ),
    "7 lessons": lessons("01_walls", "03_topology", "04_trees", "06_buckets", "07_whole_batch"),
}

MODEL_PARALLEL = {
    "1 tensor parallel": (
        "bytes sent and activations kept; outputs and gradients are the serial ones",
        "tests/parallel/test_tensor.py",
    ),
    "2 vocabulary": (
        "the loss of GPT-2's vocabulary, and bytes that do not grow with it",
        "tests/parallel/test_vocab.py",
    ),
    "3 schedules": (
        "each on 1 to 8 stages and 1 to 16 micro-batches: the serial gradient; bubble and peak as by formula",
        "tests/parallel/test_pipeline.py",
        "tests/parallel/test_schedules.py",
        "tests/parallel/test_simulate.py",
        "tests/parallel/test_validate.py",
    ),
    "4 published bubbles": (
        "published bubble rates, which have four digits, simulated",
        "tests/study/test_literature.py",
    ),
    "5 PipeDream": (
        "with stashing every gradient is that of the weights its forward used; without, it is not",
        "tests/parallel/test_pipedream.py",
    ),
    "6 ratios": (
        "how many times as fast as PyTorch's own over gloo",
        "tests/benchmarks/test_ratios.py::test_tensor",
        "tests/benchmarks/test_ratios.py::test_pipeline",
    ),
    "7 lessons": lessons("14_tensor", "15_vocabulary", "16_pipelines", "18_pipedream"),
}

MEND = {
    "1 wrapped twice": (
        "a cell that runs again gives what it gave the first time, in a World, over shared memory and gloo",
        "tests/parallel/test_wrapped_twice.py",
        "tests/parallel/test_compositions.py::test_what_was_replaced_says_so",
    ),
    "2 two Comms of one group": (
        "all-reduces on a lane of each at the same time do not mix",
        "tests/comm/test_torchdist.py::test_two_from_env_on_lanes",
        "tests/comm/test_torchdist.py::test_groups_and_meshes",
        "tests/comm/test_torchdist.py::test_two_models_with_a_comm_each",
    ),
    "3 compositions": (
        "8 × 8 pairs of wrappers, each right or refused in words; hybrid sharding, and its bytes",
        "tests/parallel/test_compositions.py",
        "tests/parallel/test_fully_sharded.py",
    ),
    "4 a program that changes what it reaches": (
        "each change of the notebook's tensors, lists and dicts is named; reading is free",
        "tests/comm/test_changed.py",
    ),
    "5 posted operations": (
        "messages hold what their senders had, in every world; an ordered World stops where a model of queues does",
        "tests/comm/test_posted_order.py",
        "tests/comm/test_wires.py",
    ),
    "6 after a mismatch": (
        "the next collective is right, and after how many seconds",
        "tests/comm/test_disagreement.py::test_after_a_mismatch_the_next_collective_works",
        "tests/comm/test_disagreement.py::test_after_a_mismatch_over_gloo",
    ),
    "7 callers that say different things": (
        "each hears it, and after how many seconds",
        "tests/comm/test_disagreement.py::test_what_callers_say_is_compared",
        "tests/comm/test_disagreement.py::test_over_gloo",
        "tests/comm/test_disagreement.py::test_a_run_of_three_ranks_over_gloo_ends",
    ),
    "8 NaN": (
        "the lint of comparisons that NaN passes",
        "tests/repository/test_nan.py",
    ),
    "9 a stopped rank": (
        "how often it is named, and only it",
        "tests/comm/test_stopped.py",
    ),
    "10 one class of errors": (
        "one base class, in a World and over shared memory",
        "tests/comm/test_base.py::test_one_class_is_caught_where_ranks_disagree_or_one_is_gone",
    ),
    "11 interrupts": (
        "seconds until Worlds inside of Worlds are over, with a real SIGINT and in a kernel",
        "tests/comm/test_world.py",
    ),
    "12a two hosts": (
        "hosts whose names stand for loopback, over gloo",
        "tests/comm/test_torchdist.py",
    ),
    "12b one sentence": (
        "wrong arguments end in one sentence, under torchrun too; so do wrong folders",
        "tests/examples/test_train_gpt.py::test_under_torchrun_too",
        "tests/examples/test_train_gpt.py::test_what_cannot_be_is_said_in_one_sentence_before_a_rank_starts",
        "tests/examples/test_train_gpt.py::test_rank_0_alone_says_it",
        "tests/checkpoint/test_checkpoint.py",
    ),
    "13 nothing is left": (
        "kill -9 to pytest, to a worker, to both",
        "tests/test_reaper.py",
    ),
    "14 wrong calls": (
        "each with its words",
        "tests/calls",
        "tests/test_arguments.py",
        "tests/comm/test_launch.py::test_arguments_of_another_type",
    ),
    "15 outputs": (
        "what is equal and what is not, as nbval sees it; the lint of what cannot be stable",
        "tests/repository/test_tolerance.py",
        "tests/repository/test_stable.py",
    ),
    "16 other processors": (
        "the notebooks that failed there, with SSE, with AVX2, with two threads",
        "tests/repository/test_portable.py",
    ),
    "17 other Pythons": (
        "a missing rank is named with where it is, on the Python that runs this; the norm does not recurse",
        "tests/comm/test_launch.py::test_a_missing_rank_is_named_with_where_it_is",
        "tests/minicheck/lessons/test_zero.py",
    ),
    "18 installed": (
        "`pip wheel .`, installed into an empty environment outside the repository",
        "tests/repository/test_wheel.py",
    ),
    "19 README and set-up": (
        "the table of techniques, the commands, set-up with a Python that does not fit",
        "tests/repository/test_readme.py",
    ),
    "20 make test in a fresh clone": FOUNDATION["1 fresh clone"],
}

NCCL = {
    "A1 an ungrouped two-way exchange, a first operation not shared, two threads": (
        "each hang is found, with the lines of both ranks",
        "tests/comm/test_nccl_like.py::test_a_hang_is_found_with_the_lines_of_both_ranks",
        "tests/comm/test_nccl_like.py::test_what_nccl_does_passes",
    ),
    "A2 what is refused, races, waits of the host": (
        "each is seen",
        "tests/comm/test_nccl_like.py::test_what_is_refused",
        "tests/comm/test_nccl_like.py::test_where_the_host_waits_is_seen",
        "tests/comm/test_nccl_like.py::test_devices_are_told_apart",
    ),
    "A3, A4, B4, B11 every technique": (
        "so are parallelize's cases, saves during training and waits of the host, each with headers and without",
        "-n",
        "2",
        "tests/nccl",
    ),
    "B1 pipelines": (
        "before: with one receive posted ahead, which is the default, a pipeline hangs at its first step",
        "tests/comm/test_over_nccl.py::test_pipelines",
    ),
    "B2, B6 groups of overlapping or reordered ranks": (
        "before: three stages never meet; rows are in another order than the ranks",
        "tests/comm/test_over_nccl.py::test_groups_of_overlapping_ranks_meet",
    ),
    "B3a lanes are streams": (
        "before: a lane is a thread, whose work is on the default stream",
        "tests/comm/test_nccl.py",
    ),
    "B3b data 2 × tensor 2, each ZeRO stage ten times": (
        "runs that end, each rank's losses the same every time",
        "tests/comm/test_over_nccl.py::test_data_and_tensor_ranks_again_and_again",
    ),
    "B5 a message as the first operation": (
        "before: it hangs on three ranks",
        "tests/comm/test_over_nccl.py::test_a_message_may_be_the_first_operation",
    ),
    "B7 kernels in float64": (
        "before: 1e-12 and 9e-8 off, by reading; this wants a GPU",
        "tests/gpu/test_kernels.py",
    ),
    "B8 the server": (
        "before: a worker blocks",
        "tests/comm/test_over_nccl.py::test_a_server_is_refused",
    ),
    "B9 a rank fails": (
        "before: torchrun does not learn of it",
        "tests/comm/test_over_nccl.py::test_one_rank_fails_and_the_others_end",
    ),
    "B10 a group of GPUs under gloo; random numbers; MFU": (
        "before: lanes over gloo; an error where the number of GPUs differs; a product that is too small",
        "tests/comm/test_over_nccl.py::test_a_group_of_gpus_alone_under_a_group_of_gloo",
        "tests/checkpoint/test_checkpoint.py",
        "tests/study/test_meter.py",
    ),
}

MEMORY = {
    "1 stages": (
        "bytes of a rank by category; the training is the serial one",
        "tests/parallel/test_zero.py",
        "tests/parallel/test_offload.py",
    ),
    "2 peak of stage 3": (
        "the peak of a step, and its bound",
        "tests/parallel/test_fully_sharded.py",
    ),
    "3 mixed precision": (
        "what each level loses, in five seeds, with a scaler and without",
        "tests/benchmarks/test_amp.py",
        "tests/train/test_amp.py",
    ),
    "4 checkpointing": (
        "memory and FLOPs of √L segments, measured and predicted; equal gradients",
        "tests/train/test_remat.py",
        "tests/train/test_selective.py",
        "tests/train/test_reversible.py",
        "tests/parallel/test_accumulate.py",
    ),
    "5 attention in tiles": (
        "its memory as T doubles",
        "tests/train/test_fuse.py",
        "tests/train/test_flat_optim.py",
    ),
    "6 ratios": (
        "stages 1 and 3, checkpointing, fused operators, beside PyTorch's own",
        "tests/benchmarks/test_ratios.py::test_zero",
        "tests/benchmarks/test_ratios.py::test_remat",
        "tests/benchmarks/test_ratios.py::test_fuse",
    ),
    "7 lessons": lessons("09_precision", "11_remat", "12_operators", "13_zero"),
}

TALK_LESS = {
    "1 parameter server": (
        "synchronous bit for bit, asynchronous repeated, the bound kept, servers equally full",
        "tests/parallel/test_server.py",
    ),
    "2a bytes of DGC": (
        "counted and by formula, after the warm-up",
        "tests/parallel/test_compress.py::test_a_million_weights_at_every_sparsity_of_the_warm_up",
        "tests/parallel/test_compress.py::test_a_million_weights_of_values",
    ),
    "2b accuracy of DGC": (
        "five seeds, dense and at 99.9 %: within half a point, and half a percent of the loss",
        "tests/parallel/test_compress_convergence.py::test_the_digits_within_half_a_point_of_dense",
        "tests/parallel/test_compress_convergence.py::test_the_text_within_half_a_percent_of_dense",
    ),
    "2c parts of DGC": (
        "without momentum correction or masking it is worse by more than the spread of five seeds",
        "tests/parallel/test_compress_convergence.py::test_without_a_part_it_does_not_learn",
        "tests/parallel/test_compress.py",
    ),
    "3a PowerSGD": (
        "parameters after 20 steps, beside torch's hook",
        "tests/parallel/test_compress.py::test_powersgd_beside_pytorchs_hook",
    ),
    "3b post-local SGD": (
        "parameters after 20 steps, beside PyTorch's optimizer, averager and hook",
        "tests/parallel/test_local_sgd.py",
    ),
    "4 optimizers": (
        "the largest difference of a parameter to references, after any of 12 steps; sharded as unsharded",
        "tests/train/test_optim.py",
        "tests/train/test_norm.py",
        "tests/train/test_schedule.py",
    ),
    "5 slow link": (
        "time to a loss on links of 100 Mbit/s and 1 Gbit/s, each way against dense",
        "tests/benchmarks/test_slow_link.py",
        "tests/benchmarks/test_hosts.py",
    ),
    "6a lessons": lessons("08_server", "23_compress", "25_large_batches"),
    "6b large batches": (
        "wrong variants fail by more than the spread of five seeds; steps by size of the batch",
        "tests/benchmarks/test_optim.py",
    ),
}

WHOLE = {
    "1 every grid": (
        "eight ranks under torchrun: off the serial losses",
        "tests/benchmarks/test_trainer.py::test_a_grid_of_eight_ranks_under_torchrun",
    ),
    "2 prose": (
        "what `examples/train_gpt.toml` learns, and writes",
        "tests/benchmarks/test_prose.py",
    ),
    "3 kills": (
        "100 kills at random moments; three ranks killed under torchrun",
        "tests/benchmarks/test_trainer.py::test_kills",
        "tests/benchmarks/test_trainer.py::test_ranks_are_killed_under_torchrun",
    ),
    "4 another grid": (
        "saved on two each of data, pipeline and tensor ranks, resumed on others: off the serial losses",
        "tests/benchmarks/test_trainer.py::test_saved_on_a_cube_and_resumed_elsewhere",
    ),
    "5 planner": (
        "every published run beside what the planner says, with constants fitted and left out; and its own time",
        "tests/study/test_plan.py",
        "tests/study/test_runs.py",
        "tests/study/test_fit.py",
    ),
    "6 two hosts": (
        "the 3D GPT on two hosts, of which one dies and comes back",
        "tests/benchmarks/test_two_hosts.py",
    ),
    "7a DDP and FSDP2": (
        "losses and parameters: largest difference from gloo's; none at two ranks",
        "tests/comm/test_processgroup.py",
        "tests/comm/test_torchdist.py",
    ),
    "7b every collective": (
        "results on whole numbers that are gloo's, bit for bit",
        "tests/comm/test_processgroup.py::test_every_call",
    ),
    "8a lessons": lessons("19_hybrid", "26_survive", "28_capstone"),
    "8b make test": FOUNDATION["1 fresh clone"],
}

HOUSE = {
    "1 mutants": (
        "planted faults by technique, and that each is found",
        "tests/mutants/test_faults.py",
    ),
    "2 size": (
        "files and tokens, before the first move and now",
        "tests/repository/test_size.py::test_it_has_not_grown",
    ),
    "3 files of one call": (
        "what a reader opens who follows it",
        "tests/repository/test_size.py::test_files_of_one_call",
    ),
    "4 imports, layout, README": (
        "who may import whom, without a circle; one statement a line; every row of the README is there",
        *(
            f"tests/repository/test_{name}.py"
            for name in ("imports", "syntax", "source", "readme", "wheel")
        ),
    ),
}

UNIFY = {
    "1 size": (
        "files and tokens of the library, of its techniques and of graders, before the first move and now",
        "tests/repository/test_size.py::test_it_has_not_grown",
    ),
    "2 files of one call": (
        "what a reader opens who follows it",
        "tests/repository/test_size.py::test_files_of_one_call",
    ),
    "3 behaviour": (
        "planted faults by technique, and that each is found",
        "tests/mutants/test_faults.py",
    ),
    "4 ZeRO": (
        "bytes and memory of each stage as promised; the training is the serial one",
        "tests/parallel/test_zero.py",
        "tests/parallel/test_fully_sharded.py",
        "tests/study/predict/test_zero.py",
    ),
    "5 kills": WHOLE["3 kills"],
    "6 resharding": WHOLE["4 another grid"],
    "7 1,024 ranks": WORLD["1 1,024 ranks"],
    "8 published runs": WHOLE["5 planner"],
    "9 wrong calls": (
        "a hundred over the whole public API, beside those of before: each with its words",
        "tests/calls",
    ),
}

GRADING = {
    "1 hostile submissions": (
        "each gets a right mark in bounded time, no file is changed, nothing is left; as root and as another user",
        "tests/hostile/test_hostile.py",
        "tests/minicheck/test_sandbox.py",
    ),
    "2 cheats": (
        "against the examination in a sandbox all are refused",
        "tests/hostile/test_cheats.py",
    ),
    "3 wrong answers": (
        "planted, each with words that help; right ones in other styles are accepted",
        "tests/bank",
        "tests/minicheck/lessons",
    ),
    "4 notebooks as they come": (
        "repaired, unreadable, of nbgrader's folder or a platform's zip; a class of eight by nbgrader",
        "tests/repository/test_nbgrader.py",
        "tests/minicheck/test_submission.py",
        "tests/minicheck/test_uploads.py",
        "tests/minicheck/test_grade.py",
    ),
    "5 release": (
        "for students, without solutions: exercises are checked in it",
        "tests/repository/test_release.py",
    ),
}

PREDICT = {
    "1 errors by source": (
        "fitted and left out; how many constants, on how many runs each",
        "tests/study/test_fit.py",
        "tests/study/test_runs.py",
    ),
    "2 what fits": (
        "published configurations that ran, and those that ran out of memory",
        "tests/study/test_fits.py",
    ),
    "3 five seconds": (
        "175 B on 1,024 H100s: the whole command",
        "tests/study/test_plan.py",
    ),
    "4 whole grids in a World": (
        "steps of the trainer on meta tensors, beside the planner's and what was published",
        "tests/benchmarks/test_simulate.py",
    ),
    "5 any model, any cluster": (
        "by its numbers, by a file of TOML; as a table, as JSON, as a picture",
        "tests/study/test_catalog.py",
        "tests/study/test_picture.py",
    ),
    "6 published schedules": (
        "bubbles of interleaved schedules and of ZB-V; DGC's count; LARS at a gradient of zero",
        "tests/study/predict/test_pipelines.py",
        "tests/study/test_literature.py",
        "tests/parallel/test_compress.py",
        "tests/train/test_optim.py",
    ),
}

PRACTICE = {
    "1 experts": (
        "equal to serial by n and world; bytes of a layer and of a step; who has too much, on the timeline",
        "tests/parallel/test_experts.py",
    ),
    "2 long contexts": (
        "equal to serial by n, dtype and world; bytes, memory, the exchange beside the block",
        "tests/parallel/test_context.py",
    ),
    "3 eight bits, and TF32": (
        "equal to serial by n and world; bytes; what is lost without scales, and by a stale one",
        "tests/train/test_fp8.py",
        "tests/train/test_fp8_learning.py",
        "tests/train/test_fp8_trainer.py",
        "tests/train/test_tf32.py",
    ),
    "4 a GPT on a grid": (
        "data × expert, context, tensor × context, replicas: losses are the serial run's in a World and in processes",
        "tests/test_parallelize.py",
        "tests/examples/test_train_gpt.py",
    ),
    "5 is my run right": (
        "planted answers whose cause is named, and right ones for which none is invented; tolerances beside differences",
        "tests/study/test_compare.py",
    ),
    "6 Hugging Face's layout": (
        "logits beside transformers', both ways; what a rank reads; any grid",
        "tests/checkpoint/test_huggingface.py",
    ),
    "7 where a cluster hangs": (
        "recorded dumps told in words; findings in planted environments",
        "tests/comm/test_flight.py",
        "tests/comm/test_doctor.py",
    ),
    "8 tools": (
        "two traces with the same phases; what torch.compile fuses of a layer, and the ratio to eager",
        "tests/examples/test_profiled.py",
        "tests/benchmarks/test_compiled.py",
    ),
    "9 map of frameworks": (
        "every technique of the README, every name with where it stands",
        "tests/repository/test_frameworks.py",
    ),
    "10 assignments": lessons("10_eight_bits", "20_experts", "21_long_contexts", "27_field_guide"),
    "11 planted faults": (
        "by technique, and that each is found",
        "tests/mutants/test_faults.py",
    ),
    "12 size": (
        "files and tokens of the library, of its techniques and of graders, before the first move and now",
        "tests/repository/test_size.py::test_it_has_not_grown",
    ),
}

LESSONS_A = {
    "1 the form": (
        "words, visible lines, schematics, links, folded answers, what can be touched; CPU seconds, 30 at most",
        "tests/repository/test_lessons.py",
    ),
    "2 links and terms": (
        "every link of every notebook resolves: lessons, files, terms, papers by identifier",
        "tests/repository/test_links.py",
        "tests/repository/test_hidden.py",
    ),
    "3 schematics": (
        "one style, words that are large enough and do not overlap, each with words for those who cannot see it",
        "tests/repository/test_figures.py",
    ),
    "4 in JupyterLab, in a page, on the site": (
        "alternative text arrives, answers are folded, sliders show Python's numbers, no page asks for anything",
        "tests/browser/test_lab.py",
        "tests/browser/test_shown.py",
        "tests/browser/test_explore.py",
        "tests/browser/test_editor.py",
        "tests/browser/test_viewer.py",
        "tests/browser/test_site.py",
    ),
    "5 exercises": lessons(
        "01_walls",
        "02_messages",
        "03_topology",
        "04_trees",
        "05_data_parallel",
        "06_buckets",
        "07_whole_batch",
        "08_server",
        "09_precision",
    ),
}

LESSONS_B = {title: item for title, item in LESSONS_A.items() if title != "5 exercises"} | {
    "5 exercises": lessons(
        "10_eight_bits",
        "11_remat",
        "12_operators",
        "13_zero",
        "14_tensor",
        "15_vocabulary",
        "16_pipelines",
        "17_schedules",
        "18_pipedream",
        "19_hybrid",
    ),
}

LESSONS_C = {title: item for title, item in LESSONS_A.items() if title != "5 exercises"} | {
    "5 exercises": lessons(
        "20_experts",
        "21_long_contexts",
        "22_plan",
        "23_compress",
        "24_local_sgd",
        "25_large_batches",
        "26_survive",
        "27_field_guide",
        "28_capstone",
    ),
    "6 all that must be said": (
        "each sentence that the course must say, with the cell that says it",
        "tests/repository/test_covered.py",
    ),
    "7 terms and symbols": (
        "no bold term without its entry in English and Chinese, no entry without its lesson; letters and where they are used",
        "tests/repository/test_terms.py",
    ),
    "8 the way through": (
        "which lesson needs which, and paths that come to no lesson too early",
        "tests/repository/test_way.py",
    ),
    "9 work of one's own": (
        "a pull over half-done work loses nothing; what has changed, what is right, what is next",
        "tests/minicheck/test_work.py",
    ),
    "10 size": (
        "files and tokens of the library and of graders",
        "tests/repository/test_size.py::test_it_has_not_grown",
    ),
}

FRONT = {
    "1 a newcomer": (
        "README followed to the letter in a fresh clone and a fresh shell: minutes to the first picture and the first right exercise",
        "tests/repository/test_front.py",
    ),
    "2 a fresh Debian": (
        "the same with nothing but Debian, in an account without rights; the commands of the Dockerfile",
        "tests/repository/test_debian.py",
    ),
    "3 commands": (
        "every command of README and of the pages it leads to, as it stands there, or by a stand-in that is named",
        "tests/repository/test_commands.py",
        "tests/repository/test_readme.py",
    ),
    "4 set-up": (
        "the wheel in an empty environment; what conda hands to pip; a Python that does not fit, an installation that fails",
        "tests/repository/test_wheel.py",
        "tests/repository/test_dependencies.py",
        "tests/repository/test_install.py",
        "tests/repository/test_version.py",
    ),
    "5 site": (
        "seconds to build it offline; every page in a browser, wide and narrow, light and dark; lessons without a clone",
        "tests/browser/test_site.py",
        "tests/repository/test_website.py",
        "tests/repository/test_workflows.py",
    ),
    "6 reference": (
        "every public name: entry, errors, example that passes; what it is called elsewhere",
        "tests/repository/test_reference.py",
        "tests/repository/test_rosetta.py",
    ),
    "7 first changes": (
        "the three changes of CONTRIBUTING, each as it stands there",
        "tests/repository/test_contributing.py",
    ),
    "8 project": (
        "version, citation, licences, forms; the film at the head of README; what to do when something goes wrong",
        "tests/repository/test_project.py",
        "tests/repository/test_film.py",
        "tests/browser/test_film.py",
        "tests/repository/test_troubleshooting.py",
    ),
    "9 progress": (
        "`make test` says how far it is, goes on after a failure, and sums up",
        "tests/repository/test_progress.py",
    ),
}

PROOFS = {
    "foundation": FOUNDATION,
    "world": WORLD,
    "model-parallel": MODEL_PARALLEL,
    "memory": MEMORY,
    "talk-less": TALK_LESS,
    "whole": WHOLE,
    "mend": MEND,
    "nccl": NCCL,
    "house": HOUSE,
    "unify": UNIFY,
    "grading": GRADING,
    "predict": PREDICT,
    "practice": PRACTICE,
    "lessons-a": LESSONS_A,
    "lessons-b": LESSONS_B,
    "lessons-c": LESSONS_C,
    "front": FRONT,
}

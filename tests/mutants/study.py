"""Faults of predictions and pictures: memory, plans, costs, the allocator, what is drawn."""

from tests.mutants.fault import Fault

FAULTS = {
    "memory formulas": [
        Fault(
            "one mask of dropout is counted, and there are two",
            "study/memory/activations.py",
            "whole = (8 + 2 * dropout) * x",
            "whole = (8 + dropout) * x",
            "study/memory/test_activations.py::test_table_2_of_activation_recomputation",
        ),
        Fault(
            "ZeRO's first stage divides gradients, too",
            "study/memory/states.py",
            "gradients=per.gradient * (part if zero >= 2 else whole)",
            "gradients=per.gradient * (part if zero >= 1 else whole)",
            "study/memory/test_states.py::test_shards_of_all_ranks_add_up_to_the_whole",
        ),
        Fault(
            "a softmax's dropout keeps an output where there is no dropout",
            "study/memory/saved.py",
            "each * step.square * step.dropout,",
            "each * step.square,",
            "study/memory/test_saved.py::test_a_model_keeps_what_we_count[explicit-0.0-cpu-dtype0]",
        ),
        Fault(
            "more micro-batches are in flight than there are",
            "study/memory/activations.py",
            "return min(ahead, micro_batches * interleave)",
            "return ahead",
            "study/memory/test_activations.py::test_in_flight_as_a_schedule_has_it",
        ),
        Fault(
            "the gradient of the logits is counted once",
            "study/memory/peak.py",
            "2 * 4 * rows * model.vocab + 4,",
            "4 * rows * model.vocab + 4,",
            (
                "study/memory/test_peak.py"
                "::test_the_meter_measures_what_we_predict[sdpa-0.0-dtype0-cpu]"
            ),
        ),
        Fault(
            "the scores that fused attention forms again are not counted",
            "study/memory/transformer.py",
            "    again += attention_flops(model, batch, t) // 2 * fused_attention\n",
            "",
            "study/memory/test_transformer.py::test_flops_as_pytorch_counts_them",
        ),
        Fault(
            "ZeRO's third stage gathers one layer at a time",
            "study/memory/grid.py",
            "2 * _layer(model, grid.tensor) * PRECISIONS[grid.precision].parameter\n        if grid.zero == 3\n        else 0",
            "_layer(model, grid.tensor) * PRECISIONS[grid.precision].parameter if grid.zero == 3 else 0",
            "study/memory/test_grid.py::test_zero_divides_what_is_left_of_the_model",
        ),
    ],
    "planner": [
        Fault(
            "chunks do not make the bubble smaller",
            "study/plan.py",
            "for s, count in kinds.items()) - slowest.total) / v",
            "for s, count in kinds.items()) - slowest.total)",
            "study/test_plan.py::test_the_bubble_is_the_schedules",
        ),
        Fault(
            "one micro-batch is recomputed, not each",
            "study/plan.py",
            "M * slowest.again,",
            "slowest.again,",
            "study/test_plan.py::test_what_each_choice_costs",
        ),
        Fault(
            "ZeRO's second stage reduces once a step",
            "study/plan.py",
            "times = grid.micro_batches if grid.zero >= 2 else 1",
            "times = 1",
            "study/test_plan.py::test_what_each_choice_costs",
        ),
        Fault(
            "ranks that share a wire have it each alone",
            "study/plan.py",
            "max(level.beta * level.share for level in levels)",
            "max(level.beta for level in levels)",
            "study/test_plan.py::test_errors",
        ),
        Fault(
            "what the driver takes is not reserved",
            "study/plan.py",
            "return self.memory.total + self.messages + RESERVED",
            "return self.memory.total + self.messages",
            "study/test_plan.py::test_memory_of_bloom",
        ),
        Fault(
            "a rival is not the best of its kind",
            "study/plan.py",
            "if value != chosen and (value not in by_value or rank(one) < rank(by_value[value])):",
            "if value != chosen and value not in by_value:",
            "study/test_plan.py::test_rivals_say_why",
        ),
    ],
    "costs of collectives": [
        Fault(
            "the slowest algorithm is chosen",
            "collectives/verbs.py",
            "if time <= 1.03 * min(times))",
            "if time >= max(times))",
            "collectives/test_verbs.py::test_auto_is_the_fastest",
        ),
        Fault(
            "combining costs nothing",
            "collectives/verbs.py",
            "(Uniform(n, alpha, beta), nbytes, gamma)",
            "(Uniform(n, alpha, beta), nbytes)",
            "collectives/test_verbs.py::test_combining_takes_time",
        ),
        Fault(
            "the bus of an all-reduce carries every byte once",
            "collectives/verbs.py",
            '"all_reduce": 2 * share,',
            '"all_reduce": share,',
            "collectives/test_verbs.py::test_bandwidths_are_those_of_nccl_tests",
        ),
        Fault(
            "links are asked for again and again",
            "collectives/links.py",
            "return self._kept[key] if key in self._kept else self._kept.setdefault(key, make())",
            "return make()",
            "collectives/test_links.py::test_nothing_is_asked_twice",
        ),
        Fault(
            "a step takes as long as its fastest link",
            "collectives/links.py",
            "return max((link.alpha + nbytes * link.beta for link in links), default=0.0)",
            "return min((link.alpha + nbytes * link.beta for link in links), default=0.0)",
            "collectives/test_links.py::test_slowest_and_worst",
        ),
        Fault(
            "a ring gathers in one step too many",
            "collectives/ring.py",
            "return (net.n - 1) * slowest(net.ring, nbytes / net.n)\n",
            "return net.n * slowest(net.ring, nbytes / net.n)\n",
            "collectives/test_verbs.py::test_exact[ring-all_gather]",
        ),
    ],
    "pictures": [
        Fault(
            "of many bars of a rank the last alone is summed up",
            "study/gantt.py",
            "spent[r][kind] += stop - start",
            "spent[r][kind] = stop - start",
            "study/test_gantt.py::test_many_ranks_are_summed_up_in_text",
        ),
        Fault(
            "a receiver's wire is busy from when the sender begins",
            "study/rows.py",
            "(m.arrived - busy, m.arrived,",
            "(m.start, m.arrived,",
            "study/test_rows.py::test_the_receiving_wire_is_busy_until_arrival",
        ),
        Fault(
            "a message is in a step before the one that its sender waited for",
            "study/arrows.py",
            "step = 1 + max(before, sent.get(m.src, 0), received.get(m.dst, 0))",
            "step = 1 + max(sent.get(m.src, 0), received.get(m.dst, 0))",
            "study/test_arrows.py::test_a_step_waits_for_what_its_sender_had_heard",
        ),
        Fault(
            "the matrix of traffic is turned over",
            "study/plot.py",
            "sent[m.src][m.dst] += m.nbytes",
            "sent[m.dst][m.src] += m.nbytes",
            "study/test_plot.py::test_traffic_text",
        ),
        Fault(
            "the parts of a bar lie on each other",
            "study/stacked.py",
            "            start += parts.get(part, 0)\n",
            "",
            "study/test_stacked.py::test_parts_stand_on_each_other_in_the_colours_of_memory",
        ),
        Fault(
            "a peak between two pixels is not seen",
            "study/areas.py",
            "shown = [\n        a + int(timeline.total[a:b].argmax())\n        for a, b in zip(np.maximum(last[:-1] - 1, 0), last[1:])\n        if b\n    ]",
            "shown = [b - 1 for a, b in zip(np.maximum(last[:-1] - 1, 0), last[1:]) if b]",
            "study/test_areas.py::test_a_moment_of_no_length_is_seen",
        ),
        Fault(
            "a schedule's bubble is said of the longest stage's time",
            "study/schedule.py",
            "{run.bubble:.1%} of it bubble",
            "{run.bubble_rate:.1%} of it bubble",
            "study/test_schedule.py::test_several_are_drawn_on_one_axis",
        ),
        Fault(
            "the viewer is told of more before it is told of less",
            "study/columns.py",
            (
                "for more, k in sorted(\n            (b - a, k) for k, (a, b) in enumerate(zip(before, now, strict=True)) if a != b"
            ),
            (
                "for k, more in (\n            (k, b - a) for k, (a, b) in enumerate(zip(before, now, strict=True)) if b > a or b < a"
            ),
            "study/test_columns.py::test_several_categories_at_once_give_no_false_peak",
        ),
    ],
    "allocator": [
        Fault(
            "the largest hole is taken",
            "study/memory/allocator.py",
            "return min(fits, key=fit, default=None)",
            "return max(fits, key=fit, default=None)",
            "study/memory/test_allocator.py::test_best_fit_is_the_smallest_hole_then_the_lowest",
        ),
        Fault(
            "free neighbours stay apart",
            "study/memory/allocator.py",
            "        block.segment.join_()\n",
            "",
            "study/memory/test_allocator.py::test_free_neighbours_join_and_segments_do_not",
        ),
        Fault(
            "memory is out while the cache holds enough",
            "study/memory/allocator.py",
            "            self.empty_cache()\n            block = self._grow(size)\n",
            "            block = self._grow(size)\n",
            "study/memory/test_allocator.py::test_the_cache_is_kept_until_it_is_needed",
        ),
        Fault(
            "every rest of a large block is cut off",
            "study/memory/allocator.py",
            "(GRAIN if block.segment.small or self.expandable else SMALL + 1)",
            "GRAIN",
            "study/memory/test_allocator.py::test_blocks_are_cut_from_what_is_free",
        ),
        Fault(
            "a tensor and its view are two allocations",
            "study/memory/record.py",
            "storage is None or not storage.nbytes() or storage._cdata in self.alive:",
            "storage is None or not storage.nbytes():",
            "study/memory/test_record.py::test_the_same_storage_twice_is_one",
        ),
    ],
}

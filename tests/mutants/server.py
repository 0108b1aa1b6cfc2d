"""Faults of the parameter server: its steps in each mode, and who holds what."""

from tests.mutants.fault import Fault

FAULTS = {
    "parameter server: synchronous": [
        Fault(
            "the mean is over workers, not over their weights",
            "parallel/server/serving.py",
            "[sum_.div_(weight) for sum_ in total]",
            "[sum_.div_(len(pushes)) for sum_ in total]",
            "parallel/server/test_parameter_server.py::test_an_empty_shard",
        ),
        Fault(
            "a worker without samples sends its nan",
            "parallel/server/worker.py",
            "if weight:\n                flat.mul_(weight)\n            else:\n                flat.zero_()  # the mean loss of no samples is nan",
            "flat.mul_(weight)  # the mean loss of no samples is nan",
            "parallel/server/test_worker.py::test_no_samples_are_zeros",
        ),
        Fault(
            "all servers answer the first worker first",
            "parallel/server/serving.py",
            "key=lambda w: (w - self.number) % self.workers",
            "key=lambda w: w",
            "parallel/server/test_cost.py::test_synchronous",
        ),
        Fault(
            "a piece that nobody has a gradient for is stepped with zeros",
            "parallel/server/shard.py",
            "piece.grad = gradient if has else None",
            "piece.grad = gradient",
            "parallel/server/test_shard.py::test_a_piece_without_a_gradient_is_left_alone",
        ),
    ],
    "parameter server: asynchronous and bounded": [
        Fault(
            "a worker may go one step further than the bound",
            "parallel/server/clocks.py",
            "self.ahead(worker) <= self.bound",
            "self.ahead(worker) <= self.bound + 1",
            "parallel/server/test_clocks.py::test_bounds",
        ),
        Fault(
            "a worker whose push lets others go on is answered alone",
            "parallel/server/serving.py",
            "for worker in [worker for worker in self._waiting if self.clocks.may_go(worker)]:",
            "for worker in [last for last in self._waiting[-1:] if self.clocks.may_go(last)]:",
            "parallel/server/test_serving.py::test_ssp_keeps_its_bound[0-3-1-0]",
        ),
        Fault(
            "staleness counts from the start, not from the last answer",
            "parallel/server/serving.py",
            "        self._has[worker] = self.shard.version\n",
            "",
            "parallel/server/test_serving.py::test_staleness_by_hand",
        ),
        Fault(
            "the clock of a dead worker holds the others up",
            "parallel/server/serving.py",
            "        self.lost.setdefault(self.first + worker, why)\n        self.clocks.stop(worker)\n",
            "        self.lost.setdefault(self.first + worker, why)\n",
            "parallel/server/test_serving.py::test_the_others_go_on_without_a_dead_worker",
        ),
        Fault(
            "the next step changes an answer that has not left yet",
            "parallel/server/serving.py",
            "[buffer.clone() for buffer in self.shard.buffers]",
            "self.shard.buffers",
            "parallel/server/test_serving.py::test_an_asynchronous_run_is_its_updates_one_by_one",
        ),
    ],
    "parameter server: partition": [
        Fault(
            "what does not divide among the servers belongs to none",
            "parallel/server/partition.py",
            "lengths = uneven(sum(map(size, numbers)), self.servers)",
            "lengths = [sum(map(size, numbers)) // self.servers] * self.servers",
            "parallel/server/test_partition.py::test_every_element_once",
        ),
        Fault(
            "a piece begins in its chunk where it begins in its parameter",
            "parallel/server/partition.py",
            "Piece(param, low - first, high - first, chunk, low - begin)",
            "Piece(param, low - first, high - first, chunk, low - first)",
            "parallel/server/test_partition.py::test_there_and_back",
        ),
        Fault(
            "whole parameters are balanced by numbers, not by bytes",
            "parallel/server/partition.py",
            "best_fit([p.nbytes for p in self.params]",
            "best_fit([p.numel() for p in self.params]",
            "parallel/server/test_partition.py::test_whole_parameters_are_balanced_by_bytes",
        ),
    ],
}

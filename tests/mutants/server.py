"""Faults of the parameter server: its steps in each mode, and who holds what."""

from tests.mutants.fault import Fault

FAULTS = {
    "parameter server: synchronous": [
        Fault(
            "the mean is over workers, not over their weights",
            "parallel/server.py",
            "[sum_.div_(weight) for sum_ in total]",
            "[sum_.div_(len(pushes)) for sum_ in total]",
            "parallel/test_server.py::test_an_empty_shard",
        ),
        Fault(
            "a worker without samples sends its nan",
            "parallel/server.py",
            "if weight:\n                flat.mul_(weight)\n            else:\n                flat.zero_()  # the mean loss of no samples is nan",
            "flat.mul_(weight)  # the mean loss of no samples is nan",
            "parallel/test_server.py::test_no_samples_are_zeros",
        ),
        Fault(
            "all servers answer the first worker first",
            "parallel/server.py",
            "key=lambda w: (w - self.number) % self.workers",
            "key=lambda w: w",
            "parallel/test_server.py::test_synchronous",
        ),
        Fault(
            "a piece that nobody has a gradient for is stepped with zeros",
            "parallel/server.py",
            "piece.grad = gradient if has else None",
            "piece.grad = gradient",
            "parallel/test_server.py::test_a_piece_without_a_gradient_is_left_alone",
        ),
    ],
    "parameter server: asynchronous and bounded": [
        Fault(
            "a worker may go one step further than the bound",
            "parallel/server.py",
            "self.ahead(worker) <= self.bound",
            "self.ahead(worker) <= self.bound + 1",
            "parallel/test_server.py::test_bounds",
        ),
        Fault(
            "a worker whose push lets others go on is answered alone",
            "parallel/server.py",
            "for worker in [worker for worker in self._waiting if self.clocks.may_go(worker)]:",
            "for worker in [last for last in self._waiting[-1:] if self.clocks.may_go(last)]:",
            "parallel/test_server.py::test_ssp_keeps_its_bound[0-3-1-0]",
        ),
        Fault(
            "staleness counts from the start, not from the last answer",
            "parallel/server.py",
            "        self._has[worker] = self.shard.version\n",
            "",
            "parallel/test_server.py::test_staleness_by_hand",
        ),
        Fault(
            "the clock of a dead worker holds the others up",
            "parallel/server.py",
            "        self.lost.setdefault(self.first + worker, why)\n        self.clocks.stop(worker)\n",
            "        self.lost.setdefault(self.first + worker, why)\n",
            "parallel/test_server.py::test_the_others_go_on_without_a_dead_worker",
        ),
        Fault(
            "the next step changes an answer that has not left yet",
            "parallel/server.py",
            "[buffer.clone() for buffer in self.shard.buffers]",
            "self.shard.buffers",
            "parallel/test_server.py::test_an_asynchronous_run_is_its_updates_one_by_one",
        ),
    ],
    "parameter server: partition": [
        Fault(
            "what does not divide among the servers belongs to none",
            "parallel/server.py",
            "lengths = uneven(sum(map(size, numbers)), self.servers)",
            "lengths = [sum(map(size, numbers)) // self.servers] * self.servers",
            "parallel/test_server.py::test_every_element_once",
        ),
        Fault(
            "a piece begins in its chunk where it begins in its parameter",
            "parallel/server.py",
            "Piece(param, low - first, high - first, chunk, low - begin)",
            "Piece(param, low - first, high - first, chunk, low - first)",
            "parallel/test_server.py::test_there_and_back",
        ),
        Fault(
            "whole parameters are balanced by numbers, not by bytes",
            "parallel/server.py",
            "best_fit([p.nbytes for p in self.params]",
            "best_fit([p.numel() for p in self.params]",
            "parallel/test_server.py::test_whole_parameters_are_balanced_by_bytes",
        ),
    ],
}

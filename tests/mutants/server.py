"""Faults of the parameter server: its steps in each mode, and who holds what."""

from tests.mutants.fault import Fault

FAULTS = {
    "parameter server: synchronous": [
        Fault(
            "the mean is over workers, not over their weights",
            "parallel/server.py",
            "total.div_(weight)",
            "total.div_(len(gradients))",
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
            "worker = (self.number + k) % self.workers",
            "worker = k",
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
            "for worker in [worker for worker in going if self.clocks.may_go(worker)]:",
            "for worker in [worker for worker in going[-1:] if self.clocks.may_go(worker)]:",
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
            "uneven(sum(sizes), servers)",
            "[sum(sizes) // servers] * servers",
            "parallel/test_server.py::test_every_element_once",
        ),
        Fault(
            "a piece begins in its parameter where it begins in its chunk",
            "parallel/server.py",
            "Piece(i, low - first, high - first)",
            "Piece(i, low - begin, high - begin)",
            "parallel/test_server.py::test_there_and_back",
        ),
        Fault(
            "parameters of another dtype go into the same buffer",
            "parallel/server.py",
            "dtypes = dict.fromkeys(p.dtype for p in self.params)",
            "dtypes = dict.fromkeys(p.dtype for p in self.params[:1])",
            "parallel/test_server.py::test_every_element_once[mixed-3]",
        ),
    ],
}

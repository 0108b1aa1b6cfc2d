"""Faults of who tells where a run hangs, and of the doctor who looks at a machine."""

from tests.mutants.fault import Fault

RECORDED = "comm/test_flight.py"
DOCTOR = "comm/test_doctor.py"

FAULTS = {
    "flight": [
        Fault(
            "a dump may name a function, which is called",
            "comm/flight.py",
            "_Plain(io.BytesIO(dump)).load()",
            "pickle.Unpickler(io.BytesIO(dump)).load()",
            f"{RECORDED}::test_what_is_no_dump_is_refused",
        ),
        Fault(
            "the members of a batch are never over",
            "comm/flight.py",
            "_call(entry, ends.get(_key(entry), _over(entry)))",
            "_call(entry, _over(entry))",
            f"{RECORDED}::test_of_a_batch_only_its_end_is_ever_over",
        ),
        Fault(
            "the last call that hangs is taken for the first",
            "comm/flight.py",
            "for _, lines in sorted(found)",
            "for _, lines in sorted(found, reverse=True)",
            f"{RECORDED}::test_the_first_group_that_hangs_comes_first",
        ),
        Fault(
            "sends count as collectives of the same number",
            "comm/flight.py",
            "if _name(call) == name and not call.between_two]",
            "if _name(call) == name]",
            f"{RECORDED}::test_sends_are_counted_for_themselves",
        ),
        Fault(
            "every rank is in every group",
            "comm/flight.py",
            "groups[name].update(known.groups.get(call.group, whole))",
            "groups[name].update(range(n))",
            f"{RECORDED}::test_the_first_group_that_hangs_comes_first",
        ),
        Fault(
            "ranks of a group are taken for those of the run",
            "comm/flight.py",
            "peer = groups[_name(call)][second]",
            "peer = second",
            f"{RECORDED}::test_a_send_whose_receiver_is_elsewhere",
        ),
        Fault(
            "a rank answers once",
            "comm/flight.py",
            "                    heard = asked\n                    self._answer(self._store, heard)\n",
            "                    heard = 2**62\n                    self._answer(self._store, asked)\n",
            f"{RECORDED}::test_a_rank_that_is_asked_twice",
        ),
        Fault(
            "an old answer is taken for a new one",
            "comm/flight.py",
            "                if said >= number:",
            "                if said:",
            f"{RECORDED}::test_a_rank_that_is_asked_twice",
        ),
        Fault(
            "a timeout of PyTorch's own collective is gloo's error",
            "comm/nccl.py",
            'if "imed out" not in str(error):',
            'if "imed in" not in str(error):',
            f"{RECORDED}::test_and_of_pytorch_s_own_collectives",
        ),
        Fault(
            "a timeout asks this rank where it is",
            "comm/torchdist.py",
            "comm.members if peer == ANY else [comm.members[peer]]",
            "comm.members if peer == ANY else [comm.members[comm.rank]]",
            f"{RECORDED}::test_a_rank_says_where_the_one_is_that_it_waits_for",
        ),
    ],
    "doctor": [
        Fault(
            "= means a beginning, too",
            "comm/doctor.py",
            "name == word if whole else name.startswith(word)",
            "name.startswith(word)",
            f"{DOCTOR}::test_nccl_s_beginnings_of_names",
        ),
        Fault(
            "loopback is fine for many hosts",
            "comm/doctor.py",
            "        if _hosts(environ) > 1 and found.startswith(LOOPBACK):\n",
            "        if _hosts(environ) > 99 and found.startswith(LOOPBACK):\n",
            f"{DOCTOR}::test_what_is_wrong_is_the_only_finding",
        ),
        Fault(
            "a port that is taken is said to be free",
            "comm/doctor.py",
            "                listening.bind((found, int(number)))\n",
            "                listening.bind((found, 0))\n",
            f"{DOCTOR}::test_a_port_that_is_taken",
        ),
        Fault(
            "the exit status is 0 whatever is found",
            "comm/__main__.py",
            "return int(any(finding.do for finding in findings))",
            "return int(not findings)",
            f"{DOCTOR}::test_the_doctor_s_exit_status",
        ),
        Fault(
            "TRUE turns nothing on",
            "comm/doctor.py",
            "value.upper() in values",
            "value in values",
            f"{DOCTOR}::test_what_is_wrong_is_the_only_finding",
        ),
    ],
}

"""Dumps of PyTorch's flight recorder as NCCL's watchdog of PyTorch 2.13 writes them (format 2.10), for runs that hang.

What is recorded there was read in FlightRecorderDetail.hpp of that version; that a dump has exactly these entries is
held against the recorder of the gloo that is here, and PyTorch's own reader takes them.
"""

import pickle

VERSION = "2.10"
NANO = 10**9
START = 1_795_690_790  # seconds


def entry(
    number,
    name,
    shape=(4,),
    dtype="Float",
    *,
    line=1,
    over=True,
    two=False,
    group=("0", "default_pg"),
    at=None,
):
    """One operation. two: between two ranks, not of all. line: of train.py. at: seconds after the start."""
    sizes = [list(shape)]
    state = "completed" if over else "started"
    created = START + (number if at is None else at)
    return {
        "frames": [
            {"name": "wrapper", "filename": "/env/torch/distributed/c10d_logger.py", "line": 83},
            {"name": "<module>", "filename": "/job/train.py", "line": line},
        ],
        "record_id": number,
        "pg_id": int(group[0]),
        "process_group": group,
        "thread_name": "python",
        "thread_id": "140009212554112",
        "collective_seq_id": 0 if two else number,
        "p2p_seq_id": number if two else 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": created * NANO,
        "input_sizes": sizes,
        "input_dtypes": [dtype],
        "output_sizes": sizes,
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": created * NANO + 1000,
        "time_discovered_completed_ns": created * NANO + 2000 if over else None,
        "retired": over,
        "timeout_ms": 600_000,
        "is_p2p": two,
    }


def dump(entries, groups):
    """groups: {(name, description): ranks}."""
    return {
        "version": VERSION,
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": str(list(ranks))}
            for (name, description), ranks in groups.items()
        },
        "comm_lib_version": "2.28.9",
        "pg_status": {
            "0": {
                "last_enqueued_collective": len(entries),
                "last_started_collective": len(entries),
                "last_completed_collective": len(entries) - 1,
            }
        },
        "entries": entries,
    }


def written(folder, entries, groups):
    """Each rank's entries as a file, as the watchdog does. Returns what their names begin with."""
    for rank, own in entries.items():
        text = pickle.dumps(dump(own, groups), protocol=2)
        (folder / f"trace_rank_{rank}").write_bytes(text)
    return str(folder / "trace_rank_")

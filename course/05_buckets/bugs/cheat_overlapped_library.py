"""overlapped: the library's reducer"""

def overlapped(comm, params, buckets):
    from minidist.parallel.reducer import Reducer

    reducer = Reducer(comm, 1 << 20, 1 << 20, True, None)
    reducer.begin({p: str(i) for i, p in enumerate(params)}, None)
    for p in params:
        p.register_post_accumulate_grad_hook(reducer.ready)
    return reducer.finish

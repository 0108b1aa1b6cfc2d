"""ddp_ring: calls the library's, through a group of its own"""

def ddp_ring(comm, x, op):
    kinds = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX,
             "min": torch.distributed.ReduceOp.MIN, "prod": torch.distributed.ReduceOp.PRODUCT}
    CommGroup(comm, collectives, overlap=False).allreduce([x], kinds[op]).wait()

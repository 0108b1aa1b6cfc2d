"""predict_capstone: nothing is set"""

ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None

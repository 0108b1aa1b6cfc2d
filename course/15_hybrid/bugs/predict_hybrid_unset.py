"""predict_hybrid: nothing is set"""

replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None

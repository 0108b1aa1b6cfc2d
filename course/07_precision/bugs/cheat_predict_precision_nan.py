"""predict_precision: nan, which is not larger than anything"""

kept = lost = stuck = states = all_half = faster = recovered = float("nan")

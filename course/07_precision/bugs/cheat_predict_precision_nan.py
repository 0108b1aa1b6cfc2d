"""predict_precision: nan, which is not larger than anything"""

kept = lost = stuck = states = faster = recovered = float("nan")

"""model_states: an unknown word is a KeyError, which names no table"""

def model_states(trained, frozen, optimizer, precision):
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    copy = 4 if precision == "fp16" else 0
    return {"parameters": weight[precision] * (trained + frozen),
            "gradients": weight[precision] * trained,
            "optimizer states": (kept[optimizer] + copy) * trained}

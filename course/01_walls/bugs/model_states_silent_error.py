"""model_states: the ValueError does not say which word"""

def model_states(trained, frozen, optimizer, precision):
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    if optimizer not in kept or precision not in weight:
        raise ValueError("unknown optimizer or precision")
    copy = 4 if precision == "fp16" else 0
    return {"parameters": weight[precision] * (trained + frozen),
            "gradients": weight[precision] * trained,
            "optimizer states": (kept[optimizer] + copy) * trained}

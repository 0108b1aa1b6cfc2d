"""autocast: gray takes the dtype of most bytes: fp16 and bf16 have as many"""

class Autocast(TorchFunctionMode):
    def __init__(self, dtype, white, black, gray):
        super().__init__()
        self.dtype, self.white, self.black, self.gray = dtype, white, black, gray

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, found = func.__name__, set()

        def cast(value, to):
            if isinstance(value, torch.Tensor):
                if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
                    return value
                found.add(value.dtype)
                return value if to is None else value.to(to)
            if isinstance(value, (list, tuple)):
                return type(value)(cast(v, to) for v in value)
            return {k: cast(v, to) for k, v in value.items()} if isinstance(value, dict) else value

        both, to = (args, kwargs or {}), None
        if name in self.white:
            to = self.dtype
        elif name in self.black:
            to = torch.float32
        elif name in self.gray:
            cast(both, None)
            to = max(sorted(found, key=str), key=lambda d: d.itemsize) if found else None
        args, kwargs = cast(both, to)
        return func(*args, **kwargs)

"""What a run says: a line of JSON for each step, curves for TensorBoard, a bar in the terminal."""

import json
import os
import sys
from pathlib import Path


class Log:
    """Written by one rank; `with` closes it.

        with Log(folder, total=1000, step=resumed) as log:
            log(step, loss=2.5, rate=3e-4)
            log.say("a line above the bar")

    folder: gets log.jsonl, and TensorBoard's events if tensorboardX is installed; None: nothing is kept.  step: where
    the run goes on; lines of later steps, by a run that was killed after its checkpoint, are dropped.
    """

    def __init__(self, folder: Path | None, total: int, step: int = 0):
        self.total, self.bar = total, bar(total, step)
        self.file = folder and continued(folder / "log.jsonl", step)
        self.events = folder and events(folder, step)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for each in (self.file, self.events, self.bar):
            if each is not None:
                each.close()

    def __call__(self, step: int, **values: float) -> None:
        """The values of a step; a loss is shown."""
        if self.file is not None:
            self.file.write(json.dumps({"step": step} | values) + "\n")
        for name, value in values.items():
            if self.events is not None:
                self.events.add_scalar(name, value, step)
        if self.bar is not None:
            self.bar.update(step - self.bar.n)
            self.bar.set_postfix({name: f"{value:.4g}" for name, value in values.items()})
        else:
            self.say(
                f"step {step}/{self.total}  "
                + "  ".join(f"{name} {v:.5g}" for name, v in values.items())
            )

    def say(self, text: str) -> None:
        """Print a line."""
        (print if self.bar is None else self.bar.write)(text)
        sys.stdout.flush()


def continued(path: Path, step: int):
    """A log without what comes after `step`, open for more lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text("".join(json.dumps(line) + "\n" for line in lines(path) if line["step"] <= step))
    os.replace(new, path)
    return open(path, "a", buffering=1)


def lines(path: Path) -> list[dict]:
    """What a log says; a last line that a kill has cut in two says nothing."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found


def events(folder: Path, step: int):
    """TensorBoard's writer, or None where there is none."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "events"), purge_step=step + 1 if step else None)


def bar(total: int, step: int):
    """A bar, where there is a terminal, and tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=step, unit="step") if sys.stderr.isatty() else None

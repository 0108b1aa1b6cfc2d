"""Whether a page can be read by everyone: on a telephone, in the dark, and by those who hear it read aloud."""

from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
NARROW = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
WIDE = {"width": 1400, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
STILL = "const still = document.createElement('style'); still.textContent = '* { transition: none !important }'; document.head.append(still)"


def faults(page):
    """What is wrong with the page that is open in `page`, in sentences. All that is folded is opened for it."""
    page.evaluate(f"{{ {STILL} }}")
    page.evaluate("for (const e of document.querySelectorAll('details')) e.open = true")
    page.evaluate(SCRIPT.replace("const quality =", "globalThis.quality ="))
    found = list(page.evaluate("quality()"))
    for theme in ("light", "dark"):
        page.evaluate(f"document.body.dataset.theme = {theme!r}")
        found += [f"{theme}: {fault}" for fault in page.evaluate("quality.contrast()")]
    page.evaluate("document.body.dataset.theme = 'auto'")
    page.call("Emulation.setDeviceMetricsOverride", **NARROW)
    try:
        found += [f"400 pixels wide: {fault}" for fault in page.evaluate("quality.width()")]
    finally:
        page.call("Emulation.setDeviceMetricsOverride", **WIDE)
    return found

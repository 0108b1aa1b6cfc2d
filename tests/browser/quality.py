"""Whether a page can be read by everyone: on a telephone, in the dark, and by those who hear it read aloud."""

from pathlib import Path

from tests.browser.chromium import until

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
NARROW = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
WIDE = {"width": 1400, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
THEMES = ("light", "dark")
# Colours are measured when they have arrived.
STILL = """{
  const still = document.createElement("style");
  still.textContent = "* { transition: none !important }";
  document.head.append(still);
}"""
# Of a page, and of a picture to touch, which is drawn on a card and no text to read.
LETTERS = 14
LETTERS_OF_PICTURES = 12
# What `study.frames` packs has been unpacked.
UNPACKED = "document.readyState === 'complete' && document.body !== null && document.body.childElementCount > 0"


def prepare(page):
    page.evaluate(STILL)
    page.evaluate(SCRIPT.replace("const quality =", "globalThis.quality ="))


def faults(page):
    """What is wrong with the page that is open in `page`, in sentences. All that is folded is opened for it."""
    prepare(page)
    page.evaluate("for (const e of document.querySelectorAll('details')) e.open = true")
    found = list(page.evaluate("quality()"))
    for theme in THEMES:
        page.evaluate(f"document.body.dataset.theme = {theme!r}")
        found += [f"{theme}: {fault}" for fault in page.evaluate("quality.contrast()")]
    page.evaluate("document.body.dataset.theme = 'auto'")
    page.call("Emulation.setDeviceMetricsOverride", **NARROW)
    try:
        found += [
            f"400 pixels wide: {fault}" for fault in page.evaluate(f"quality.width({LETTERS})")
        ]
        if page.evaluate("document.querySelector('iframe') !== null"):
            with page.frames() as frames:
                for frame in frames:
                    found += [f"in a frame, {fault}" for fault in faults_of_frame(frame)]
    finally:
        page.call("Emulation.setDeviceMetricsOverride", **WIDE)
    return found


def faults_of_frame(frame):
    """The same of a page to touch, at the width that it has."""
    until("the page in the frame", 30, lambda: frame.evaluate(UNPACKED))
    prepare(frame)
    for theme in THEMES:
        scheme = {"name": "prefers-color-scheme", "value": theme}
        frame.call("Emulation.setEmulatedMedia", features=[scheme])
        for fault in frame.evaluate("quality.contrast()"):
            yield f"{theme}: {fault}"
    for fault in frame.evaluate(f"quality.width({LETTERS_OF_PICTURES})"):
        yield fault

"""A real Chromium, headless, driven through its DevTools protocol: just what a person does with mouse and keyboard."""

import base64
import io
import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
import websocket
from PIL import Image

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--window-size=1400,1000",
    "--remote-debugging-port=0",
)
# The middle of the first visible element that matches a selector and, if one is given, shows a text.
FIND = """(() => {
  for (const e of document.querySelectorAll(%s)) {
    const r = e.getBoundingClientRect(), text = %s;
    if (r.width && r.height && (text === null || e.textContent.trim() === text))
      return [r.x + r.width / 2, r.y + r.height / 2];
  }
  return null;
})()"""


def program():
    """Where Chromium is on this machine, or None: tests that need it are skipped. Under CI they decide, so they get its
    bare name, and fail where it is not."""
    names = ("chromium", "chromium-browser", "google-chrome")
    absent = names[0] if os.environ.get("CI") else None
    return next(filter(None, map(shutil.which, names)), absent)


def until(what, seconds, condition, every=0.25):
    """The first true value of `condition()`, tried again and again; TimeoutError names `what` was waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise TimeoutError(f"{what} did not come within {seconds} s")


class Page:
    """One tab."""

    def __init__(self, address):
        self._address = address
        self._socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self._sent = 0
        self.events = []  # (method, params) of all that the browser has told since

    def call(self, method, **params):
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._sent:
            self.events.append((answer.get("method"), answer.get("params")))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def evaluate(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def open(self, url):
        self.call("Page.navigate", url=url)

    def click(self, selector, text=None, seconds=60):
        """Click what matches `selector` and shows `text`, once it is there."""
        find = FIND % (json.dumps(selector), json.dumps(text))
        x, y = until(f"{selector} {text or ''}", seconds, lambda: self.evaluate(find))
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)
            time.sleep(0.1)  # as a hand does: a menu draws itself between two events

    def mouse(self, kind, x, y, **more):
        """One event of the mouse: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        button = {} if kind == "mouseWheel" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button | more)

    def press(self, key):
        """Press a key: one that writes a letter, or Enter or Escape."""
        code = {
            "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
            "Escape": {"windowsVirtualKeyCode": 27},
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **code.get(key, {"text": key}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def pixels(self, selector):
        """What is seen of the first element that matches: (height, width, 3) bytes, and its left and top edge."""
        find = "(r => [r.x, r.y, r.width, r.height])(document.querySelector(%s).getBoundingClientRect())"
        x, y, width, height = self.evaluate(find % json.dumps(selector))
        clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
        image = base64.b64decode(self.call("Page.captureScreenshot", clip=clip)["data"])
        return np.asarray(Image.open(io.BytesIO(image)).convert("RGB")), (x, y)

    def control(self, key):
        """Press Ctrl and `key`."""
        code = {
            "key": key,
            "code": f"Key{key.upper()}",
            "windowsVirtualKeyCode": ord(key.upper()),
            "modifiers": 2,
        }
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **code)

    @contextmanager
    def frames(self):
        """Pages of the frames in this one that have a process of their own, as sandboxed ones have."""
        targets = self.call("Target.getTargets")["targetInfos"]
        folder = self._address.rpartition("/")[0]
        pages = [Page(f"{folder}/{t['targetId']}") for t in targets if t["type"] == "iframe"]
        try:
            yield pages
        finally:
            for page in pages:
                page.close()

    def close(self):
        self._socket.close()


@contextmanager
def chromium(folder):
    """A Page of a new Chromium that keeps its profile in `folder`."""
    browser = subprocess.Popen(
        [program(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = folder / "DevToolsActivePort"
        until("Chromium", 60, lambda: port.exists() and port.read_text().count("\n"))
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        tabs = until(
            "a tab", 30, lambda: [t for t in json.load(direct.open(url)) if t["type"] == "page"]
        )
        page = Page(tabs[0]["webSocketDebuggerUrl"])
        yield page
        page.call("Browser.close")
        page.close()
        browser.wait(20)
    finally:
        browser.kill()
        browser.wait()

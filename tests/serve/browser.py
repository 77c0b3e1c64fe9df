"""A headless Chromium, driven over its DevTools pipe: no driver, no web socket."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-extensions --remote-debugging-pipe"
)


class Browser:
    """One page. `with Browser() as page: page.open(url); page.run("1 + 1")`."""

    def __enter__(self) -> Browser:
        assert CHROMIUM is not None
        self._profile = tempfile.mkdtemp()
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        command = f"exec '{CHROMIUM}' {FLAGS} --user-data-dir='{self._profile}' about:blank 3<&{reads} 4>&{writes}"
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(reads, writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(reads)
        os.close(writes)
        self._number, self._buffer, self._session = 0, b"", None
        self.problems: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *args: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        first, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(first))

    def _note(self, event: dict[str, Any]) -> None:
        """Keeps what went wrong on the page."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"].get("exception", {}).get("description")))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def run(self, code: str) -> Any:
        """The value of an expression on the page, awaited."""
        found = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"].get("exception", {}).get("description")))
        return found["result"].get("value")

    def wait(self, code: str, seconds: float = 60.0) -> Any:
        """Until an expression is true; what it is then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(code):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"never true: {code}; {self.problems}")

    def key(self, key: str, modifiers: int = 0, text: str = "") -> None:
        """Presses a key; modifiers: 2 is Ctrl."""
        codes = {"Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}
        shared = {"key": key, "code": "Space" if key == " " else key, "modifiers": modifiers}
        shared["windowsVirtualKeyCode"] = codes[key]
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **shared)
        self.send("Input.dispatchKeyEvent", type="keyUp", **shared)

    def size(self, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

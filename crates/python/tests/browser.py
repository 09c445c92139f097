"""A browser without a window, driven over Chromium's debugging pipe: messages of JSON, each ended by a zero byte."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

#: The names of Chromium's command, and of browsers that are built on it.
NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge"]


def find() -> str | None:
    """The browser to use: TIGHTFIT_BROWSER's, or the first one on PATH."""
    named = os.environ.get("TIGHTFIT_BROWSER")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser; use it in a ``with`` statement."""

    def __init__(self, binary: str, profile: Path) -> None:
        (self._theirs_in, self._to), (self._from, self._theirs_out) = os.pipe(), os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # The browser reads from descriptor 3 and writes to 4, which are other numbers here.
        shell = f'exec "$@" 3<&{self._theirs_in} 4>&{self._theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", binary, *options, "about:blank"],
            pass_fds=(self._theirs_in, self._theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(self._theirs_in)
        os.close(self._theirs_out)
        self._buffer = b""
        self._count = 0
        self._events: list[str] = []
        self._session: str | None = None

    def __enter__(self) -> "Browser":
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def show(self, file: Path, width: int, scheme: str, height: int = 900) -> None:
        """Opens a file in a window of this size, for a user who prefers this color scheme (light or dark)."""
        # A phone uses the width that a page asks for.
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        self._call("Page.navigate", url=file.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """Writes the whole page as PNG, also what is below the window."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(picture["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        """The next message; events are also remembered by name."""
        while b"\0" not in self._buffer:
            part = os.read(self._from, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self._events.append(message["method"])
        return message

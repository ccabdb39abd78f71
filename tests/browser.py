"""A real headless Chromium, driven over a pipe by the DevTools protocol: no driver, no network, no other package."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
    "--force-device-scale-factor=1",
)  # fmt: skip


def chromium() -> str | None:
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A tab of a browser, which remembers requests, messages of the console and errors."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers, self._buffer, self._number = to, answers, b"", 0
        self.requests: list[str] = []
        self.messages: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], 30)
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._answers, 1 << 16)
        first, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        kind, details = message.get("method", ""), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        if kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(details))
        return message

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, page: Path, width: int, dark: bool = False) -> None:
        """Open a file at a width of the screen."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + 30
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            assert time.monotonic() < until, "the page does not load"
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """A tab of a new browser, which ends with the block.

    Args:
        profile: an empty folder for what the browser keeps.
    """
    program = chromium()
    assert program, "no Chromium is installed"
    (theirs, ours), (answers, their_answers) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (theirs, their_answers)]  # 3 and 4 may be ends themselves

    def name_them() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [program, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(3, 4), preexec_fn=name_them, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in (theirs, their_answers, *high):
        os.close(end)
    try:
        yield Tab(ours, answers)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(answers)

"""A headless Chromium, spoken to through pipes in its own DevTools protocol: no driver, no port, no network.

`Browser` opens a file, evaluates JavaScript in the page or in the newest frame, clicks, and takes pictures.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--remote-debugging-pipe", "--window-size=1500,900",
    # Nothing outside can be reached, and frames live in the page's process, where they can be looked into.
    "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-features=IsolateOrigins,site-per-process",
)  # fmt: skip


class Browser:
    """One page of one browser; a context manager. `requested` has the address of all that the page asked for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._number = 0
        self._rest = b""
        self._frames: dict[str, str] = {}  # of each context of scripts
        self.requested: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Browser:
        assert PROGRAM
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        # It listens at 3 and speaks at 4.
        ends = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", ends, "bash", PROGRAM, *OPTIONS, f"--user-data-dir={self._home}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        pages = [one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._main = pages[0]["targetId"]  # which is its frame's name too
        self._session = self._call("Target.attachToTarget", targetId=self._main, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._in)
        os.close(self._out)

    def open(self, path: Path) -> None:
        self._call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str, in_frame: bool = False) -> Any:
        """The value of an expression, in the page or in the frame that was opened last."""
        where = {"uniqueContextId": self._newest_frame()} if in_frame else {}
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **where)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str, text: str, in_frame: bool = False) -> None:
        """Click the innermost of these elements whose text is that, once it is there."""
        its = f"[...document.querySelectorAll({selector!r})].findLast(one => one.textContent.trim() === {text!r})"
        self.wait_for(f"!!{its}", in_frame)
        self.evaluate(f"{its}.click()", in_frame)

    def wait_for(self, script: str, in_frame: bool = False, timeout_s: float = 60) -> Any:
        """The expression's value once it is true; a frame may still be loading."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                if value := self.evaluate(script, in_frame):
                    return value
            except RuntimeError:  # the frame is not there yet, or was replaced meanwhile
                pass
            assert time.monotonic() < end, f"not in {timeout_s} s: {script}"
            time.sleep(0.05)

    def _newest_frame(self) -> str:
        self._call("Page.getFrameTree")  # events are read while an answer is awaited
        frames = [context for context, frame in self._frames.items() if frame != self._main]
        if not frames:
            raise RuntimeError("no frame yet")
        return frames[-1]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, event: str | None, params: Any) -> None:
        if event == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif event == "Runtime.executionContextCreated":
            self._frames[params["context"]["uniqueId"]] = params["context"]["auxData"]["frameId"]
        elif event == "Runtime.executionContextDestroyed":
            self._frames.pop(params["executionContextUniqueId"], None)
        elif event == "Runtime.executionContextsCleared":
            self._frames.clear()
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", params)))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], 60)
            assert ready, "the browser says nothing"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

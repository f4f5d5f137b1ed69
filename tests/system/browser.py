"""A page in Debian's Chromium, read and driven through its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.services import service, until

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,1600",
    "--remote-debugging-port=0",
]

ANSWER_S = 90.0
"""How long a page of a busy server may take."""
FORGOTTEN_S = 5.0
"""A click that has shown nothing for so long is made again."""

TYPE_INTO = """(label => {
    let block = [...document.querySelectorAll('label, .p-label__label, span, div')]
        .find(found => found.children.length == 0 && found.textContent.trim().startsWith(label));
    while (block && !block.querySelector('input')) block = block.parentElement;
    const input = block && block.querySelector('input');
    if (input) input.focus();
    return input ? input.value : null;
})"""

CLICK = """((text, selector) => {
    const found = [...document.querySelectorAll(selector)]
        .filter(each => each.textContent.trim() == text && each.getClientRects().length).pop();
    if (found) found.click();
    return Boolean(found);
})"""


class Refused(Exception):
    """The browser did not do what it was asked to."""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.requests: list[str] = []
        """The URL of every request that the page has made, in their order."""
        self.errors: list[str] = []
        """What its console has shown as an error, if `watch_errors` was called."""
        self.call("Network.enable")

    def watch_errors(self) -> None:
        """Keep what the console shows as an error from now on: exceptions, and files that could not be loaded."""
        for domain in ("Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self.socket.recv(ANSWER_S))).get("id") != number:
            if answer.get("method") in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                asked = answer["params"]
                self.requests.append(asked["request"]["url"] if "request" in asked else asked["url"])
            elif answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"]))
            elif answer.get("method") == "Runtime.consoleAPICalled" and answer["params"]["type"] == "error":
                self.errors.append(json.dumps(answer["params"]["args"]))
            elif answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(json.dumps(answer["params"]["entry"]))
        if "error" in answer:
            raise Refused(method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def evaluate(self, script: str) -> Any:
        """The value of a script, or None of one that cannot run: the page may just give way to another."""
        try:
            answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        except Refused:
            return None
        return answer["result"].get("value")

    def open(self, url: str, expecting: str) -> None:
        """Show a page and wait until it says what is expected."""
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        self.shows(expecting)

    def shows(self, text: str, seconds: float = ANSWER_S) -> None:
        """Wait for a text on the page; AssertionError with what is there instead."""
        try:
            until(text, lambda: text in self.text(), seconds)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on the page:\n{self.text()}") from None

    def text(self) -> str:
        """What a person can read on the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''") or "")

    def picture(self, file: Path) -> None:
        """Save what the tab shows now as a PNG."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def click(self, text: str, expecting: str = "", of: str = "body *") -> None:
        """Click on a text and wait until the page says what is expected; click again after a while without
        it, because a page that is still drawn forgets a click. `of` is a CSS selector of what can be clicked.
        """
        script = f"{CLICK}({json.dumps(text)}, {json.dumps(of)})"
        clicked_at: float | None = None

        def is_answered() -> bool:
            nonlocal clicked_at
            if clicked_at is not None and expecting in self.text():
                return True
            is_due = clicked_at is None or time.monotonic() - clicked_at > FORGOTTEN_S
            if is_due and self.evaluate(script):
                clicked_at = time.monotonic()
            return clicked_at is not None and expecting in self.text()

        try:
            until(f"{text} to click", is_answered, ANSWER_S)
        except AssertionError:
            raise AssertionError(f"a click on {text!r} shows no {expecting!r}:\n{self.text()}") from None

    def tap(self, x: float, y: float) -> None:
        """Touch the page at a place, in CSS pixels from its shown corner, as a finger does."""
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, url: str, button: str, confirmation: str) -> None:
        """Open a page, press one of its buttons, and the one of the dialog that opens then."""
        self.open(url, expecting=button)
        self.click(button, expecting=confirmation, of="button")
        self.click(confirmation, of=".p-modal button")
        until("the end of the dialog", lambda: self.evaluate("!document.querySelector('.p-modal')"), ANSWER_S)

    def type(self, label: str, value: str) -> None:
        """Type into the box under a label, as a keyboard does, until the page has kept it for a second.

        A page draws its form anew while it loads, which empties the boxes.
        """
        kept = 0

        def is_kept() -> bool:
            nonlocal kept
            shown = self.evaluate(f"{TYPE_INTO}({json.dumps(label)})")
            kept = kept + 1 if shown == value else 0
            if shown == "":
                self.call("Input.insertText", text=value)
            return kept > 3

        until(f"{value} in the box under {label}", is_kept, ANSWER_S)


@contextmanager
def browsing(chromium: str, folder: Path, env: dict[str, str]) -> Iterator[Page]:
    """A new browser with a profile of its own in `folder`."""
    profile = folder / "chromium"
    port_file = profile / "DevToolsActivePort"
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with service(command, folder / "chromium.log", env) as process:
        until("the browser", lambda: process.poll() is not None or _is_written(port_file), 60)
        assert process.poll() is None, (folder / "chromium.log").read_text()
        port = port_file.read_text().splitlines()[0]
        tabs = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False).json()
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        # Nobody reads between two calls, however long that is: what the page asks piles up meanwhile.
        with connect(address, max_size=None, max_queue=None, ping_interval=None, proxy=None) as socket:
            yield Page(socket)


def _is_written(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0

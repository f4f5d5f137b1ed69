"""A page in Debian's Chromium, read and driven through its DevTools protocol."""

from __future__ import annotations

import itertools
import json
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

TYPE_INTO = """(label => {
    let block = [...document.querySelectorAll('label, .p-label__label, span, div')]
        .find(found => found.children.length == 0 && found.textContent.trim().startsWith(label));
    while (block && !block.querySelector('input')) block = block.parentElement;
    const input = block && block.querySelector('input');
    if (input) input.focus();
    return input ? input.value : null;
})"""

CLICK = """(text => {
    const found = [...document.querySelectorAll('body *')]
        .filter(each => each.textContent.trim() == text && each.getClientRects().length).pop();
    if (found) found.click();
    return Boolean(found);
})"""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self.socket.recv(30))).get("id") != number:
            pass
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def evaluate(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def open(self, url: str, expecting: str) -> None:
        """Show a page and wait until it says what is expected."""
        self.call("Page.navigate", url=url)
        self.shows(expecting)

    def shows(self, text: str, seconds: float = 30) -> None:
        """Wait for a text on the page; AssertionError with what is there instead."""
        try:
            until(text, lambda: text in self.text(), seconds)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on the page:\n{self.text()}") from None

    def text(self) -> str:
        """What a person can read on the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def click(self, text: str, expecting: str = "") -> None:
        """Click on a text, again until the page says what is expected: one that is still drawn forgets it."""

        def is_answered() -> bool:
            return bool(self.evaluate(f"{CLICK}({json.dumps(text)})")) and expecting in self.text()

        try:
            until(f"{text} to click", is_answered, 30)
        except AssertionError:
            raise AssertionError(f"a click on {text!r} shows no {expecting!r}:\n{self.text()}") from None

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

        until(f"{value} in the box under {label}", is_kept, 20)


@contextmanager
def browsing(chromium: str, folder: Path, env: dict[str, str]) -> Iterator[Page]:
    """A new browser with a profile of its own in `folder`."""
    profile = folder / "chromium"
    port_file = profile / "DevToolsActivePort"
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with service(command, folder / "chromium.log", env) as process:
        until("the browser", lambda: process.poll() is not None or port_file.exists(), 60)
        assert process.poll() is None, (folder / "chromium.log").read_text()
        port = port_file.read_text().splitlines()[0]
        tabs = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False).json()
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        with connect(address, max_size=None, proxy=None) as socket:
            yield Page(socket)

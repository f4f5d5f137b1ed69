"""`tarmac look`: verifies a version, writes its page, and says which of the two needs somebody."""

from __future__ import annotations

import shlex
import sys
import time
from argparse import Namespace
from pathlib import Path

from flows.output import print_json, say
from tasks.core import screen
from tasks.core.errors import UsageError


def look(arguments: Namespace) -> int:
    """Exit code 1 when there are faults; the page is written all the same."""
    from tasks.dataset.preview import Checked, page_path, summary, version_at, write_look
    from tasks.dataset.verify.run import verify
    from tasks.models.tokens import caption_counter

    if arguments.quick and arguments.full:
        raise UsageError("--quick, --full: choose one")
    level = "quick" if arguments.quick else "full" if arguments.full else "default"
    version = version_at(Path(arguments.dataset))
    out = Path(arguments.out) if arguments.out else page_path(version)
    dataset = shlex.quote(arguments.dataset)
    with screen.running("verify") as progress:
        report = verify(version, level, progress)  # type: ignore[arg-type]
    checked = Checked(report, level, time.time(), dataset)
    try:
        with screen.running("look") as progress:
            made = write_look(
                version, out, count_tokens=caption_counter(), progress=progress, checked=checked
            )
    except OSError as error:
        raise UsageError(f"--out: {out} cannot be written ({error.strerror}); give another PATH") from None
    report = made.report or report
    if arguments.json:
        facts = {"look": str(out), "version": version.name, "shown": made.shown, "faulty": made.faulty}
        print_json({**report.to_json(), **facts})
    else:
        say(str(out))
        if not report.ok:
            sys.stderr.write(f"✗ {summary(report)}\n  next: {made.next}\n")
    return 0 if report.ok else 1

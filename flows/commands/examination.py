"""The commands on a training that hangs or crawls: `doctor` examines it, `watch` runs it, looking on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.commands.arguments import AsJson, RunsFolder
from flows.commands.output import print_json, say
from tasks.core.errors import UsageError
from tasks.core.units import counted, format_duration, near

if TYPE_CHECKING:
    from tasks.diagnosis.watch import WatchResult

RUNS = Path("runs")


def doctor(
    *,
    pid: Annotated[int | None, Parameter(help="The training's process, or its launcher's.")] = None,
    run: Annotated[
        str | None, Parameter(help="A run of Tarmac's: its folder, or the start of its id or name.")
    ] = None,
    log: Annotated[
        Path | None, Parameter(help="What the training printed: alone, or beside --pid where it is piped.")
    ] = None,
    runs: RunsFolder = RUNS,
    out: Annotated[Path | None, Parameter(help="Where to save the page (default: doctor-PID.html).")] = None,
    as_json: AsJson = False,
) -> int:
    """Say why a training hangs or is slow, with evidence.

    Looks at the process and its workers for five seconds, without stopping
    them and whichever trainer it is. The exit code is 1 when a cause is an error.

    For example:
      tarmac doctor --pid 50277
      tarmac doctor --run 3f9a
      tarmac doctor --log train.log
    """
    if pid is None and run is None and log is None:
        raise UsageError("tarmac doctor: say what to examine: --pid PID, --run RUN or --log FILE")
    from tasks.diagnosis import examination as examinations

    if pid is not None:
        done = examinations.examine_process(pid, log)
    elif run is not None:
        from tasks.diagnosis.run_doctor import examine_run
        from tasks.runs.folder import find

        done = examine_run(find(runs, run))
    else:
        assert log is not None
        done = examinations.examine_log(log)
    page = out or Path(f"doctor-{done.name}.html")
    examinations.save_doctor_page(done, page)
    if as_json:
        print_json({**done.to_json(), "page": str(page)})
    else:
        say("\n".join(examinations.text_of(done)))
        say(f"SAVED      {near(page)} (redacted; safe to attach to a bug report)")
    return 0 if done.verdict.report.ok else 1


def watch(
    *words: Annotated[str, Parameter(help="-- and the command of any training.")],
    progress: Annotated[
        str | None,
        Parameter(
            metavar="PATTERN",
            help="A regular expression of lines that show a step; groups done, total and loss are numbers.",
        ),
    ] = None,
    stop: Annotated[
        bool, Parameter(help="End the training when a stall has a cause that is an error.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run any training, and say why when it stalls.

    Its output passes through unchanged, and so do signals and its exit code,
    which becomes 1 where it ended with 0 without having trained, or was
    stopped by --stop.

    For example:
      tarmac watch -- python -m open_clip_train.main --train-data 't-{00..17}.tar'
      tarmac watch --progress 'it (?P<done>[0-9]+)' -- ./train.sh
    """
    from tasks.diagnosis.watch import to_stderr
    from tasks.diagnosis.watch import watch as run

    if not words:
        raise UsageError("tarmac watch: give -- and the command of a training")
    done = run(words, Path.cwd(), to_stderr, pattern=progress, stops=stop, output_to_stderr=as_json)
    if as_json:
        print_json(_facts(done))
    else:
        to_stderr("\n".join(_ended(done)))
    return done.exit_code


def _facts(done: WatchResult) -> dict[str, object]:
    return {
        **done.report.to_json(),
        "ok": done.exit_code == 0,
        "exit_code": done.exit_code,
        "stopped": done.was_stopped,
        "trainer": done.trainer,
        "steps": done.steps,
        "seconds": round(done.seconds, 2),
        "checkpoint": done.checkpoint,
        "stalls": [one.to_json() for one in done.stalls],
    }


def _ended(done: WatchResult) -> list[str]:
    """What became of the training, in lines that go to standard error; of one that was stopped the verdict
    again, which has scrolled away above what the training printed while it ended."""
    from tasks.diagnosis.examination import verdict_of

    took = format_duration(done.seconds)
    problems = [one for one in done.report.findings if one.code not in _codes(done)]
    lines = []
    for one in problems:
        mark = "✗" if one.severity == "error" else "!"
        lines += [f"{mark} {one.code:<17} {one.evidence['what']}", f"    fix    {one.remedy}"]
    saved = f", {near(Path(done.checkpoint))} written" if done.checkpoint is not None else ""
    steps = f"{counted(done.steps, 'line')} of progress" if done.steps else "no line of progress"
    if done.was_stopped:
        lines.append(f"✗ watch: it stopped the training: {steps}{saved}, {took}")
        lines += verdict_of(done.stalls[-1])
    elif done.exit_code == 0:
        lines.append(f"✓ watch: it ended well: exit code 0, {steps}{saved}, {took}")
    else:
        lines.append(f"✗ watch: exit code {done.exit_code}, {steps}{saved}, {took}")
    return lines


def _codes(done: WatchResult) -> set[str]:
    """The causes that were shown while the training stood still."""
    return {one.code for stall in done.stalls for one in stall.verdict.report.findings}

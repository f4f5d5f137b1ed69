"""The orchestration of a pipeline does not grow with the number of shards.

`python -m tests.soak.overhead 10 10000` runs the digits' pipeline over so many shards of one sample each, on a
Prefect server that is running already, and prints the task runs and what the flow run lasted beyond its own
stages. A pipeline has 20 task runs at most and 5 seconds of overhead, on a machine with nothing else to do.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.services import BIN, ROOT, Api, crowding, environment, free_port, prefect_server

TASKS, OVERHEAD_S = 20, 5.0
CHANGES = {
    "dataset.shard": "{samples: 1}",
    "dataset.splits": "{val: 0.2}",
    "train.steps": 4,
    "train.batch_size": 4,
    "train.warmup": 1,
    "train.checkpoint_every": 4,
    "evaluate.every": 4,
    "loader.workers": 0,
    "track.mode": "disabled",
}


def samples(project: Path, count: int) -> None:
    """Leave a table of so many samples; of a digit that comes again there is another link."""
    folder = project / "data/raw/digits"
    with (folder / "captions.csv").open() as file:
        head, *rows = csv.reader(file)
    with (folder / "captions.csv").open("w") as file:
        table = csv.writer(file)
        table.writerow(head)
        for number in range(count):
            image, *rest = rows[number % len(rows)]
            os.link(folder / image, folder / f"{number:07d}.png")
            table.writerow([f"{number:07d}.png", *rest])


def measure(api: Api, env: dict[str, str], project: Path, count: int) -> bool:
    """Run the pipeline over so many samples; whether it kept its promises."""
    (project / "configs").mkdir(parents=True)
    shutil.copy(ROOT / "configs/digits-clip.yaml", project / "configs")
    subprocess.run([BIN / "tarmac", "example", "digits"], cwd=project, check=True)
    samples(project, count)
    changes = [f"--set={key}={value}" for key, value in CHANGES.items()]
    command = [str(BIN / "tarmac"), "run", "configs/digits-clip.yaml", "--json", *changes]
    began = time.monotonic()
    done = subprocess.run(command, cwd=project, env=env, stdout=subprocess.PIPE, text=True, check=True)
    wall_s = time.monotonic() - began
    stages_s = sum(stage["seconds"] for stage in json.loads(done.stdout)["stages"])
    [run] = api.filter("flow_runs", sort="START_TIME_DESC", limit=1)
    tasks = len(api.ended_tasks(run["id"], 8))
    overhead_s = run["total_run_time"] - stages_s
    limit_s = OVERHEAD_S * crowding()
    print(
        f"{count:,} shards: {tasks} task runs, {overhead_s:.1f} s of overhead (limit {limit_s:.0f} s), "
        f"{stages_s:.0f} s of stages, {wall_s:.0f} s in all"
    )
    return tasks <= TASKS and overhead_s <= limit_s


def main(counts: list[int]) -> int:
    with tempfile.TemporaryDirectory(prefix="tarmac-overhead-", ignore_cleanup_errors=True) as folder:
        env = environment(Path(folder) / "prefect", free_port())
        with prefect_server(env, Path(folder) / "server.log") as api:
            kept = [measure(api, env, Path(folder) / str(count), count) for count in counts]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main([int(count) for count in sys.argv[1:]]))

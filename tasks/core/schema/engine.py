"""The `engine` block: where each stage runs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, model_validator

from tasks.core.schema.block import Block, Duration, Size


class SlurmDefaults(Block):
    """Settings of all Slurm jobs, unless a stage has its own."""

    account: str | None = None
    partition: str | None = None
    cpus: Annotated[int, Field(ge=1)] | None = None
    """Cores per job."""
    memory: Size | None = None
    """Memory per job, on its node."""
    time: Duration | None = None
    """Time limit per job, rounded up to minutes; the partition's own unless given. Work that a job does not
    finish in it goes to another job."""
    setup: list[str] | None = None
    """Shell lines at the start of a job's script, such as `module load cuda`."""
    extra: dict[str, StrictStr | StrictInt | Literal[True]] | None = None
    """Further long options of sbatch, such as `{qos: low, exclusive: true}`."""

    @model_validator(mode="after")
    def _extra_options_are_known(self) -> Self:
        for name, value in (self.extra or {}).items():
            if not re.fullmatch(r"[a-z][a-z-]*", name):
                raise ValueError(f"extra: {name!r} is no long option of sbatch, such as qos")
            if name in OWN_OPTIONS:
                raise ValueError(f"extra: {name} is {OWN_OPTIONS[name]}")
            if "\n" in str(value):
                raise ValueError(f"extra: {name} has more than one line")
        return self


OWN_OPTIONS = {
    "account": "a key of its own",
    "partition": "a key of its own",
    "time": "a key of its own",
    "mem": "given by the key memory",
    "cpus-per-task": "given by the key cpus",
    **dict.fromkeys(
        ("array", "chdir", "error", "job-name", "nodes", "ntasks", "ntasks-per-node", "output", "signal"),
        "set by Tarmac; leave it out",
    ),
}
"""Options of sbatch that `extra` may not override, and why."""


class BuildEngine(SlurmDefaults):
    """Where the build runs: on this machine, as a Slurm job array, or on a Dask cluster."""

    kind: Literal["local", "slurm", "dask"] = "local"
    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes on this machine (2 unless given) or per Slurm job (`cpus` unless given)."""
    jobs: Annotated[int, Field(ge=1)] | None = None
    """Slurm jobs that share the work; 4 unless given."""
    address: Annotated[str, Field(pattern=r"^(tcp|tls|ws|wss|ucx|ucxx)://\S+:\d+$")] | None = None
    """Address of the Dask scheduler, such as `tcp://10.0.0.1:8786`."""

    @model_validator(mode="before")
    @classmethod
    def _two_workers_here(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("kind", "local") == "local":
            return {**value, "workers": 2 if value.get("workers") is None else value["workers"]}
        return value

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        slurm = [name for name in SlurmDefaults.model_fields if getattr(self, name) is not None]
        slurm += ["jobs"] if self.jobs is not None else []
        if self.kind != "slurm" and slurm:
            raise ValueError(f"{slurm[0]} needs kind: slurm")
        if (self.kind == "dask") != (self.address is not None):
            raise ValueError("kind: dask and address belong together")
        if self.kind == "dask" and self.workers is not None:
            raise ValueError("workers: the Dask cluster has its own")
        return self


class TrainEngine(Block):
    """Where the training runs."""

    kind: Literal["local"] = "local"
    time: Duration = 48 * 3600
    """Time limit of the job; the next start resumes the training."""


class EvaluateEngine(Block):
    """Where the evaluations run."""

    kind: Literal["local"] = "local"
    jobs: Annotated[int, Field(ge=1)] = 1
    """How many run at once."""
    time: Duration = 3600
    """Time limit per evaluation."""


class Engines(Block):
    """Where each stage runs."""

    slurm: SlurmDefaults = SlurmDefaults()
    build: BuildEngine = BuildEngine()
    train: TrainEngine = TrainEngine()
    evaluate: EvaluateEngine = EvaluateEngine()

    def for_build(self) -> BuildEngine:
        """The build's settings, completed by those of `slurm`; the options in `extra` of both add up."""
        if self.build.kind != "slurm":
            return self.build
        shared = {name: value for name, value in self.slurm if value is not None}
        own = {name: value for name, value in self.build if value is not None}
        extra = {**(self.slurm.extra or {}), **(self.build.extra or {})}
        return self.build.model_copy(update={**shared, **own, "extra": extra or None})

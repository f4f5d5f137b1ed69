"""Each mistake in a config is one line that names the key and the fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.parameters import Overrides, configured
from tasks.core.config import dump, load_config, reload
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.core.schema.recipes import RECIPES

DIGITS = Path(__file__).parents[2] / "configs/digits-clip.yaml"


def complaint(*overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_config(DIGITS, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{DIGITS}: ")


def test_defaults_are_the_ones_that_the_digits_config_spells_out() -> None:
    spelled = load_config(DIGITS)
    needed = {"name": "digits-clip", "dataset": {"output": "data/digits", "modality": "image_text"}}
    needed["dataset"]["source"] = spelled.model_dump(mode="json")["dataset"]["source"]  # type: ignore[index]
    short = Config.model_validate(needed)
    for block in ("dataset", "loader", "track", "engine", "runs"):
        assert getattr(short, block) == getattr(spelled, block), block


def test_a_dumped_config_loads_as_the_same() -> None:
    config = load_config(DIGITS, ["dataset.shard={bytes: 2GB}", "engine.train.time=90m"])
    assert config.engine.train.time == 5400
    assert config.dataset.shard.bytes == 2_000_000_000
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


def test_a_dumped_config_is_read_back_as_it_stands(tmp_path: Path) -> None:
    """What looks like an interpolation, a missing value, a number or a date by then is a text."""
    config = load_config(DIGITS, ["train.lr=1e-7"])
    texts = ["${not.there}", "???", "1e3", "2024-01-01", "no", "鳥\n", "{}"]
    values = config.model_dump(mode="json")
    values["train"]["model"]["texts"] = texts
    config = Config.model_validate(values)
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    assert reload(path) == config
    path.write_text("name: [x\n")
    with pytest.raises(UsageError, match=r"config\.yaml: line 2: .*no valid YAML"):
        reload(path)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.lrr=3", "train.lrr: unknown key; did you mean lr?"),
        ("dataset.source.imge=x", "dataset.source.imge: unknown key; did you mean image?"),
        ("trainn.steps=3", "trainn: unknown key; did you mean train?"),
        ("train.batch-size=3", "train.batch-size: unknown key; did you mean batch_size?"),
        ("batch-size=3", "batch-size: unknown key; there are: name, runs, dataset, "),
        (
            "dataset.source.separator=;",
            "dataset.source.separator: unknown key; there are: kind, path, delimiter, encoding, image, root, caption, captions, templates, fields",
        ),
        (
            "train.epochs=3",
            "train: steps (600) and epochs (3) are both given; remove one, for example with --set train.steps=null",
        ),
        ("train.model={name: x", "--set train.model={name: x: what follows the = is no valid YAML: did not"),
        (
            "dataset.source.delimiter=,",
            """did not find expected node content; a text goes into quotes, as in --set dataset.source.delimiter='"TEXT"'""",
        ),
        ("train.lr=${", "--set train.lr=${: what follows the = is no valid YAML: no viable alternative"),
        ("train.lr=-1", "train.lr: must be greater than 0, not -1"),
        ("train.lr=abc", "train.lr: must be a number or a block of keys, not 'abc'"),
        ("dataset.source=[table]", "dataset.source: must be a block of keys"),
        ("train.lr=.inf", "train.lr: must be a finite number, not inf"),
        ("train.weight_decay=.inf", "train.weight_decay: must be a finite number, not inf"),
        (f"train.seed={1 << 64}", f"train.seed: must be less than {1 << 63}, not {1 << 64}"),
        (
            "train.warmup=1.0",
            "train.warmup: must be less than 1, not 1.0",
        ),
        (
            "train.warmup=true",
            "train.warmup: must be an integer, a number or a block of keys, not True",
        ),
        ("train.batch_size=1", "train.batch_size: must be greater than or equal to 2, not 1"),
        (
            "dataset.source.kind=tabel",
            "dataset.source.kind: no source is of kind 'tabel'; did you mean table?",
        ),
        ("engine.train.time=30", "engine.train.time: 30 needs a number and a unit (s, m, h, d), such as 48h"),
        (
            "dataset.shard={bytes: 256}",
            "dataset.shard.bytes: 256 needs a number and a unit (B, KB, MB, GB, TB)",
        ),
        ("dataset.shard={bytes: 1MB, samples: 3}", "dataset.shard: takes samples or bytes, not both"),
        (
            "dataset.splits={val: 0.6, test: 0.5}",
            "dataset.splits: the shares held out leave nothing to train on",
        ),
        ("dataset.splits.val=2", "dataset.splits.val: must be less than 1, not 2"),
        ("dataset.splits.train=0.5", "dataset.splits: 'train' cannot be held out"),
        ("train.steps=null", "train: needs either steps or epochs"),
        ("evaluate.every=150", "evaluate.every (150) must be a multiple of train.checkpoint_every (200)"),
        ("evaluate.tasks=[zero_shot, zero_shot]", "evaluate: tasks: two tasks are named 'zero_shot'"),
        (
            "loader={reader: streaming, on_bad: replace}",
            "loader: on_bad: replace draws other samples by the index, which reader: streaming does not use",
        ),
        ("loader.bad_budget=0.5", "loader: bad_budget: has an effect only with on_bad: replace"),
        ("loader={on_bad: replace, bad_budget: 0}", "loader.bad_budget: must be greater than 0, not 0"),
        ("loader.workers=many", "loader.workers: must be an integer or 'auto', not 'many'"),
        ("name=a b", "name: must match pattern"),
        ("train=3", "train: must be a block of keys"),
        ("train.lr=${nowhere}", "train.lr: Interpolation key 'nowhere' not found"),
        ("dataset.filter={a: null}", "dataset.filter.a: must be a text"),
        ("dataset.output=' '", "dataset.output: needs a folder"),
        ("dataset.output=s3://", "output: s3:// names no bucket"),
        ("dataset.modality=volume_report", "modality volume_report cannot come from a source of kind table"),
    ],
)
def test_each_mistake_names_its_key_and_fix(override: str, says: str) -> None:
    assert says in complaint(override)


def test_every_mistake_has_its_reason_and_its_fix() -> None:
    with pytest.raises(UsageError) as caught:
        load_config(DIGITS, ["dataset.reject_budgt=1", "train.precision=fp8", "train.seed=-1"])
    assert str(caught.value).splitlines() == [
        f"{DIGITS}: 3 errors",
        "  dataset.reject_budgt: unknown key; did you mean reject_budget?",
        "  train.precision: must be 'auto', 'fp32', 'bf16' or 'fp16', not 'fp8'",
        "  train.seed: must be greater than or equal to 0, not -1",
    ]


def test_recipe_and_evaluations_report_their_mistakes_together() -> None:
    model, tasks = "train.model={nme: a, foo: 1}", "evaluate.tasks=[zero_shott, {kind: retrieval, x: 1}]"
    with pytest.raises(UsageError) as caught:
        configured(DIGITS, Overrides(set=[model, tasks]))
    first, *lines = str(caught.value).splitlines()
    assert first == f"{DIGITS}: 4 errors"
    assert lines[0] == "  train.model.nme: unknown key; did you mean name?"
    assert lines[1].startswith("  train.model.foo: unknown key; there are: name, ")
    assert lines[2:] == [
        "  evaluate.tasks: unknown kind 'zero_shott'; did you mean zero_shot?",
        "  evaluate.tasks: retrieval: x: unknown argument; there are: split, dataset, samples",
    ]


def test_a_split_column_beside_shares_has_the_change_that_mends_it() -> None:
    fix = "--set 'dataset.splits={from: split}'"
    assert complaint("dataset.splits={from: split, val: 0.1}").endswith(f"so remove val: {fix}")
    load_config(DIGITS, ["dataset.splits={from: split}"])


def test_epochs_take_the_place_of_steps_that_are_set_to_null() -> None:
    config = load_config(DIGITS, ["train.epochs=3", "train.steps=null"])
    assert config.train is not None
    assert (config.train.steps, config.train.epochs) == (None, 3)


def test_an_override_without_a_value_is_refused() -> None:
    for override in ("train.lr", "=3", "train lr=3"):
        assert "needs KEY=VALUE" in complaint(override)
    assert "is no KEY=VALUE" in complaint("[=1")


def test_a_tilde_is_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    config = load_config(DIGITS, ["dataset.output=~/data", "dataset.source.path=~/raw/a.csv", "runs=~/runs"])
    assert config.dataset.output == Path("/home/ada/data") and config.runs == Path("/home/ada/runs")
    assert config.dataset.all_sources[0].path == "/home/ada/raw/a.csv"


def test_a_missing_key_is_named() -> None:
    message = complaint("dataset.source={kind: table, image: file, caption: caption}")
    assert message.startswith(
        "dataset.source.path: is required: A file, a folder with all tables below it, or a pattern"
    )
    model = "recipe: clip, model: {name: tarmac/digits}"
    message = complaint(f"train={{{model}, batch_size: 64, steps: 600, checkpoint_every: 200}}")
    assert message.startswith("train.lr: is required: The peak learning rate") and "\n" not in message


def test_files_that_are_no_config(tmp_path: Path) -> None:
    for content, says in [
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"name: [", "is no valid YAML"),
        (b"name: a\0b", "is no valid YAML"),
        (b"name: " + b"1" * 5000, "is no valid YAML"),
        (b"- a\n- b\n", "holds no keys"),
        (b"name: a\ndataset:\n\toutput: b\n", "line 3: a tab stands where YAML takes spaces only"),
    ]:
        path = tmp_path / "config.yaml"
        path.write_bytes(content)
        with pytest.raises(UsageError, match=says) as caught:
            load_config(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(
        UsageError, match=r"2 errors\n  name: is required: The beg.*\n  dataset: is required: The"
    ):
        load_config(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_config(tmp_path / "nowhere.yaml")


def test_interpolation_and_overrides_reach_the_values() -> None:
    config = load_config(DIGITS, ["train.checkpoint_every=100", "evaluate.every=${train.checkpoint_every}"])
    assert config.evaluate is not None
    assert config.evaluate.every == 100


def test_a_table_is_no_config_and_its_rows_are_not_shown(tmp_path: Path) -> None:
    text = "file,text\n" + "".join(f"images/{n}.jpg,a secret number {n}\n" for n in range(9))
    for name in ("birds.csv", "birds.yaml"):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError) as caught:
            load_config(tmp_path / name)
        assert "secret number 5" not in str(caught.value) and len(str(caught.value)) < 500
    with pytest.raises(UsageError, match=r"birds\.csv: is a table, not a config; `tarmac init .*birds\.csv`"):
        load_config(tmp_path / "birds.csv")


CT = """\
name: ct-clip
dataset:
  output: s3://lab/ct-rate
  modality: volume_report
  private: true
  source:
    kind: nifti
    path: /orange/lab/CT-RATE
    fields: {patient: '((?:train|valid)_\\d+)_'}
    reports: {path: reports.csv, key: VolumeName, text: [Findings_EN, Impressions_EN]}
    labels: {path: labels.csv, key: VolumeName}
  volume: {window: [-1000, 1000], spacing_mm: [1.5, 0.75, 0.75], shape: [240, 480, 480], encode: blosc2}
  shard: {bytes: 2GB}
  splits: {val: 0.05, group_by: patient}
engine:
  slurm: {account: lab, setup: [module load cuda]}
  build: {kind: slurm, jobs: 32, cpus: 8, memory: 32GB, time: 6h, extra: {qos: low, exclusive: true}}
  train: {kind: slurm, partition: gpu, gpus: 4, cpus: 32, memory: 400GB, time: 48h}
  evaluate: {kind: slurm, partition: gpu, gpus: 1, time: 1h, jobs: 4}
"""
CHAT = """\
name: nano-vlm
dataset:
  output: data/cauldron
  modality: chat
  sources: [{kind: chat, path: 'raw/cauldron/*.parquet'}]
  filter: {relevance: 3, image_correspondence: [3, 4.5], lang: en}
  splits: {from: split}
train: {recipe: clip, model: {name: x}, batch_size: 2, steps: 9, lr: 1.0e-3, warmup: 0.03, checkpoint_every: 3}
evaluate: {every: '${train.checkpoint_every}', tasks: [zero_shot, {kind: retrieval, samples: 1000}]}
loader: {workers: auto, prefetch: 4}
schedule: {cron: 0 2 * * *, then: train}
engine:
  train: {kind: slurm, partition: gpu, ranks: 2, time: 24h}
  evaluate: {kind: slurm, partition: gpu, gpus: 1, time: 2h, jobs: 4}
"""


def test_a_wrong_key_within_a_block_is_the_only_mistake() -> None:
    """The learning rate may be a number too, which a block is not."""
    assert complaint("train.lr={vision: x}") == "train.lr.vision: must be a number, not 'x'"


def test_a_recipe_that_does_not_exist_is_one_line() -> None:
    there = " or ".join(map(repr, RECIPES))
    assert complaint("train.recipe=futurist") == f"train.recipe: must be {there}, not 'futurist'"


def test_a_training_on_this_machine_has_no_time_limit_unless_given() -> None:
    assert load_config(DIGITS, []).engine.train.time is None

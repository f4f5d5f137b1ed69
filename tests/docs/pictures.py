"""Draws the pictures of the pipeline and of a sample's life for the docs; `python -m tests.docs.pictures` writes them.

Each picture brings its own ground and follows the reader's light or dark system, so it reads well on GitHub, in the
site and alone. Its texts are wrapped by hand: SVG has no line breaks, and a browser's widths differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs/assets"
STYLE = """
.ground{fill:#fff}.box{fill:#f4f6f8;stroke:#8a97a5}.key{fill:#e3e9ff;stroke:#6f7fc4}
text{font:13px system-ui,sans-serif;fill:#1b1b1b}.name{font-weight:600;font-size:15px}
.mono{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px}
.arrow{stroke:#5d6875;stroke-width:1.5;fill:none}
@media(prefers-color-scheme:dark){.ground{fill:#1e2129}.box{fill:#2a2e38;stroke:#7c8797}.key{fill:#2b3560;stroke:#8494da}
text{fill:#eceff4}.arrow{stroke:#a7b0bd}}
"""

PIPELINE = [
    [
        ("raw files", ["images, tables, volumes,", "conversations, tars"]),
        ("build", ["checks and converts each", "sample; writes shards"]),
        ("verify", ["compares each file with", "its kept digest"]),
    ],
    [
        ("assess", ["finds copies, leaks, and", "samples that mislead"]),
        ("publish", ["makes the version current", "by one rename"]),
        ("tune", ["measures which loader", "settings are fast enough"]),
    ],
    [
        ("train", ["takes the steps; resumes", "after a kill"]),
        ("evaluate", ["judges each checkpoint", "while training goes on"]),
        ("report, gather", ["one page and one wandb", "run with all results"]),
    ],
]
"""The stages in their order, in rows, each with two lines of what it does."""

LIFE = [
    ("raw line", "captions.csv:1481", "A row, or a file, of the source."),
    ("members", "digit_1479.png .txt .json", "Checked and converted; else a reject with its reason."),
    ("shard", "train/000003.tar", "A plain WebDataset tar; shards.parquet has its digest."),
    ("index", "index/train.npy", "Where the sample lies, and the CRC32C of its bytes."),
    ("batch", "sample 576 of train", "The seed decides its turn, for any number of workers."),
    ("step", "metrics.jsonl", "Loss and rate of the step; wandb shows the same row."),
    ("evaluation's row", "zero_shot.samples.parquet", "A held-out sample: what each checkpoint says of it."),
]
"""What becomes of a sample: a name, an example of where that is found, and what holds there."""


def svg(width: int, height: int, title: str, description: str, parts: Sequence[str]) -> str:
    """A picture with a ground of its own and with what a screen reader says."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" width="{width}" '
            'aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{width}" height="{height}" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text{f" class={chr(34)}{kind}{chr(34)}" if kind else ""} x="{x:g}" y="{y:g}">{escape(words)}</text>'


def pipeline() -> str:
    """Rows of boxes, read as a text is: from left to right, and on in the next row."""
    width, height, gap, margin = 186, 72, 28, 14
    parts = []
    for row, stages in enumerate(PIPELINE):
        y = margin + row * (height + gap)
        for column, (name, lines) in enumerate(stages):
            x = margin + column * (width + gap)
            kind = "key" if row == column == 0 else "box"
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>')
            parts.append(text(x + 10, y + 23, name, "name"))
            parts += [text(x + 10, y + 43 + 17 * number, line) for number, line in enumerate(lines)]
            if column < len(stages) - 1:
                parts.append(
                    f'<path class="arrow" d="M{x + width + 3} {y + height / 2:g}h{gap - 6}m-6 -5l6 5l-6 5"/>'
                )
            elif row < len(PIPELINE) - 1:
                middle, low = x + width / 2, y + height
                back = margin + width / 2 - middle
                parts.append(
                    f'<path class="arrow" d="M{middle:g} {low + 3}v{gap / 2 - 3:g}h{back:g}v{gap / 2 - 3:g}m-5 -6l5 6l5 -6"/>'
                )
    total = 2 * margin + 3 * width + 2 * gap, 2 * margin + 3 * height + 2 * gap
    said = "; ".join(f"{name}: {' '.join(lines)}" for stages in PIPELINE for name, lines in stages)
    return svg(*total, "The stages of the pipeline, in their order", said, parts)


def life() -> str:
    """One row per place that a sample passes, from the raw line to what an evaluation said of it."""
    width, height, gap, margin = 560, 58, 20, 14
    parts = []
    for row, (name, place, holds) in enumerate(LIFE):
        y = margin + row * (height + gap)
        kind = "key" if row in (0, len(LIFE) - 1) else "box"
        parts.append(f'<rect class="{kind}" x="{margin}" y="{y}" width="{width}" height="{height}" rx="4"/>')
        parts.append(text(margin + 12, y + 24, name, "name"))
        parts.append(text(margin + 168, y + 24, place, "mono"))
        parts.append(text(margin + 168, y + 45, holds))
        if row < len(LIFE) - 1:
            parts.append(
                f'<path class="arrow" d="M{margin + 60} {y + height + 2}v{gap - 4}m-5 -6l5 6l5 -6"/>'
            )
    total = 2 * margin + width, 2 * margin + len(LIFE) * height + (len(LIFE) - 1) * gap
    said = "; ".join(f"{name}, such as {place}: {holds}" for name, place, holds in LIFE)
    return svg(*total, "The life of a sample, from its raw line to an evaluation's row", said, parts)


PICTURES = {"pipeline.svg": pipeline, "sample.svg": life}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())

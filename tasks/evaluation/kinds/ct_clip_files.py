"""The files that CT-CLIP's zero-shot evaluation writes, for programs that read them.

`labels_weights.npz` and `predicted_weights.npz` hold an array `data` [samples, labels], `accessions.txt` one
name per line, and `aurocs.xlsx` one column `<label>_auc` per label. Source: scripts/zero_shot.py.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
PARTS: Mapping[str, str] = {
    "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{TYPE}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{TYPE}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{DOCUMENT}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{DOCUMENT}">'
    '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{DOCUMENT}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}
"""The parts of a workbook with one sheet, except the sheet: ECMA-376, parts 1 and 2."""


def ct_clip_files(
    labels: Sequence[str],
    names: Sequence[str],
    truth: NDArray[np.float64],
    scores: NDArray[np.float64],
    metrics: Mapping[str, float],
) -> dict[str, bytes]:
    """Return the files by name; a label without an AUROC has an empty cell. Unknown labels are NaN, which
    CT-CLIP's scripts refuse instead of counting them."""
    is_known = bool(np.isfinite(truth).all())
    aurocs = {f"{label}_auc": metrics.get(f"auroc_{label}") for label in labels}
    return {
        "labels_weights.npz": _npz(truth.astype(np.int64) if is_known else truth),
        "predicted_weights.npz": _npz(scores),
        "accessions.txt": "".join(f"{name}\n" for name in names).encode(),
        "aurocs.xlsx": workbook(aurocs),
    }


def _npz(values: NDArray[np.generic]) -> bytes:
    content = io.BytesIO()
    np.savez(content, data=values)
    return content.getvalue()


def workbook(columns: Mapping[str, float | None]) -> bytes:
    """Write a sheet with one row of numbers under their names."""
    head = "".join(f'<c t="inlineStr"><is><t>{escape(name)}</t></is></c>' for name in columns)
    row = "".join("<c/>" if value is None else f"<c><v>{value!r}</v></c>" for value in columns.values())
    rows = f"<row>{head}</row><row>{row}</row>"
    sheet = f'<worksheet xmlns="{MAIN}"><sheetData>{rows}</sheetData></worksheet>'
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in {**PARTS, "xl/worksheets/sheet1.xml": sheet}.items():
            xml = f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n{part}'
            archive.writestr(zipfile.ZipInfo(name), xml)
    return content.getvalue()

"""`addresses_peer.py TABLE OUT PROCESSES THREADS RETRIES`: img2dataset over a table; prints seconds and images.

It decodes each image, to know that it is one, and keeps its bytes, as Tarmac does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(table: str, out: str, processes: str, threads: str, retries: str) -> None:
    from img2dataset import download

    began = time.perf_counter()
    download(
        url_list=table,
        input_format="csv",
        url_col="file",
        caption_col="caption",
        output_format="webdataset",
        output_folder=out,
        processes_count=int(processes),
        thread_count=int(threads),
        number_sample_per_shard=500,
        resize_mode="no",
        skip_reencode=True,
        retries=int(retries),
    )
    took = time.perf_counter() - began
    told = [json.loads(path.read_text()) for path in Path(out).glob("*_stats.json")]
    print(f"\n{took} {sum(one['successes'] for one in told)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

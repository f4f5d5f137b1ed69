"""`read_webdataset.py URL`: every sample once, by webdataset's usual pipeline with its own decoders."""

import sys

import webdataset
from told import sample, tell

stream = webdataset.WebDataset(sys.argv[1], shardshuffle=False).shuffle(100).decode("pilrgb")
tell(
    webdataset.__version__,
    [(one["__key__"], sample(one["txt"], one["png"], label=one["json"]["label"])) for one in stream],
)

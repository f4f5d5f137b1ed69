"""`read_huggingface.py URL…`: every sample, by the webdataset builder of Hugging Face's datasets."""

import sys

import datasets
from told import sample, tell

found = datasets.load_dataset("webdataset", data_files={"train": sys.argv[1:]}, split="train")
tell(
    datasets.__version__,
    [(row["__key__"], sample(row["txt"], row["png"], label=row["json"]["label"])) for row in found],
)

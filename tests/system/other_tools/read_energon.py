"""`read_energon.py FOLDER`: every training sample once, by Megatron-Energon's loader of a prepared folder."""

import sys

import megatron.energon as energon
from told import sample, tell


def main(folder: str) -> None:
    dataset = energon.get_train_dataset(
        folder,
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=1),
        batch_size=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        repeat=False,
    )
    tell(
        energon.__version__,
        [
            (one.__key__.rpartition("/")[2], sample(one.caption, (one.image * 255).round().permute(1, 2, 0)))
            for one in energon.get_loader(dataset)
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1])

"""Training with Ray Train, which goes on after a failure: no picture lost or repeated in an epoch.

python examples/ray_train.py --data DIR --workers 2
"""

import argparse
from tempfile import TemporaryDirectory
from typing import Any

import ray.train
from make_pictures import pictures  # type: ignore[import-not-found]
from ray.train.torch import TorchTrainer, prepare_model
from torch import cuda, load, nn, optim, save  # with torch, Ray would pickle it, and fail

from dali_storage.loaders import Shard, image_folder


def train(args: dict[str, Any]) -> None:  # what each worker does
    shard, step = Shard.here(), 0
    options = {"batch_size": 24 // shard.world, "device": args["device"]}
    with image_folder(args["data"], train=True, **options) as loader:
        layers = nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        network = nn.Sequential(*layers, nn.Linear(64 * 4 * 4, len(loader.classes)))
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as path:
                step, world, weights = load(f"{path}/training.pt")
                network.load_state_dict(weights)
                # With as many workers as before, its own state; otherwise any one will do.
                loader.load_state_dict(load(f"{path}/loader-{shard.rank % world}.pt"))
        model = prepare_model(network)
        optimizer = optim.SGD(model.parameters(), 0.1)
        while step < args["steps"]:
            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                step += 1
                if step % 4 == 0:
                    with TemporaryDirectory() as path:  # every worker adds its own file
                        save(loader.state_dict(), f"{path}/loader-{shard.rank}.pt")
                        if shard.rank == 0:
                            saved = step, shard.world, network.state_dict()
                            save(saved, f"{path}/training.pt")
                        checkpoint = ray.train.Checkpoint.from_directory(path)
                        ray.train.report({"step": step}, checkpoint=checkpoint)
                if step == args["steps"]:
                    break


def classes(given: str) -> str:
    return given or f"{pictures('')}/train"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=classes, default="", metavar="DIR", help="has class folders")
    here = "gpu" if cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
    parser.add_argument("--workers", type=int, default=2, help="0: in this process")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    scale = ray.train.ScalingConfig(num_workers=args.workers, use_gpu=args.device == "gpu")
    # Several machines need storage_path="s3://..." or a shared directory in RunConfig, too.
    run = ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=3))
    TorchTrainer(train, train_loop_config=vars(args), scaling_config=scale, run_config=run).fit()

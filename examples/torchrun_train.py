"""Training with DistributedDataParallel; every process reads its own part of the pictures.

torchrun --standalone --nproc-per-node 2 examples/torchrun_train.py --data DIR
"""

import argparse

import torch
from make_pictures import pictures  # type: ignore[import-not-found]
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dali_storage.loaders import Shard, image_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/ and val/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--max-steps", type=int, metavar="N", help="leave every epoch after N batches")
args = parser.parse_args()

distributed.init_process_group("nccl" if args.device == "gpu" else "gloo")
shard = Shard.here()
device = torch.device("cpu" if args.device == "cpu" else f"cuda:{shard.local_rank}")

train = image_folder(f"{args.data}/train", train=True, batch_size=32, device=args.device)
val = image_folder(f"{args.data}/val", train=False, batch_size=32, device=args.device)
torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
network.append(nn.Linear(64 * 4 * 4, len(train.classes)))
model = DistributedDataParallel(network.to(device))
optimizer = torch.optim.AdamW(model.parameters())

for epoch in range(args.epochs):
    model.train()
    for step, (images, labels) in enumerate(train, 1):  # equally many batches in every process
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step == args.max_steps:
            break  # the next loop begins the next epoch

    model.eval()
    right = torch.zeros(2, device=device)  # correct answers, all answers
    with torch.no_grad():
        for images, labels in val:  # every picture once, in one of the processes
            right[0] += (model.module(images).argmax(1) == labels).sum()
            right[1] += len(labels)
    distributed.all_reduce(right)
    if shard.rank == 0:
        print(f"epoch {epoch}: {right[0]:.0f} of {right[1]:.0f} right; {train.stats}")

train.close()
val.close()
distributed.destroy_process_group()

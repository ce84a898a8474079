"""Training that goes on after a crash, with any number of processes: no picture lost or repeated.

torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/torchrun_resume.py --data DIR
"""

import argparse
import os
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from make_pictures import pictures  # type: ignore[import-not-found]
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from dali_storage.loaders import Shard, image_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--checkpoints", metavar="DIR", help="default: a temporary one of the run")
args = parser.parse_args()
run = os.environ.get("TORCHELASTIC_RUN_ID", "alone")  # the same after a restart
checkpoints = args.checkpoints or f"{gettempdir()}/dali_storage-{run}"
distributed.init_process_group("nccl" if args.device == "gpu" else "gloo")
shard = Shard.here()
device = torch.device("cpu" if args.device == "cpu" else f"cuda:{shard.local_rank}")
batch = 24 // shard.world  # a step has 24 pictures, whatever the number of processes

train = image_folder(f"{args.data}/train", train=True, batch_size=batch, device=args.device)
layers = nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
network = nn.Sequential(*layers, nn.Linear(64 * 4 * 4, len(train.classes)))
model = DistributedDataParallel(network.to(device))
optimizer = torch.optim.AdamW(model.parameters())
weights, moments = get_state_dict(model, optimizer)
state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0, "world": 0}
complete = [path.parent for path in Path(checkpoints).glob("*/.metadata")]  # written last
if newest := max(complete, key=lambda path: int(path.name), default=None):
    dcp.load(state, checkpoint_id=newest)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    # With as many processes as before, each loader goes on by its own state; else any state does.
    dcp.load({f"loader/{shard.rank % state['world']}": train}, checkpoint_id=newest)

while state["step"] < args.steps:
    for images, labels in train:  # goes on within the epoch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        state["step"] += 1
        if state["step"] % 4 == 0:
            state["world"] = shard.world
            state["model"], state["optimizer"] = get_state_dict(model, optimizer)
            own = {f"loader/{shard.rank}": train}
            dcp.save(state | own, checkpoint_id=f"{checkpoints}/{state['step']}")
        print(f"rank {shard.rank}, step {state['step']}: {len(labels)} of epoch {train.epoch}")
        if state["step"] == args.steps:
            break
train.close()
# Or it is the last that refers to the group, which torch 2.13 with gloo may then not get rid of.
del model
distributed.destroy_process_group()

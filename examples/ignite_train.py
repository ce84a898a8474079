"""Training with PyTorch Ignite: a bar, times, an early stop, and checkpoints to go on from.

python examples/ignite_train.py --data DIR --checkpoints checkpoints
python examples/ignite_train.py --data DIR --resume checkpoints/checkpoint_100.pt
"""

import argparse

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import BasicTimeProfiler, Checkpoint, DiskSaver, EarlyStopping, ProgressBar
from ignite.metrics import Accuracy, RunningAverage
from make_pictures import fresh, pictures  # type: ignore[import-not-found]
from torch import nn

from dali_storage.loaders import image_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/ and val/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--max-steps", type=int, metavar="N", help="stop after N batches")
parser.add_argument("--checkpoints", metavar="DIR", help="default: a temporary one")
parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
args = parser.parse_args()

train = image_folder(f"{args.data}/train", train=True, batch_size=32, device=args.device)
val = image_folder(f"{args.data}/val", train=False, batch_size=32, device=args.device)
device = "cuda" if args.device == "gpu" else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
model.append(nn.Linear(64 * 4 * 4, len(train.classes))).to(device)
optimizer = torch.optim.AdamW(model.parameters())
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device)
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()}, device)

RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
bar = ProgressBar()
bar.attach(trainer, ["loss"], lambda _: {"wait": train.stats.wait_share})
profiler = BasicTimeProfiler()
profiler.attach(trainer)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate() -> None:
    accuracy = evaluator.run(val).metrics["accuracy"]
    bar.log_message(f"epoch {trainer.state.epoch}: accuracy {accuracy:.3f}; {train.stats}")


stop = EarlyStopping(3, lambda engine: engine.state.metrics["accuracy"], trainer)
evaluator.add_event_handler(Events.COMPLETED, stop)
state = {"model": model, "optimizer": optimizer, "trainer": trainer, "train": train}
files = DiskSaver(args.checkpoints or fresh(), require_empty=False)
save = Checkpoint(state, files, global_step_transform=lambda *_: trainer.state.iteration)
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=100) | Events.COMPLETED, save)
if args.max_steps:
    trainer.on(Events.ITERATION_COMPLETED(once=args.max_steps))(lambda: trainer.terminate())
if args.resume:
    Checkpoint.load_objects(state, torch.load(args.resume, weights_only=True))
trainer.run(train, max_epochs=args.epochs)
profiler.print_results(profiler.get_results())

"""Which batches of which epochs training loops get from a Loader.

The oracle is the same loop over torch's DataLoader and DistributedSampler, or over torchdata's
StatefulDataLoader where it goes on within an epoch. Their orders are not ours, so a batch is
compared by its epoch and its place there.
"""

import warnings
from contextlib import nullcontext
from itertools import chain, islice

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from dali_storage.loaders import Shard
from tests.kit.lightning import Model, fit
from tests.kit.loading import SHUFFLES, Make, given, stream

with warnings.catch_warnings():
    # What Ignite 0.5.5 imports of torch 2.13 uses functions that torch deprecates.
    warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
    from ignite.engine import Engine, Events

pytestmark = [
    pytest.mark.usefixtures("pipelines_end", "one_thread"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path.:UserWarning"),
    pytest.mark.filterwarnings("ignore:You requested to overfit:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]

STEPS = 6  # batches of 4 in an epoch of 24 samples


class Ours:
    """Makes Loaders; `names` has the epoch and the place of each batch."""

    def __init__(self, loader):
        self.loader, self.names = loader, {}

    def __call__(self, samples=24, shuffle=True, rank=0, world=1):
        make = Make(samples=samples, order=SHUFFLES["epoch" if shuffle else "list"])
        batches = stream(make, rank, world)
        self.learn(lambda epoch: given(make, batches(epoch), epoch, "drop", rank, world))
        return self.loader(make, shard=Shard(rank, world), last_batch="drop", to="torch")

    def learn(self, batches):
        for epoch in range(6):
            for place, batch in enumerate(batches(epoch)):
                self.names.setdefault(tuple(batch), f"{epoch}.{place}")

    def name(self, batch):
        tensor = batch[0] if isinstance(batch, (tuple, list)) else batch
        return self.names.get(tuple(tensor.flatten().tolist()), "of two epochs")


class Torchs(Ours):
    def __init__(self, resumes):
        self.kind, self.names = StatefulDataLoader if resumes else DataLoader, {}

    def __call__(self, samples=24, shuffle=True, rank=0, world=1):
        data = torch.arange(samples)
        sampler = StatefulDistributedSampler(data, world, rank, shuffle=shuffle)
        made = self.kind(data, batch_size=4, sampler=sampler, drop_last=True)

        def batches(epoch):
            sampler.set_epoch(epoch)
            order = list(sampler)
            return [order[at : at + 4] for at in range(0, 4 * len(made), 4)]

        self.learn(batches)
        sampler.set_epoch(0)
        return made


class Named(Model):
    """Keeps the names of its batches."""

    def __init__(self, make, data):
        super().__init__()
        self.events, self.make = [], make
        self.train_dataloader = lambda: data(make)
        self.val_dataloader = lambda: make(12, shuffle=False)

    def training_step(self, batch, index):
        parts = batch if isinstance(batch, dict) else {"train": batch}
        self.events += [(key, self.make.name(part)) for key, part in parts.items()]
        return self.network[0].bias.sum()

    def on_train_epoch_end(self):
        self.events.append(("end", self.current_epoch))

    def validation_step(self, batch, index):
        self.events.append(("validate", self.make.name(batch)))


def events(folder, make, data, *runs):
    """The events of some runs; a run goes on from the checkpoint of the run before."""
    models, saved = [], None
    for run in runs:
        options = {"save": None} | run
        save, data = options.pop("save"), options.pop("data", data)
        if save is not None:
            options["callbacks"] = [ModelCheckpoint(folder, filename="x", **save)]
        models.append(fit(Named(make, data), checkpoint=saved, **options))
        saved = save if save is None else folder / "x.ckpt"
    return [model.events for model in models]


def one(make):
    return make()


def half(make):
    return make(rank=0, world=2)


def kept(make):
    make.kept = getattr(make, "kept", None) or make()
    return make.kept


def several(make):
    return {"long": make(), "short": make(8)}


def sequential(make):
    return make(shuffle=False)


def stop(steps):
    return {"max_epochs": -1, "max_steps": steps, "save": {"every_n_train_steps": steps}}


END, MORE, TO_20 = {"save": {}}, {"max_epochs": 4}, {"max_epochs": -1, "max_steps": 20}
LIMIT, RELOAD = {"limit_train_batches": 4}, {"reload_dataloaders_every_n_epochs": 1}
LEFT = "is in epoch 1, after . batches, but the training loop begins epoch 2: .* are left out"
BACK = "is in epoch 2, after 0 batches, but the training loop begins epoch 1: .* are repeated"
CASES = {
    "validation in an epoch": (None, one, {"val_check_interval": 2}),
    "limited": (None, one, LIMIT | {"limit_val_batches": 1}),
    "steps": (None, one, {"max_epochs": -1, "max_steps": 9}),
    "reloaded": (None, one, RELOAD),
    "two trainers": (None, kept, {}, {}),
    "several": (None, several, {}),
    "overfit": ("You requested to overfit", sequential, {"overfit_batches": 2}),
    "from an end": (None, one, END, MORE),
    "from an end, reloaded": (None, one, RELOAD | END, RELOAD | MORE),
    "from an end, limited": (None, one, LIMIT | END, LIMIT | MORE),
    "from an end, of two processes": (None, one, {"data": half} | END, {"data": one} | MORE),
    "from a last step": (None, one, stop(12), MORE),
    "from the limit": (LEFT, one, LIMIT | stop(8), LIMIT | MORE),
    "from a stop that Lightning counts as an end": (LEFT, one, stop(8) | END, TO_20),
    "from such a stop, for some epochs": (None, one, stop(8) | END, MORE),
    "within an epoch": (None, one, stop(8), MORE),
    "within an epoch, to a step": (None, one, stop(8), TO_20),
    "within a limited epoch": (None, one, LIMIT | stop(6), LIMIT | MORE),
    "within a cycle": (None, several, stop(9), MORE),
    "within an epoch, from the end of a cycle": (BACK, several, stop(8), MORE),
}


@pytest.mark.parametrize("case", CASES)
def test_lightning_has_the_batches_that_it_has_of_torchs_loaders(loader, tmp_path, case):
    words, *runs = CASES[case]
    with pytest.warns(UserWarning, match=words) if words else nullcontext():
        ours = events(tmp_path / "ours", Ours(loader), *runs)
    assert ours == events(tmp_path / "torchs", Torchs(case.startswith("within")), *runs)


@pytest.mark.parametrize(
    ("before", "after", "trained", "validated"), [(half, one, 2, False), (one, half, 1, True)]
)
def test_lightning_counts_an_epoch_in_batches_of_the_old_processes(
    loader, tmp_path, before, after, trained, validated
):
    """Two batches are left in both cases."""
    runs = stop(2) | {"data": before}, MORE | {"data": after}
    with pytest.warns(UserWarning, match=r"but here are . with batches of 4: the samples continue"):
        _, resumed = events(tmp_path, Ours(loader), one, *runs)
    rest = [kind for kind, _ in resumed[: resumed.index(("end", 0))]]
    assert (rest.count("train"), "validate" in rest) == (trained, validated)


def ignite(make, length=None, stop=None):
    """The batches of an engine that stops after some of them, and of another one that goes on."""
    saved, names = [], []
    for last in [stop, None] if stop else [None]:
        data, engine = make(), Engine(lambda engine, batch: names.append(make.name(batch)))
        objects = [engine, data] if hasattr(data, "state_dict") else [engine]
        for each, state in zip(objects, saved, strict=False):
            each.load_state_dict(state)
        engine.add_event_handler(
            Events.EPOCH_STARTED,
            lambda engine, sampler=data.sampler: sampler.set_epoch(engine.state.epoch - 1),
        )
        if last:
            engine.add_event_handler(Events.ITERATION_COMPLETED(once=last), Engine.terminate)
        engine.run(data, max_epochs=3, epoch_length=length)
        saved = [each.state_dict() for each in objects]
    return names


@pytest.mark.parametrize("options", [{}, {"length": 4}, {"length": 8}, {"stop": 6}, {"stop": 8}])
def test_ignite_has_the_batches_that_it_has_of_torchs_loaders(loader, options):
    resumes = options.get("stop", 0) % STEPS > 0
    assert ignite(Ours(loader), **options) == ignite(Torchs(resumes), **options)


def torchtune(make):
    """The calls of full_finetune_single_device.py 0.6.1, which saves at the end of an epoch."""
    data = make()
    for epoch in range(2):
        data.sampler.set_epoch(epoch)
        yield from data
    saved, data = data.state_dict(), make()
    data.load_state_dict(saved)
    data.sampler.set_epoch(2)
    yield from data


def accelerate(make):
    """The calls of Accelerate 1.15.0 on a loader that is registered for checkpointing."""
    data = make()
    yield from islice(data, 2)
    saved, data = data.state_dict(), make()
    data.load_state_dict(saved)
    for epoch in range(3):
        data.set_epoch(epoch)
        yield from data


def composer(make):
    """The calls of Composer 0.32.1, which saves no loader: it begins each past epoch, and skips."""
    yield from islice(chain(data := make(), data), STEPS + 2)
    data = make()
    next(iter(data))
    yield from islice(data, 2, None)
    yield from data


@pytest.mark.parametrize("calls", [torchtune, accelerate, composer])
def test_other_frameworks_have_each_epoch_once(loader, calls):
    make = Ours(loader)
    names = [make.name(batch) for batch in calls(make)]
    assert names == [f"{epoch}.{place}" for epoch in range(3) for place in range(STEPS)]

"""Training with JAX: arrays of one shape, so that a step is compiled once.

python examples/jax_train.py --data DIR
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from make_pictures import pictures  # type: ignore[import-not-found]

from dali_storage.loaders import image_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/ and val/")
here = "gpu" if jax.default_backend() == "gpu" else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--max-steps", type=int, metavar="N", help="leave every epoch after N batches")
args = parser.parse_args()

load = partial(image_folder, batch_size=32, device=args.device, layout="HWC", to="jax")
train = load(f"{args.data}/train", train=True)
# The last batch is filled up; val.valid says how many of its images are real.
val = load(f"{args.data}/val", train=False, last_batch="pad")


@jax.jit
def logits(weights: Any, images: jax.Array) -> jax.Array:
    patches = jax.lax.conv_general_dilated(
        images, weights["patches"], (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(patches).mean((1, 2)) @ weights["classes"]


def loss_of(weights: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jax.nn.log_softmax(logits(weights, images))
    return -jnp.take_along_axis(chosen, labels[:, None], 1).mean()


@jax.jit
def step(weights: Any, images: jax.Array, labels: jax.Array) -> Any:
    loss, slopes = jax.value_and_grad(loss_of)(weights, images, labels)
    return jax.tree.map(lambda weight, slope: weight - 0.05 * slope, weights, slopes), loss


keys = jax.random.split(jax.random.key(0))
weights = {
    "patches": 0.05 * jax.random.normal(keys[0], (8, 8, 3, 64)),
    "classes": 0.05 * jax.random.normal(keys[1], (64, len(train.classes))),
}
for epoch in range(args.epochs):
    for number, (images, labels) in enumerate(train, 1):
        weights, loss = step(weights, images, labels)
        loss.block_until_ready()  # or the time of this step would count as waiting for the next
        if number == args.max_steps:
            break
    right = [(logits(weights, x).argmax(1) == labels)[: val.valid] for x, labels in val]
    print(f"epoch {epoch}: accuracy {jnp.concatenate(right).mean():.3f}; {train.stats}")

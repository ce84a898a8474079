"""Training with Keras: a tf.data.Dataset over a loader.

python examples/tensorflow_dataset.py --data DIR

DALI's DALIDataset serializes its pipeline, so it cannot take a reader that is Python code.
"""

import argparse
from functools import partial

import tensorflow as tf
from make_pictures import pictures  # type: ignore[import-not-found]

from dali_storage.loaders import Loader, image_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/ and val/")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--max-steps", type=int, metavar="N", help="leave every epoch after N batches")
args = parser.parse_args()


def dataset(loader: Loader) -> tf.data.Dataset:
    """An epoch of the loader, every time that it is iterated over."""
    images = tf.TensorSpec((None, 224, 224, 3), tf.float32)
    labels = tf.TensorSpec((None,), tf.int64)
    batches = tf.data.Dataset.from_generator(lambda: loader, output_signature=(images, labels))
    batches = batches.apply(tf.data.experimental.assert_cardinality(len(loader)))
    return batches.take(args.max_steps or -1).prefetch(1)


# Arrays in host memory: TensorFlow copies them to the GPU, if it uses one.
load = partial(image_folder, batch_size=32, device="cpu", layout="HWC", to="numpy")
train = load(f"{args.data}/train", train=True)
val = load(f"{args.data}/val", train=False)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(64, 8, 8, activation="relu"),
        tf.keras.layers.AveragePooling2D(7),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(len(train.classes)),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(dataset(train), validation_data=dataset(val), epochs=args.epochs)
print(train.stats)

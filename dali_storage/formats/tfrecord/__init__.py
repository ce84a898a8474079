"""TFRecord files: indexes, and features of `tf.train.Example`."""

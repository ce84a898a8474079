"""`Loader`: epochs of the batches of a pipeline, and its state."""

"""The `Loader`, which runs a pipeline by its public calls.

In the order to read:

    loader            what a training loop calls
    progress          the position in epochs
    state             that position in plain types
    pipeline_factory  the pipeline: made at the first use, and remade after a failure
    pipeline_run      the batches of one pipeline, which seeks, fills and drains it
    suitable          what a pipeline must be like
    culprits          the samples for which an operator fails
    tensors           outputs as tensors of a framework
    sampler           what training loops expect of a sampler
    stats             which of storage, pipeline and model is the bottleneck

`Loader.close()` closes the pipeline with its readers.
"""

"""Global streams: which sample is at which position, for all ranks; with weights, or a user's own.

There is one endless stream of samples, and the sample at a position is arithmetic. *Sources* (data
sets, or the classes of one) are interleaved by their weights. Within a source, samples come in
*passes*: each sample once, in another order in every pass. An epoch is a number of positions, and
passes go on across it. Ranks and batches cut the stream (`order.dealing`) and do not change it, so
the state is one number.
"""

"""Global streams of samples for all ranks; with weights, or in a user's own order.

There is one endless stream of samples, and the sample at a position is arithmetic. *Sources* (data
sets, or the classes of one) are interleaved by their weights. Within a source, samples come in
*passes*: each sample once, in another order in every pass. An epoch is a number of positions, and
passes continue across epochs. Ranks and batches cut the stream (`order.dealing`) without changing
the order, so the state is one number.
"""

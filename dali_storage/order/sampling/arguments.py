"""The arguments for orders other than DALI's: weights, own orders, epochs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...contract.catalog import Catalog
from .datasets import DataSet, stream_of
from .ordering import StreamOrdering
from .own import OwnOrder
from .stream import SampleStream

_OF_DALI = {  # with the values without effect
    "random_shuffle": (False, None),
    "initial_fill": (1024, None),
    "shuffle_after_epoch": (False, None),
    "shuffle_after_epoch_seed": (None,),
    "stick_to_shard": (False, None),
}

MakeOrdering = Callable[..., StreamOrdering]


def ordering_of(stream: Callable[[Catalog], SampleStream]) -> MakeOrdering:
    """Return what makes the order of a catalog's samples from their stream."""
    return partial(StreamOrdering, stream)


def own_order(given: Sequence[str], arguments: Mapping[str, Any]) -> MakeOrdering:
    """Return what makes the order of a reader with these arguments, `given` among them.

    Raises:
        ValueError: the named arguments exclude each other.
    """
    weights, order = arguments.get("weights"), arguments.get("order")
    epoch_size = arguments.get("epoch_size")
    refuse_order_of_dali(given[0], arguments)
    if order is not None:
        if len(given) > 1:
            why = "order alone sets the samples of an epoch"
            raise ValueError(f"{given[0]} and {given[1]} cannot both be given: {why}")
        return ordering_of(lambda catalog: OwnOrder(order, catalog.delivered))
    seed = seed_of(arguments.get("seed"))
    return ordering_of(
        lambda catalog: stream_of(data_set_of(catalog, weights), seed=seed, epoch_size=epoch_size)
    )


def refuse_order_of_dali(argument: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of DALI's order together with an argument that sets another order."""
    for name, nothing in _OF_DALI.items():
        if (value := arguments.get(name)) not in nothing:
            raise ValueError(
                f"{name}={value!r} and {argument} exclude each other: {name} is for DALI's order, "
                f"but {argument} sets another order; leave one of them out"
            )


def seed_of(seed: Any) -> int:
    """The seed of a stream, which all ranks must share; not the pipeline's seed."""
    return 0 if seed is None else int(seed)


def data_set_of(catalog: Catalog, weights: Any) -> DataSet:
    """The samples of a catalog, and the weights of its classes or samples."""
    labels = catalog.labels if catalog.labels.size == catalog.delivered else None
    return DataSet(catalog.delivered, labels, weights)

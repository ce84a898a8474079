"""The arguments for orders other than DALI's: weights, own orders, epochs."""

from collections.abc import Callable, Mapping
from typing import Any

from ..contract.catalog import Catalog
from ..order.sampling.datasets import DataSet, stream_of
from ..order.sampling.own import OwnOrder
from ..order.sampling.stream import SampleStream

_OF_DALI = {  # with the values without effect
    "random_shuffle": (False, None),
    "initial_fill": (1024, None),
    "shuffle_after_epoch": (False, None),
    "shuffle_after_epoch_seed": (None,),
    "stick_to_shard": (False, None),
}

_OWN = "weights", "order", "epoch_size", "sources"

MakeStream = Callable[[Catalog], SampleStream]


def own_order(arguments: Mapping[str, Any]) -> MakeStream | None:
    """A function that makes the stream of a reader's samples; None for DALI's order.

    Raises:
        ValueError: the named arguments exclude each other.
    """
    weights, order = arguments.get("weights"), arguments.get("order")
    epoch_size = arguments.get("epoch_size")
    given = [name for name in _OWN if arguments.get(name) is not None]
    if not given:
        return None
    refuse_order_of_dali(given[0], arguments)
    if order is not None:
        if len(given) > 1:
            why = "order alone sets the samples of an epoch"
            raise ValueError(f"{given[0]} and {given[1]} cannot both be given: {why}")
        return lambda catalog: OwnOrder(order, catalog.delivered)
    seed = seed_of(arguments)
    return lambda catalog: stream_of(
        data_set_of(catalog, weights), seed=seed, epoch_size=epoch_size
    )


def refuse_order_of_dali(argument: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of DALI's order together with an argument that sets another order."""
    for name, nothing in _OF_DALI.items():
        if (value := arguments.get(name)) not in nothing:
            raise ValueError(
                f"{name}={value!r} and {argument} exclude each other: {name} is for DALI's order, "
                f"but {argument} sets another order; leave one of them out"
            )


def seed_of(arguments: Mapping[str, Any]) -> int:
    """The seed of a stream, which all ranks must share; not the pipeline's seed."""
    seed = arguments["seed"]
    return 0 if seed is None else int(seed)


def data_set_of(catalog: Catalog, weights: Any) -> DataSet:
    """The samples of a catalog, and the weights of its classes or samples."""
    labels = catalog.labels if catalog.labels.size == catalog.delivered else None
    return DataSet(catalog.delivered, labels, weights)

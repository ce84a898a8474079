"""The arguments by which readers have another order than DALI's: weights, own orders, epochs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..contract.catalog import Catalog
from ..order.sampling.draws import Draws
from ..order.sampling.mixture import Mixture, integer_weights
from ..order.sampling.own import OwnOrder
from ..order.sampling.sources import Drawn, Groups, Mixed, Sources, by_label, class_weights
from ..order.sampling.stream import MixedStream, SampleStream

_OF_DALI = {  # with the values that say nothing
    "random_shuffle": (False, None),
    "initial_fill": (1024, None),
    "shuffle_after_epoch": (False, None),
    "shuffle_after_epoch_seed": (None,),
    "stick_to_shard": (False, None),
}

_OWN = "weights", "order", "epoch_size", "sources"

MakeStream = Callable[[Catalog], SampleStream]


def has_own_order(arguments: Mapping[str, Any]) -> bool:
    """Whether arguments set another order than DALI's."""
    return any(arguments.get(name) is not None for name in _OWN)


def own_order(arguments: Mapping[str, Any]) -> MakeStream | None:
    """What makes the stream of a reader's samples; None if they have the order of DALI.

    Raises:
        ValueError: arguments exclude each other; names them.
    """
    weights, order = arguments.get("weights"), arguments.get("order")
    epoch_size = arguments.get("epoch_size")
    given = [name for name in _OWN if arguments.get(name) is not None]
    if not given:
        return None
    refuse_order_of_dali(given[0], arguments)
    if order is not None:
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} cannot both be given: order has all of it")
        return lambda catalog: OwnOrder(order, catalog.delivered)
    seed = seed_of(arguments)
    return lambda catalog: _weighted(catalog, weights, seed, epoch_size)


def refuse_order_of_dali(argument: str, arguments: Mapping[str, Any]) -> None:
    """Refuse what describes the order of DALI, with an argument that sets another one."""
    for name, nothing in _OF_DALI.items():
        if (value := arguments.get(name)) not in nothing:
            raise ValueError(
                f"{name}={value!r} and {argument} exclude each other: {name} is of DALI's order, "
                f"and {argument} sets another one; leave one of them out"
            )


def seed_of(arguments: Mapping[str, Any]) -> int:
    """The seed of a stream, which all ranks must share: not that of the pipeline."""
    seed = arguments["seed"]
    return 0 if seed is None else int(seed)


def _weighted(catalog: Catalog, weights: Any, seed: int, epoch_size: Any) -> SampleStream:
    size = catalog.delivered
    if by_class(weights):
        labels = labels_of(catalog)
        names, groups = by_label(labels)
        pairs = class_weights(dict(zip(names, groups.lengths.tolist(), strict=True)), weights)
        shares = dict(zip(names, [weight for _, weight in pairs], strict=True))
        values = np.array(names)
        return MixedStream(
            names,
            groups,
            lambda samples: np.searchsorted(values, labels[samples]),
            [(0, shares)],
            seed=seed,
            epoch_size=epoch_size,
        )
    everything: Sources = Groups(np.array([0]), np.array([size]))
    if weights is not None:
        length = epoch_size if isinstance(epoch_size, int) else size
        everything = Drawn(0, Draws(weights, size, length))
    return MixedStream(
        ["samples"],
        everything,
        np.zeros_like,
        [(0, {"samples": 1})],
        seed=seed,
        epoch_size=epoch_size,
    )


def by_class(weights: Any) -> bool:
    """Whether weights are of labels, and not one number a sample."""
    return isinstance(weights, (str, Mapping))


def labels_of(catalog: Catalog) -> Any:
    """int64[n], the labels of the samples; refuses samples that have none."""
    if catalog.labels.size != catalog.delivered:
        raise ValueError(
            "weights by class need labels, and these samples have none: give one number a sample"
        )
    return catalog.labels.astype(np.int64)


def source_of(catalog: Catalog, start: int, weights: Any, name: str, listed: bool) -> Sources:
    """A family of one source: the samples of a catalog, which are those from `start` on.

    `weights`: of its classes or samples, or None. `listed`: passes keep the order. `name` is for
    messages.
    """
    size = catalog.delivered
    if weights is None:
        return Groups(np.array([start]), np.array([size]), listed=listed)
    try:
        if listed:
            raise ValueError("weights within a source need shuffle=True")
        if not by_class(weights):
            return Drawn(start, Draws(weights, size, size))
        names, groups = by_label(labels_of(catalog), start)
        pairs = class_weights(dict(zip(names, groups.lengths.tolist(), strict=True)), weights)
        return Mixed(Mixture(integer_weights(pairs)), groups)
    except (ValueError, TypeError) as error:
        raise type(error)(f"source {name!r}: {error}") from None

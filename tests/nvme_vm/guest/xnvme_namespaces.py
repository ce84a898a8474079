"""Several namespaces on a controller, and namespaces with metadata or zones."""

import dataclasses

import pytest

import bmap_tools
from bmap_tools import device
from dali_storage.contract.errors import StaleMapError
from tests.kit.devices import make_file_system, mounted, run
from tests.kit.layouts import contents_of, make_map
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, ways
from tests.nvme_vm.guest.hostile import Layout, plant


def filled(directory, serial, nsid=1):
    node = controllers.disk(serial, nsid)
    make_file_system("ext4", node)
    with mounted(node, directory):
        catalog = plant(directory, nsid)
        bmap = make_map(directory, directory.with_suffix(".json"))
        return Layout(node, node, serial, catalog, contents_of(catalog), bmap)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The two namespaces of a controller: equally large, with different files."""
    directory = tmp_path_factory.mktemp("both")
    return [filled(directory / str(nsid), plan.TWO_NAMESPACES, nsid) for nsid in (1, 2)]


@pytest.mark.parametrize("nsid", [1, 2])
@ways.ALL
def test_the_requested_namespace_is_read(both, nsid, way):
    ours, other = both[nsid - 1], both[2 - nsid]
    options = {"nsid": nsid} if way in (ways.address, ways.gpu) else {}
    with way(plan.TWO_NAMESPACES, nsid) as uri:
        assert ours.is_read_right(uri, **options)
        with pytest.raises(StaleMapError, match=r"its wwid is .* and was nvme"):
            other.open(uri, **options)


@ways.ONLY_MAIN
def test_a_missing_namespace_is_refused(both):
    with (
        ways.address(plan.TWO_NAMESPACES) as function,
        pytest.raises(ValueError, match=f"nsid 3: {function} has no such namespace"),
    ):
        both[0].open(function, nsid=3)


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    """A disk with separate metadata."""
    return filled(tmp_path_factory.mktemp("separate") / "1", plan.SEPARATE)


@ways.ALL
def test_a_namespace_with_separate_metadata_is_read_by_its_block_device_only(separate, way):
    with way(plan.SEPARATE) as uri:
        if way is ways.disk:
            assert separate.is_read_right(uri)
        else:
            assert "has metadata beside its logical blocks" in str(refusal(separate, uri))


def claim(layout, serial, bmap):
    """A layout whose map says that its file system is on another disk."""
    mapped = bmap_tools.load(layout.bmap)
    there = device.examine(controllers.disk(serial))
    ours = dataclasses.replace(mapped.device, serial=there.serial, wwid=there.wwid)
    bmap_tools.save(dataclasses.replace(mapped, device=ours), bmap)
    return dataclasses.replace(layout, bmap=bmap)


def refusal(layout, uri):
    with pytest.raises((ValueError, StaleMapError)) as caught:
        layout.open(uri)
    return caught.value.with_traceback(None)


@ways.ALL
def test_zones_are_refused(both, tmp_path, way):
    zoned = controllers.disk(plan.ZONED)
    run("blkzone", "reset", zoned)
    # A copy of the superblock, so that the file system looks like the mapped one.
    run("dd", f"if={both[0].node}", f"of={zoned}", "bs=64k", "count=4", "oflag=direct")
    forged = claim(both[0], plan.ZONED, tmp_path / "bmap.json")
    with way(plan.ZONED) as uri:
        error = refusal(forged, uri)
    assert type(error) is ValueError
    assert f"uri {uri!r} is a zoned namespace" in str(error)


@ways.ALL
def test_metadata_between_blocks_is_refused(both, tmp_path, way):
    forged = claim(both[0], plan.EXTENDED, tmp_path / "bmap.json")
    with way(plan.EXTENDED) as uri:
        error = refusal(forged, uri)
    if type(error) is ValueError:
        assert "has metadata between its logical blocks" in str(error)
    else:  # the kernel cannot read the disk, and libxnvme's main branch does not report why
        assert way is ways.disk
        assert "it has 0 bytes" in str(error)

"""COCO: annotations of images, from the JSON file to outputs, for `readers.coco`.

In the order to read:

    options      the arguments about annotations
    scan         JSON text, an entry at a time
    check        the values that an entry may have
    parse        entries to the columns of a dump, in one pass
    dump         the files of DALI's `save_preprocessed_annotations`
    origin       which annotations a dump was made of
    annotations  the columns, the catalog, and the outputs of a batch
    ragged       columns with any number of rows a sample
    masks        masks of pixels, by pycocotools

Annotations are parsed once, when a reader opens or by `python -m dali_storage index --coco`;
columns are then held in memory. Only a dump is written, on request. Imports formats/, samples/,
contract/ and bmap_tools/.
"""

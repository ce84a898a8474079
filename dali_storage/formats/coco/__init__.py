"""COCO: annotations of images, from the JSON file to outputs."""

"""Pipelines of images, and their loaders.

In the order to read:

    settings     the options of all loaders of images
    images       the pipeline, by `compose`: transforms as few steps
    folders      images in class directories
    imagenet     ImageNet, whose files and labels `ilsvrc` finds
    cifar        CIFAR, whose records `cifar_files` finds, and whose names `pickles` loads

Data sets are looked at when a loader is made; its pipeline is closed by the loader.
"""

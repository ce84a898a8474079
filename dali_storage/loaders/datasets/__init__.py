"""Loaders for data sets: folders of images, ImageNet, CIFAR."""

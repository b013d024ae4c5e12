"""Keras on TensorFlow, whatever else the environment names: that is what these scripts are about."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras

__all__ = ["keras"]

"""The shim for tools that want a setup.py; everything is in setup.cfg."""

from setuptools import setup

setup()

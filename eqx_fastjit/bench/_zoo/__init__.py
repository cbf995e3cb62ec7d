"""Whole programs, as people write them: what no benchmark was tuned to.

Each is a function, of the name that is listed here, in a file of this folder. Those
import what they need at the top, as programs do: hence they are loaded when a case is
built, and not before. Widths are small, so that a call is dispatch above all.
"""

import functools as ft
import importlib

from eqx_fastjit.bench._case import add, Makers


CONTENDERS = ("jit", "flat", "eqx", "ours")

PROGRAMS = {
    "language": {
        "gpt": "GPT of 12 blocks, inference",
        "gpt_adamw": "GPT of 12 blocks, adamw step",
        "encoder": "encoder of 8 blocks in a list, with dropout, in inference mode",
        "decode": "decoding a token, with a cache in a list of dictionaries",
        "lora": "LoRA around each of 12 layers, each with a float",
        "lora_step": "adam step of LoRA, with the other layers frozen",
    },
    "sequence": {
        "gru": "GRU classifier under scan, adam step",
        "lstm": "forecast by a tuple of three LSTM cells, static number of steps",
        "online_filter": "GRU between two MLPs, called for each observation",
    },
    "vision": {
        "resnet": "ResNet with BatchNorm and State, SGD step with momentum",
        "resnet_inference": "the ResNet in inference mode",
        "cnn": "CNN as a list of layers and functions, accuracy of a batch",
        "vit": "vision transformer of 6 blocks, with a flag and a raw key",
        "unet": "UNet with a partial activation in each block",
        "mixer": "MLP-Mixer of 12 blocks",
    },
    "generative": {
        "gan": "GAN, a step of both networks, which are in dictionaries",
        "vae": "VAE, adam step with clipped gradients and a typed key",
        "diffusion": "diffusion model, adamw step, averaged weights, donation",
    },
    "science": {
        "pinn": "PINN of the heat equation, adam step through second derivatives",
        "gaussian_process": "Gaussian process, step of parameters in a dictionary",
        "particles": "particles on springs, in named tuples, static arguments",
        "flow": "normalising flow of 8 couplings",
    },
    "differential": {
        "neural_ode": "neural ODE by diffrax, which checks for errors and blocks",
    },
    "control": {
        "policy": "policy with a jitted method and a typed key",
        "dqn": "Q-learning step on NumPy transitions",
        "environment": "pendulum in registered dataclasses, with a typed key",
        "ppo": "actor and critic, PPO step with a configuration dataclass",
    },
    "training": {
        "frozen": "adam step of a classifier's head, with the rest frozen",
        "masked_decay": "step with masked weight decay",
        "schedule": "adamw step with warm-up, cosine decay and clipping",
        "injected_schedule": "adam step with its hyperparameters in its state",
        "multi_transform": "step with a different optimiser for the head",
        "multi_steps": "adam step with gradients averaged over four batches",
    },
    "parameters": {
        "nested_parameters": "parameters in dictionaries, lists, tuples, with strings",
        "configured_layers": "16 layers, each with its own configuration dataclass",
        "partial_activations": "8 MLPs, each with a different partial as activation",
        "numpy_weights": "weights as NumPy arrays",
        "numpy_batches": "SGD step on NumPy batches",
        "enums": "lion step of layers with enums, named tuples and sets as statics",
        "statics_200": "one array, and a dictionary of 200 statics of 20 kinds",
        "ensemble": "ensemble of 5 MLPs by filter_vmap",
        "experts": "mixture of 6 different networks in a dictionary",
    },
}

# Packages that programs need, by file. The extra `bench` installs all of them.
_REQUIRES = {"differential": ("diffrax",)}


def _build(file: str, name: str) -> Makers:
    return getattr(importlib.import_module(f".{file}", __name__), name)()


for _file, _programs in PROGRAMS.items():
    for _name, _title in _programs.items():
        add(
            _name,
            ft.partial(_build, _file, _name),
            group="zoo",
            title=_title,
            contenders=CONTENDERS,
            requires=_REQUIRES.get(_file, ("optax",)),
        )

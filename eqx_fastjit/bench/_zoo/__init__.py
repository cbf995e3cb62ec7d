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
        "decode": "a token decoded, its cache in dictionaries in a list",
        "lora": "LoRA around each of 12 layers, a float for each",
        "lora_step": "adam step of LoRA alone, the layers around it frozen",
    },
    "sequence": {
        "gru": "GRU classifier under scan, adam step",
        "lstm": "forecast by three LSTM cells in a tuple, a static number of steps",
        "online_filter": "GRU between two MLPs, called for each observation",
    },
    "vision": {
        "resnet": "ResNet with BatchNorm and State, step of SGD with momentum",
        "resnet_inference": "the ResNet in inference mode",
        "cnn": "CNN of layers and functions in a list, accuracy of a batch",
        "vit": "vision transformer of 6 blocks, with a flag and a raw key",
        "unet": "UNet with a partial activation in each block",
        "mixer": "MLP-Mixer of 12 blocks",
    },
    "generative": {
        "gan": "GAN, one step of both networks, kept in dictionaries",
        "vae": "VAE, adam step with clipped gradients and a typed key",
        "diffusion": "diffusion model, adamw step, averaged weights, state donated",
    },
    "science": {
        "pinn": "PINN of the heat equation, adam step through second derivatives",
        "gaussian_process": "Gaussian process, a step on a dictionary of parameters",
        "particles": "particles on springs, in named tuples, with static arguments",
        "flow": "normalising flow of 8 couplings",
    },
    "differential": {
        "neural_ode": "neural ODE by diffrax, which checks for errors and blocks",
    },
    "control": {
        "policy": "policy with a jitted method, given a typed key",
        "dqn": "Q-learning step on NumPy transitions",
        "environment": "pendulum in registered dataclasses, a typed key inside",
        "ppo": "actor and critic, PPO step with a configuration dataclass",
    },
    "training": {
        "frozen": "adam step of a classifier's head, the rest frozen",
        "masked_decay": "step with masked weight decay",
        "schedule": "adamw step with warm-up, cosine decay and clipping",
        "injected_schedule": "adam step with its hyperparameters in its state",
        "multi_transform": "step with another optimiser for the head",
        "multi_steps": "adam step with gradients averaged over four batches",
    },
    "parameters": {
        "nested_parameters": "parameters in dictionaries, lists, tuples, with strings",
        "configured_layers": "16 layers, each with its own configuration dataclass",
        "partial_activations": "8 MLPs, each with another partial as activation",
        "numpy_weights": "weights in NumPy",
        "numpy_batches": "SGD step on NumPy batches",
        "enums": "lion step of layers with enums, named tuples and sets as statics",
        "statics_200": "one array, and 200 statics of 20 kinds in a dictionary",
        "ensemble": "ensemble of 5 MLPs by filter_vmap",
        "experts": "6 unlike networks in a dictionary, mixed",
    },
}

# What the package does not bring, by file; the extra `bench` has it all.
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

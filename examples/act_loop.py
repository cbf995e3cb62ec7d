"""A policy acts in an environment in Python: a loop that gains.

It makes thousands of calls that take microseconds on the device. Under Equinox, most of
the time of the loop is the overhead of calls:

    eqx-fastjit profile examples/act_loop.py
"""

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from eqx_fastjit import filter_jit


class Cart:
    """A pole on a cart, as plain Python."""

    def reset(self) -> np.ndarray:
        self.state = np.array([0.0, 0.0, 0.05, 0.0], np.float32)
        return self.state

    def act(self, push_right: bool) -> tuple[np.ndarray, bool]:
        _, speed, angle, turn = self.state
        force = 10.0 if push_right else -10.0
        pull = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        swing = 9.8 * np.sin(angle) - np.cos(angle) * pull
        swing /= 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        push = pull - 0.05 * swing * np.cos(angle) / 1.1
        change = np.array([speed, push, turn, swing], np.float32)
        self.state = self.state + np.float32(0.02) * change
        return self.state, bool(abs(self.state[2]) > 0.2)


@filter_jit
def choose(
    policy: eqx.nn.MLP, observation: Float[Array, "4"], key: PRNGKeyArray
) -> tuple[Array, PRNGKeyArray]:
    key, now = jr.split(key)
    right, left = policy(observation)
    return jr.uniform(now) < jax.nn.sigmoid(right - left), key


def main(steps: int = 3000) -> None:
    policy = eqx.nn.MLP(4, 2, 32, 2, key=jr.key(0))
    cart, key, episodes = Cart(), jr.key(1), 1
    observation = cart.reset()
    for _ in range(steps):
        action, key = choose(policy, observation, key)
        observation, is_over = cart.act(bool(action))
        if is_over:
            observation, episodes = cart.reset(), episodes + 1
    print(f"{steps} steps, {episodes} episodes")


main()

"""The base of all optimizers, with its global hooks."""

_hooks = []


def register_optimizer_step_post_hook(hook):
    """Calls `hook(optimizer, args, kwargs)` after each step of every optimizer."""
    _hooks.append(hook)


class Optimizer:
    """Something with a step."""

    def step(self, *args, **kwargs):
        for hook in _hooks:
            hook(self, args, kwargs)

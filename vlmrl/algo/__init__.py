"""Pure tensor methods. Importing this package registers all of them."""

from vlmrl.algo import kl, reduce
from vlmrl.algo.advantage import g2rpo, grpo
from vlmrl.algo.credit import broadcast
from vlmrl.algo.loss import ppo_clip
from vlmrl.algo.select import zero_variance
from vlmrl.algo.shape import tempsamp

__all__ = ["broadcast", "g2rpo", "grpo", "kl", "ppo_clip", "reduce", "tempsamp", "zero_variance"]

"""FrozenLake of Gymnasium for a language model: rmux-environment(7).

The model reads where it stands, one letter per field, and answers with an arrow. An episode earns 1
at the goal and else nothing. It begins on any field that is safe, so that goals are found by chance
from near ones first.
"""

import gymnasium

FIELDS = "abcdefghijklmnop"
ARROWS = "<v>^"
SAFE = (0, 1, 2, 3, 4, 6, 8, 9, 10, 13, 14)


class FrozenLake(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=False))

    def reset(self, *, seed=None, options=None):
        _, info = self.env.reset(seed=seed, options=options)
        self.unwrapped.s = int(self.np_random.choice(SAFE))
        return self.unwrapped.s, info

    def render_text(self, observation):
        return FIELDS[observation]

    def parse_action(self, text):
        return ARROWS.index(text)  # ValueError for what is no arrow

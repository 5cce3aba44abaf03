"""English sentences of a small grammar: who is after whom, and where.

    The FBI is chasing a criminal on the run .
    Tonight a young trout in the river is being watched by the anglers .

    active    [OPENING] the SUBJECT [ADVERB] VERB a [ADJECTIVE] OBJECT PLACE .
    passive   [OPENING] a [ADJECTIVE] OBJECT PLACE is [ADVERB] being VERB by the SUBJECT .

The words of a sentence are of one scene, so that each depends on words further back: the form of
the verb on the number of its subject, the object on subject and verb, the place on the object.

Source: lectures, B.12 (the first sentence).
"""

import random
from collections.abc import Sequence

_SCENES = """
FBI is; chasing, hunting; chased, hunted; criminal, spy; on the run, with a false passport
police are; chasing, stopping; chased, stopped; thief, smuggler; in a stolen car, at the border
dogs are; chasing, smelling; chased, smelled; cat, squirrel; up a tree, over the fence
hunter is; hunting, watching; hunted, watched; deer, fox; through the forest, in the snow
anglers are; catching, watching; caught, watched; trout, salmon; in the river, below the bridge
pilot is; landing, flying; landed, flown; plane, glider; above the clouds, on a short runway
doctors are; treating, visiting; treated, visited; patient, nurse; in the hospital, with a fever
cook is; roasting, serving; roasted, served; chicken, turkey; with potatoes, for the guests
children are; flying, painting; flown, painted; kite, balloon; in the wind, with a long string
reporter is; visiting, watching; visited, watched; senator, singer; in the capital, before the show
"""
"""Subject with its verb, active and passive participles of verbs, objects, and their places."""
_OPENINGS = ("", "", "today ", "tonight ", "once more ")
_ADVERBS = ("", "", "still ", "now ", "quietly ")
_ADJECTIVES = ("", "", "young ", "famous ", "lonely ")
_SIZES = {"train": 3000, "test": 300}
"""Sentences; validation data is the end of the training text."""


def make_chases(split: str, seed: int) -> str:
    """Return the text of a split, a sentence a line, the same for the same seed."""
    draw = random.Random(f"chases/{seed}/{split}")
    scenes = [line.split("; ") for line in _SCENES.strip().split("\n")]
    return "".join(f"{_sentence(draw, scenes)}\n" for _ in range(_SIZES[split]))


def _sentence(draw: random.Random, scenes: Sequence[Sequence[str]]) -> str:
    subject, *parts = draw.choice(scenes)
    active, passive, items, places = (part.split(", ") for part in parts)
    verb = draw.randrange(len(active))
    opening, adverb = draw.choice(_OPENINGS), draw.choice(_ADVERBS)
    item = f"a {draw.choice(_ADJECTIVES)}{draw.choice(items)} {draw.choice(places)}"
    if draw.random() < 0.75:
        text = f"{opening}the {subject} {adverb}{active[verb]} {item} ."
    else:
        name = subject.rpartition(" ")[0]
        text = f"{opening}{item} is {adverb}being {passive[verb]} by the {name} ."
    return text[0].upper() + text[1:]

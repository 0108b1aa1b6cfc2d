"""The algorithms by name: what each is good at, and which verbs it has. Costs and sources are in their files.

                                             broad-        all_    reduce_ all_                  all_to_
                                             cast_ reduce_ reduce_ scatter gather gather scatter all    barrier
    "naive"             all through one desk   ×      ×       ×       ×       ×      ×      ×      ×       ×
    "ring"              fewest bytes           ×      ×       ×       ×       ×                    ×       ×
    "tree"              fewest rounds          ×      ×       ×                      ×      ×              ×
    "double_tree"       few, and full wires    ×      ×       ×
    "halving_doubling"  few, and few bytes                    ×       ×       ×
    "pipelined"         latency is hidden      ×      ×       ×       ×       ×
    "hierarchical"      nodes of fast links    ×      ×       ×       ×       ×

For the last one, see hierarchical.py: it puts two of the others together, and is not in `FLAT`.
"""

from . import double_tree, halving_doubling, naive, pipelined, ring, tree

FLAT = {
    "naive": naive,
    "ring": ring,
    "tree": tree,
    "double_tree": double_tree,
    "halving_doubling": halving_doubling,
    "pipelined": pipelined,
}


def having(*verbs: str) -> list[str]:
    """The names of those that have all of these verbs."""
    return [name for name, module in FLAT.items() if all(hasattr(module, verb) for verb in verbs)]

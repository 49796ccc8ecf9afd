"""When the listing changes, and who leaves. Pure functions; store and vfs only ask them.

A generation is a numbered, mount-wide, frozen set of listed files. Every listing joins the current one, unless the
rules below begin the next. So the ranks of one job list the same files, and a loop that lists anew sees growth.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listing:
    """What is known of a process at the moment when it lists a directory.

    listed_ever: it has listed any directory before.
    listed_here: it has listed this directory before, in the current generation.
    opened_since: it, or a descendant, has opened a file since it last listed this directory.
    """

    listed_ever: bool
    listed_here: bool
    opened_since: bool


def begins_generation(listing: Listing, age_s: float, settle_s: float) -> bool:
    """Whether this listing begins a new generation.

    age_s: how old the current generation is. settle_s: how long it is kept for those that only look.
    """
    if listing.listed_here and listing.opened_since:
        return True  # a next epoch: it used what it saw, and asks again
    looks_again = listing.listed_here and not listing.opened_since
    return age_s > settle_s and (not listing.listed_ever or looks_again)


@dataclass(frozen=True, slots=True)
class Victim:
    """A resident file that may be evicted: neither open, nor pinned, nor its directory's last."""

    id: int
    bytes: int


def eviction(unlisted: list[Victim], listed: list[Victim], need: int) -> list[int]:
    """The ids to evict for need bytes, in order; empty where even all of them would not do.

    unlisted: admitted since the current generation began, newest first: no reader knows of them.
    listed: shown by the current generation, oldest first.
    """
    chosen, freed = [], 0
    for victim in [*unlisted, *listed]:
        if freed >= need:
            break
        chosen.append(victim.id)
        freed += victim.bytes
    return chosen if freed >= need else []

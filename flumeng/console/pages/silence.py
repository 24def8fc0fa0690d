"""The nodes that did not answer when they were last asked."""

from __future__ import annotations

from flumeng.console.pictures import Picture

START, END = "node ", " has not answered"


def silent(picture: Picture) -> list[str]:
    """Return the silent nodes of the picture, from the causes of its status."""
    abouts = [cause["about"] for cause in picture.status["causes"]]
    return [
        about.removeprefix(START).removesuffix(END)
        for about in abouts
        if about.startswith(START) and about.endswith(END)
    ]

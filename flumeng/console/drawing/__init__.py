"""SVG laid out here, so that pages need no script to show it. Pure."""

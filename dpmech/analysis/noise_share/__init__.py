"""The noise-share paper: what part of an optimizer's moments is noise, floors and ceilings."""

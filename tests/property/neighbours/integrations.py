"""The trainers of other packages, registered for the check of neighbouring data sets."""
